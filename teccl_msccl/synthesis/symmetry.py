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
from ..topology.translations import Indices, Translations, gpu_translations, host_translations
from .greedy import search_stage
from .incumbent import Incumbent
from .quotient import Quotient, QuotientSends, Timeline, played
from .settings import Settings

#: Collectives that ask the same of every GPU.
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "alltoall")
#: Work per round of the search over chunk counts, in about microseconds of one core.
EFFORT = 5.0e5
#: The part of the time that is left which this search may take.
SHARE = 0.3
#: Ways between GPUs beyond which a trial takes seconds, and is only worth it for a larger gap than this.
MANY_WAYS = 20_000
GOOD = 0.05
#: Ways between GPUs beyond which a trial takes minutes.
MOST_WAYS = 150_000


@dataclass(frozen=True, eq=False)
class SymmetricSearch:
    """The greedy search on a topology that looks the same from all its GPUs, or all its hosts.

    Where translations keep any two sends of part 0 apart they keep all copies apart, so that the whole takes as long
    as the part (SyCCL, SIGCOMM 2025). Where several parts share a link it is played, which tells how long it takes.
    """

    quotient: Quotient
    _best_us: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, topology: Topology) -> SymmetricSearch | None:
        """None where there is no symmetry, or too many ways to search."""
        translations = gpu_translations(topology) or host_translations(topology)
        if translations is None or topology.nranks**2 > MOST_WAYS:
            return None
        pairs = ((source, target) for source in translations.ranks[0].tolist() for target in range(topology.nranks))
        paths = tuple(path.links for path in direct_paths(topology, frozenset(pairs)))
        if len(paths) * translations.count > MOST_WAYS:
            return None
        return cls(Quotient(translations, tuple(range(translations.ranks.shape[1])), paths, {}))

    @property
    def nways(self) -> int:
        """How many ways there are between GPUs."""
        return len(self.quotient.paths) * self.quotient.translations.count

    def cost(self, demand: Demand) -> float:
        """A trial's work, in about microseconds."""
        chunks = self._chunks(demand)
        sends = sum(len(want) for _, _, want in chunks)
        n = self.quotient.nranks
        return 300 + sends * (1 + 0.015 * self.nways + 0.015 * len(chunks) + 0.001 * n * n)

    def trials(
        self, demand: Demand, seeds: range, jobs: int = 1, deadline_us: Callable[[int], float] = lambda seed: inf
    ) -> Iterator[Schedule]:
        """A schedule for each seed that gives a better one than those before."""
        for seed in seeds:
            sends = self.quotient.searched(self._chunks(demand), seed, deadline_us(seed))
            if sends.finish_us < self._best_us.get(demand.nchunks, inf) * (1 - 1e-12):
                self._best_us[demand.nchunks] = sends.finish_us
                yield self._lifted(demand, sends)

    # -- one part's chunks, and everybody's ------------------------------------------------------------

    def _chunks(self, demand: Demand) -> list[tuple[float, int, tuple[int, ...]]]:
        """Part 0's chunks: of every GPU (position) for all, or for every other one."""
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

    def _lifted(self, demand: Demand, sends: QuotientSends) -> Schedule:
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


def search_symmetrically(incumbent: Incumbent, settings: Settings) -> None:
    """Every stage of a problem that is symmetric, over the chunk counts."""
    incumbent.phase = "symmetry"
    if not incumbent.problem.named or incumbent.problem.collective not in COLLECTIVES:
        return
    for i, stage in enumerate(incumbent.stages):
        search = SymmetricSearch.of(stage.topology)
        if search is None or search.cost(stage.demand(1)) > SHARE / 4 * 1e6 * incumbent.seconds_left:
            return
        if search.nways > MANY_WAYS and incumbent.closed(GOOD):
            return
        incumbent.tell()
        search_stage(incumbent, i, search, settings, EFFORT, SHARE)
