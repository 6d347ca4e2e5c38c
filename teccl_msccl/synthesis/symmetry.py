"""Symmetry: one GPU's (or one host's) chunks are scheduled, and everybody else's the same way, moved round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

import numpy as np

from ..collective.demand import Demand
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from ..topology.paths import direct_paths
from ..topology.translations import Indices, Translations, all_translations
from .quotient import Quotient, QuotientSends, Timeline, played

#: How many parts may share a link, on average, where parts hardly do.
HARDLY = 1.5
#: Ways between GPUs beyond which a trial takes minutes.
MOST_WAYS = 150_000


@dataclass(frozen=True, eq=False)
class SymmetricSearch:
    """The greedy search on a topology that looks the same from all its GPUs, or from all blocks of so many.

    Where translations keep any two sends of part 0 apart they keep all copies apart, so that the whole takes as long
    as the part (SyCCL, SIGCOMM 2025). Where several parts share a link it is played, which tells how long it takes.
    """

    quotient: Quotient
    #: What was best for each chunk count.
    found: dict[int, QuotientSends] = field(default_factory=dict)

    @classmethod
    def of(cls, topology: Topology) -> SymmetricSearch | None:
        """The best of `all_of`; None where there is no symmetry, or too many ways to search."""
        return next(iter(cls.all_of(topology)), None)

    @classmethod
    def all_of(cls, topology: Topology) -> list[SymmetricSearch]:
        """That of the smallest parts that hardly share links and, where even smaller ones do share, theirs."""
        found: list[SymmetricSearch] = []
        for translations in all_translations(topology):
            if topology.nranks**2 > MOST_WAYS:
                break
            pairs = ((source, target) for source in translations.ranks[0].tolist() for target in range(topology.nranks))
            paths = tuple(path.links for path in direct_paths(topology, frozenset(pairs)))
            if len(paths) * translations.count > MOST_WAYS:
                break
            search = cls(Quotient(translations, tuple(range(translations.ranks.shape[1])), paths, {}))
            if search.quotient.sharing <= HARDLY:
                return [search, *found[:1]]
            found.append(search)
        return found[:1]

    @property
    def nways(self) -> int:
        """How many ways there are between GPUs."""
        return len(self.quotient.paths) * self.quotient.translations.count

    def cost(self, demand: Demand) -> float:
        """A trial's work, in about microseconds."""
        chunks = self.chunks(demand)
        sends = sum(len(want) for _, _, want in chunks)
        n = self.quotient.nranks
        return 300 + sends * (1 + 0.015 * self.nways + 0.015 * len(chunks) + 0.001 * n * n)

    def trials(
        self, demand: Demand, seeds: range, jobs: int = 1, deadline_us: Callable[[int], float] = lambda seed: inf
    ) -> Iterator[Schedule]:
        """The first seed's schedule and the best of the others', if they are better than those before: to lift one
        takes as long as to search for several."""
        for batch in (seeds[:1], seeds[1:]):
            before = self.found.get(demand.nchunks)
            for seed in batch:
                sends = self.quotient.searched(self.chunks(demand), seed, deadline_us(seed))
                best = self.found.get(demand.nchunks)
                if best is None or sends.finish_us < best.finish_us * (1 - 1e-12):
                    self.found[demand.nchunks] = sends
            if self.found.get(demand.nchunks) is not before:
                yield self.lifted(demand, self.found[demand.nchunks])

    # -- one part's chunks, and everybody's ------------------------------------------------------------

    def chunks(self, demand: Demand) -> list[tuple[float, int, tuple[int, ...]]]:
        """Part 0's chunks: (bytes, GPU that has it, GPUs that want it), of every position for all, or for every other
        GPU."""
        n, width = self.quotient.nranks, len(self.quotient.positions)
        nbytes = demand.chunks[0].bytes
        if demand.collective == "allgather":
            wants = [tuple(gpu for gpu in range(n) if gpu != p) for p in range(width) for _ in range(demand.nchunks)]
            return [(nbytes, i // demand.nchunks, want) for i, want in enumerate(wants)]
        return [
            (nbytes, p, (gpu,) if gpu != p else ())
            for p in range(width)
            for gpu in range(n)
            for _ in range(demand.nchunks)
        ]

    def _chunk_ids(self, demand: Demand, translations: Translations) -> Indices:
        """The demand's ids of part 0's chunks, and of what they are for every other part. Shape (chunks, parts)."""
        ranks, table, c = translations.ranks, translations.table, demand.nchunks
        if demand.collective == "allgather":
            shares = ranks.T
        else:  # source p and target (part, q), moved round
            targets = ranks[table]  # shape (translation, part, position)
            shares = ranks[:, :, None, None] * demand.nranks + targets[:, None, :, :]
            shares = shares.reshape(len(ranks), -1).T
        return np.asarray((shares[:, None, :] * c + np.arange(c)[None, :, None]).reshape(-1, len(ranks)))

    def lifted(self, demand: Demand, sends: QuotientSends) -> Schedule:
        """Every part's sends, played."""
        translations = self.quotient.translations
        ids = self._chunk_ids(demand, translations)
        path, part = np.divmod(sends.way, translations.count)
        chunk = ids[sends.chunk]
        way = path[:, None] * translations.count + translations.table[:, part].T
        order = np.broadcast_to(sends.start_us[:, None], chunk.shape)
        paths = self.quotient.ways
        return played(
            translations.topology, demand, Timeline(paths, chunk.reshape(-1), way.reshape(-1), order.reshape(-1))
        )
