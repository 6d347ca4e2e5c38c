"""Epochs: a demand on a topology in whole numbers, as TE-CCL's formulation needs it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from math import ceil, floor

import numpy as np

from ..collective.demand import Chunk, Demand
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from ..topology.paths import Path, direct_paths

_EPSILON = 1e-9
#: What may be asked for: `EpochGrid`s as fine as the fastest link's chunks, as coarse as the slowest link's, or both.
EPOCHS = ("fast", "slow", "auto")
#: Grids that differ by less than this share are one.
ALIKE = 0.01


@dataclass(frozen=True)
class EpochGrid:
    """Time in epochs of `tau_us`, for chunks of one size.

    A send on a path that starts in epoch k is there at the beginning of epoch k + arrival[path]. A link takes
    `capacity[link]` sends an epoch; one that is slower than a chunk per epoch takes one in any `span[link]`
    consecutive epochs (TE-CCL, arXiv 2305.13479, §3 and appendix).
    """

    topology: Topology
    demand: Demand
    tau_us: float

    @property
    def chunk_bytes(self) -> float:
        return max((chunk.bytes for chunk in self.demand.chunks), default=0.0)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        return direct_paths(self.topology)

    def epochs(self, time_us: float) -> int:
        """Epochs that cover `time_us`, at least one."""
        return max(1, ceil(time_us / self.tau_us - _EPSILON))

    @cached_property
    def arrival(self) -> tuple[int, ...]:
        """Per path: epochs until a chunk is there."""
        return tuple(self.epochs(p.alpha_us + self.chunk_bytes / (p.bandwidth_GBps * 1e3)) for p in self.paths)

    @cached_property
    def span(self) -> Mapping[int, int]:
        """Per link: epochs that one chunk occupies."""
        return {link.id: self.epochs(link.beta_us(self.chunk_bytes)) for link in self.topology.links}

    @cached_property
    def capacity(self) -> Mapping[int, int]:
        """Per link: chunks that fit in `span` epochs."""
        return {link.id: self._capacity(link.beta_us(self.chunk_bytes)) for link in self.topology.links}

    def _capacity(self, beta_us: float) -> int:
        most = len(self.demand.chunks)
        return most if beta_us * most <= self.tau_us else max(1, floor(self.tau_us / beta_us + _EPSILON))

    @cached_property
    def distance(self) -> list[list[float]]:
        """Least epochs to bring a chunk from GPU to GPU, store and forward (inf: no way)."""
        n = self.topology.nranks
        distance = np.where(np.eye(n, dtype=bool), 0.0, np.inf)
        for path, epochs in zip(self.paths, self.arrival, strict=True):
            distance[path.src_rank, path.dst_rank] = min(distance[path.src_rank, path.dst_rank], epochs)
        for k in range(n):
            distance = np.minimum(distance, distance[:, k, None] + distance[k])
        return [[float(epochs) for epochs in row] for row in distance]

    def discretized(self, schedule: Schedule) -> dict[tuple[int, int, int], int]:
        """The schedule's sends in epochs, in their order: (chunk, path, epoch) → 1. Paths by position."""
        number = {path.links: i for i, path in enumerate(self.paths)}
        at: dict[tuple[int, int], int] = {(c.id, rank): 0 for c in self.demand.chunks for rank in c.origin}
        started: dict[int, list[int]] = defaultdict(list)  # link → epochs in which sends start, ascending
        placed = {}
        for send in sorted(schedule.sends, key=lambda send: send.start_us):
            path = number[send.path]
            source, target = self.paths[path].src_rank, self.paths[path].dst_rank
            epoch = self._first_free(send.path, at[send.chunk, source], started)
            for link in send.path:
                insort(started[link], epoch)
            arrival = epoch + self.arrival[path]
            at[send.chunk, target] = min(at.get((send.chunk, target), arrival), arrival)
            placed[send.chunk, path, epoch] = 1
        return placed

    def _first_free(self, links: tuple[int, ...], epoch: int, started: Mapping[int, list[int]]) -> int:
        """The first epoch from `epoch` on in which every link has room for one more send."""
        settled = 0
        while settled < len(links):
            link = links[settled]
            starts, span = started[link], self.span[link]
            first = bisect_left(starts, epoch - span + 1)
            if bisect_right(starts, epoch + span - 1) - first >= self.capacity[link]:
                epoch, settled = starts[first] + span, 0
            else:
                settled += 1
        return epoch

    def least_epochs(self) -> int:
        """A lower bound on the epochs of any schedule on this grid: the farthest chunk, and for every GPU how soon
        its links can take what it needs and what it must give."""
        wanted = [(chunk, set(chunk.want) - set(chunk.origin)) for chunk in self.demand.chunks]
        farthest = max((min(self.distance[o][w] for o in c.origin) for c, want in wanted for w in want), default=0)
        ports = [
            self._filled(
                [(path.links[end], self.arrival[p]) for p, path in enumerate(self.paths) if rank == path_end(path)],
                sum(concerns(chunk, want, rank) for chunk, want in wanted),
            )
            for rank in range(self.topology.nranks)
            for end, path_end, concerns in _PORTS
        ]
        return max(1, int(farthest), *ports)

    def _filled(self, ways: list[tuple[int, int]], count: int) -> int:
        """The epochs in which `count` sends over the links of `ways`, (link, epochs until there), have arrived."""
        soonest: dict[int, int] = {}
        for link, arrival in ways:
            soonest[link] = min(arrival, soonest.get(link, arrival))
        queue = [(arrival, link, 1) for link, arrival in soonest.items()]
        heapify(queue)
        epoch = 0
        for _ in range(count if queue else 0):
            epoch, link, taken = queue[0]
            later = self.span[link] if taken % self.capacity[link] == 0 else 0
            heapreplace(queue, (epoch + later, link, taken + 1))
        return epoch


