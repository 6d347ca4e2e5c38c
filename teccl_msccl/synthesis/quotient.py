"""Quotient: a symmetric network as one of its equal parts sees it, so that one part's chunks are scheduled for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from .. import _core
from ..collective.demand import Demand
from ..errors import Refused
from ..schedule.schedule import Schedule, Send
from ..schedule.simulate import core_demand, core_network
from ..topology.model import Topology
from ..topology.translations import Indices, Translations

#: Sends beyond which only their order in time is tried.
MOST_DISPATCHED = 50_000
#: Which order near ties are searched in; the seeds take turns.
NOISES = (0.0, 0.05, 0.2, 0.5)

Path = tuple[int, ...]
Signature = tuple[tuple[float, ...], tuple[float, ...], tuple[Path, ...], tuple[Path, ...]]


@dataclass(frozen=True)
class QuotientSends:
    """Sends of part 0's chunks: the chunk, the way (see `Quotient`), start and estimated arrival in µs."""

    chunk: Indices
    way: Indices
    start_us: np.ndarray
    arrival_us: np.ndarray

    @property
    def finish_us(self) -> float:
        return float(self.arrival_us.max(initial=0.0))

    def rows(self) -> Iterator[tuple[int, int, float, float]]:
        """Chunk, way, start and arrival of every send, in order of start."""
        order = np.argsort(self.start_us, kind="stable")
        columns = (self.chunk, self.way, self.start_us, self.arrival_us)
        return zip(*(column[order].tolist() for column in columns), strict=True)


