"""Epochs: a demand on a topology in whole numbers, as TE-CCL's formulation needs it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor

from ..collective.demand import Demand
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from ..topology.paths import Path, direct_paths

_EPSILON = 1e-9


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
        return {
            link.id: max(1, floor(self.tau_us / link.beta_us(self.chunk_bytes) + _EPSILON))
            for link in self.topology.links
        }

    @cached_property
    def distance(self) -> list[list[float]]:
        """Least epochs to bring a chunk from GPU to GPU, store and forward (inf: no way)."""
        n = self.topology.nranks
        distance = [[0.0 if i == j else float("inf") for j in range(n)] for i in range(n)]
        for path, epochs in zip(self.paths, self.arrival, strict=True):
            row = distance[path.src_rank]
            row[path.dst_rank] = min(row[path.dst_rank], epochs)
        for k in range(n):
            for i in range(n):
                for j in range(n):
                    distance[i][j] = min(distance[i][j], distance[i][k] + distance[k][j])
        return distance

    def discretized(self, schedule: Schedule) -> dict[tuple[int, int, int], int]:
        """The schedule's sends in epochs, in their order: (chunk, path, epoch) → 1. Paths by position."""
        number = {path.links: i for i, path in enumerate(self.paths)}
        at: dict[tuple[int, int], int] = {(c.id, rank): 0 for c in self.demand.chunks for rank in c.origin}
        started: dict[tuple[int, int], int] = defaultdict(int)  # (link, epoch) → sends
        placed = {}
        for send in sorted(schedule.sends, key=lambda send: send.start_us):
            path = number[send.path]
            source, target = self.paths[path].src_rank, self.paths[path].dst_rank
            epoch = at[send.chunk, source]
            while not self._fits(send.path, epoch, started):
                epoch += 1
            for link in send.path:
                started[link, epoch] += 1
            arrival = epoch + self.arrival[path]
            at[send.chunk, target] = min(at.get((send.chunk, target), arrival), arrival)
            placed[send.chunk, path, epoch] = 1
        return placed

    def _fits(self, links: tuple[int, ...], epoch: int, started: Mapping[tuple[int, int], int]) -> bool:
        return all(
            all(
                sum(started.get((link, e), 0) for e in range(first, first + self.span[link])) < self.capacity[link]
                for first in range(epoch - self.span[link] + 1, epoch + 1)
            )
            for link in links
        )


def finish_epoch(grid: EpochGrid, placed: Mapping[tuple[int, int, int], int]) -> int:
    """The epoch at whose beginning the last of the placed sends has arrived."""
    return max((epoch + grid.arrival[path] for _, path, epoch in placed), default=0)


def fine_epoch_us(topology: Topology, demand: Demand) -> float:
    """TE-CCL's fine epoch: a chunk's time on the fastest link; longer where α is over 200 of them (§4)."""
    nbytes = max(chunk.bytes for chunk in demand.chunks)
    fastest = min(link.beta_us(nbytes) for link in topology.links)
    return max(fastest, max(link.alpha_us for link in topology.links) / 200, 1e-6)


def coarse_epoch_us(topology: Topology, demand: Demand) -> float:
    """TE-CCL's coarse epoch: a chunk's time on the slowest link."""
    nbytes = max(chunk.bytes for chunk in demand.chunks)
    return max(fine_epoch_us(topology, demand), max(link.beta_us(nbytes) for link in topology.links))