#: A GPU's two ports: which end of a path is its link there, whose rank that is, and which chunks must pass.
_PORTS: tuple[tuple[int, Callable[[Path], int], Callable[[Chunk, set[int], int], bool]], ...] = (
    (-1, lambda path: path.dst_rank, lambda chunk, want, rank: rank in want),
    (0, lambda path: path.src_rank, lambda chunk, want, rank: chunk.origin == (rank,) and bool(want)),
)


def finish_epoch(grid: EpochGrid, placed: Mapping[tuple[int, int, int], int]) -> int:
    """The epoch at whose beginning the last of the placed sends has arrived."""
    return max((epoch + grid.arrival[path] for _, path, epoch in placed), default=0)


def fast_epoch_us(topology: Topology, demand: Demand) -> float:
    """TE-CCL's fast epoch: a chunk's time on the fastest link; longer where α is over 200 of them (§4)."""
    nbytes = max(chunk.bytes for chunk in demand.chunks)
    fastest = min(link.beta_us(nbytes) for link in topology.links)
    return max(fastest, max(link.alpha_us for link in topology.links) / 200, 1e-6)


def slow_epoch_us(topology: Topology, demand: Demand) -> float:
    """TE-CCL's slow epoch: a chunk's time on the slowest link."""
    nbytes = max(chunk.bytes for chunk in demand.chunks)
    return max(fast_epoch_us(topology, demand), max(link.beta_us(nbytes) for link in topology.links))


def epochs_of(topology: Topology, demand: Demand, epochs: str) -> dict[str, float]:
    """The epochs of `EPOCHS` by name, in µs: of auto both, one where they are alike."""
    fast, slow = fast_epoch_us(topology, demand), slow_epoch_us(topology, demand)
    if epochs == "auto":
        return {"fast": fast} | ({"slow": slow} if slow > (1 + ALIKE) * fast else {})
    return {"fast": fast} if epochs == "fast" else {"slow": slow}