@dataclass(frozen=True, eq=False)
class Quotient:
    """The GPUs at `positions` of every part, and the `paths` from those of part 0 to any of them, all moved round.

    Whenever part 0 sends a chunk on a path, every part sends its own on the translated path: so one link of an orbit
    is busy when all are, and orbits stand for links. Way k · count + g is path k translated by g; GPU
    g · len(positions) + i is the i-th of part g. `shares`: how many others put the same load on an orbit.
    """

    translations: Translations
    positions: tuple[int, ...]
    paths: tuple[Path, ...]
    shares: Mapping[int, int]

    @property
    def nranks(self) -> int:
        return self.translations.count * len(self.positions)

    def split(self, way: int) -> tuple[int, int]:
        """The path and the translation that make a way."""
        return divmod(way, self.translations.count)

    @cached_property
    def _gpu_of(self) -> Mapping[int, int]:
        ranks = self.translations.ranks[:, self.positions].reshape(-1)
        return {rank: gpu for gpu, rank in enumerate(ranks.tolist())}

    @cached_property
    def ends(self) -> Indices:
        """Per path: the position it leaves from (as a number below len(positions)), the part and position it leads
        to. Shape (paths, 3)."""
        topology, width = self.translations.topology, len(self.positions)
        rows = []
        for path in self.paths:
            source = self._gpu_of[topology.rank_of[topology.link_by_id[path[0]].src]]
            target = self._gpu_of[topology.rank_of[topology.link_by_id[path[-1]].dst]]
            rows.append((source, target // width, target % width))
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    @cached_property
    def way_ends(self) -> tuple[Indices, Indices]:
        """The GPUs that every way joins."""
        width, table = len(self.positions), self.translations.table
        parts = np.arange(self.translations.count)
        sources = parts[None, :] * width + self.ends[:, :1]
        targets = table[:, self.ends[:, 1]].T * width + self.ends[:, 2:]
        return sources.reshape(-1), targets.reshape(-1)

    @cached_property
    def signature(self) -> Signature:
        """Bandwidth and α of the orbits in the order of their first use, each path's orbits, and where it leads.

        Quotients with the same signature have the same schedules. An orbit smaller than the group carries several
        parts' chunks at once, each at a share of its bandwidth.
        """
        topology, orbits = self.translations.topology, self.translations.link_orbits
        place_of = {link.id: place for place, link in enumerate(topology.links)}
        sizes = np.bincount(orbits, minlength=len(topology.links)).tolist()
        number: dict[int, int] = {}
        links = tuple(
            tuple(number.setdefault(int(orbits[place_of[id]]), len(number)) for id in path) for path in self.paths
        )
        load = [self.shares.get(orbit, 1) * self.translations.count / sizes[orbit] for orbit in number]
        bandwidth = tuple(topology.links[orbit].bandwidth_GBps / x for orbit, x in zip(number, load, strict=True))
        alpha = tuple(topology.links[orbit].alpha_us for orbit in number)
        return bandwidth, alpha, links, tuple(map(tuple, self.ends.tolist()))

    @cached_property
    def alike(self) -> list[list[int]]:
        """Per path those that lead from and to where it does at the same bandwidths and latencies, itself among
        them."""
        links = self.translations.topology.link_by_id
        figures = [tuple((links[id].bandwidth_GBps, links[id].alpha_us) for id in path) for path in self.paths]
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        keys = [(*ends, of) for ends, of in zip(self.ends.tolist(), figures, strict=True)]
        for k, key in enumerate(keys):
            groups[key].append(k)
        return [groups[key] for key in keys]

    @cached_property
    def sharing(self) -> float:
        """How many parts share a link of a path, at most, on average over the pairs that paths join, the best path of
        each: where it is 1 the whole takes exactly as long as the part."""
        places = {link.id: place for place, link in enumerate(self.translations.topology.links)}
        orbits = self.translations.link_orbits
        alike = self.translations.count / np.maximum(1, np.bincount(orbits, minlength=len(places)))
        least: dict[tuple[int, ...], float] = {}
        for path, ends in zip(self.paths, map(tuple, self.ends.tolist()), strict=True):
            shared = max(float(alike[orbits[places[id]]]) for id in path)
            least[ends] = min(shared, least.get(ends, inf))
        return sum(least.values()) / max(1, len(least))

    @cached_property
    def core(self) -> _core.Network:
        """What the core's searches take: every way, with orbits as links."""
        bandwidth, alpha, links, _ = self.signature
        sources, targets = (ends.reshape(len(self.paths), -1).tolist() for ends in self.way_ends)
        ways = [
            (source, target, list(links[k]))
            for k in range(len(self.paths))
            for source, target in zip(sources[k], targets[k], strict=True)
        ]
        return _core.Network(ranks=self.nranks, bandwidth_GBps=list(bandwidth), alpha_us=list(alpha), paths=ways)

    @cached_property
    def ways(self) -> list[Path]:
        """The paths of all ways."""
        return [moved for path in self.paths for moved in self.translations.lifted(path)]

    def searched(
        self, chunks: Sequence[tuple[float, int, Sequence[int]]], seed: int, deadline_us: float = inf
    ) -> QuotientSends:
        """A greedy schedule of part 0's chunks, (bytes, GPU that has it, GPUs that want it) each. Raises `Refused`."""
        try:
            found = _core.greedy(self.core, wanted(chunks), seed, NOISES[seed % len(NOISES)], deadline_us)
        except ValueError as error:
            raise Refused(f"{self.translations.topology.name}: {error}") from None
        return QuotientSends(*found)


def wanted(chunks: Sequence[tuple[float, int, Sequence[int]]]) -> _core.Demanded:
    """Part 0's chunks, (bytes, GPU that has it, GPUs that want it) each, as the core takes them."""
    return _core.Demanded(chunks=[(nbytes, False, [origin], list(want)) for nbytes, origin, want in chunks])


def shared_orbits(translations: Translations, groups: Sequence[Sequence[Path]]) -> dict[int, int]:
    """For each orbit of links how many of the groups of paths use it."""
    place_of = {link.id: place for place, link in enumerate(translations.topology.links)}
    shares: dict[int, int] = {}
    for group in groups:
        places = np.array(sorted({place_of[id] for path in group for id in path}), dtype=np.int64)
        for orbit in np.unique(translations.link_orbits[places]).tolist():
            shares[orbit] = shares.get(orbit, 0) + 1
    return shares


@dataclass(frozen=True)
class Timeline:
    """Sends as arrays: chunk, path (a number in `paths`), and the time that orders them."""

    paths: Sequence[Path]
    chunk: Indices
    path: Indices
    order_us: np.ndarray


def played(topology: Topology, demand: Demand, timeline: Timeline) -> Schedule:
    """The schedule in which every link serves the sends in the order of their times, or, if that is better, those
    first that are there and whose links are free."""
    order = np.argsort(timeline.order_us, kind="stable")
    used, numbers = np.unique(timeline.path[order], return_inverse=True)
    paths = [timeline.paths[path] for path in used.tolist()]
    network, wanted = core_network(topology, paths), core_demand(demand)
    chunks, ways = timeline.chunk[order].tolist(), numbers.tolist()
    found = _core.retime(network, wanted, chunks, ways)
    if len(chunks) <= MOST_DISPATCHED:
        priorities = (-timeline.order_us[order]).tolist()
        dispatched = _core.dispatch(network, wanted, chunks, ways, priorities)
        found = min(found, dispatched, key=lambda columns: float(columns[3].max(initial=0.0)))
    columns = zip(*(column.tolist() for column in found[:3]), strict=True)
    sends = tuple(Send(chunk, paths[way], start) for chunk, way, start in columns)
    return Schedule(topology, demand, sends, float(found[3].max(initial=0.0)))
