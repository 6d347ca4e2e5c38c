"""What has to be searched for a collective: one copying stage, or two for allreduce, and how they make the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..collective.demand import Demand, demand_for
from ..errors import InputError
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from .mirror import chained, mirrored

#: Chunk counts worth trying: small ones for latency, multiples of 2 and 3 to fill links of 1:2 and 1:3 bandwidth.
CHUNK_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
#: A rooted collective pipelines its chunks down a tree, so more of them help.
ROOTED_CHUNK_COUNTS = (*CHUNK_COUNTS, 32, 48, 64)
#: Steps a rank's file may hold, less threadblocks, waits and a margin.
_STEPS_PER_RANK = 3000
_SMALLEST_CHUNK = 16


@dataclass(frozen=True)
class Stage:
    """A copying collective to be searched on `topology`: `demand(c)` for c chunks per share."""

    topology: Topology
    demand: Callable[[int], Demand]


@dataclass(frozen=True)
class Problem:
    """A collective of a size on a topology. `demand(c)` is the whole's demand with c chunks per rank."""

    topology: Topology
    collective: str
    size_bytes: float
    root: int = 0

    def __post_init__(self) -> None:
        """Raise `InputError` for a root that is no rank or a topology with nobody to talk to."""
        if not 0 <= self.root < self.topology.nranks:
            raise InputError(
                f"root {self.root} is not a rank of {self.topology.name}; use 0..{self.topology.nranks - 1}"
            )
        if self.topology.nranks < 2:
            raise InputError(f"{self.topology.name}: has one GPU; a collective needs at least two")

    def demand(self, chunks_per_rank: int) -> Demand:
        """The demand with `chunks_per_rank` chunks of every rank's share."""
        share = chunks_per_rank * (self.topology.nranks if self.collective == "allreduce" else 1)
        return self.split(share)

    def split(self, nchunks: int) -> Demand:
        """The demand with `nchunks` chunks per share (see `Demand`)."""
        return demand_for(self.collective, self.topology.nranks, self.size_bytes, nchunks, self.root)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The searches whose schedules `assemble` puts together."""
        n, size, root = self.topology.nranks, self.size_bytes, self.root
        backwards = self.topology.reversed()

        def copying(name: str) -> Callable[[int], Demand]:
            return lambda c: demand_for(name, n, size, c, root)

        match self.collective:
            case "reduce_scatter":
                return (Stage(backwards, copying("allgather")),)
            case "reduce":
                return (Stage(backwards, copying("broadcast")),)
            case "allreduce":
                return (Stage(backwards, copying("allgather")), Stage(self.topology, copying("allgather")))
            case name:
                return (Stage(self.topology, copying(name)),)

    def assemble(self, parts: Sequence[Schedule]) -> Schedule:
        """The collective's schedule from one schedule per stage, all with the same number of chunks."""
        c = parts[0].demand.nchunks
        match self.collective:
            case "reduce_scatter" | "reduce":
                return mirrored(parts[0], self.topology, self.demand(c))
            case "allreduce":
                scatter = demand_for("reduce_scatter", self.topology.nranks, self.size_bytes, c)
                return chained(mirrored(parts[0], self.topology, scatter), parts[1], self.demand(c))
            case _:
                return parts[0]

    def chunk_counts(self) -> tuple[int, ...]:
        """Chunks per rank worth trying: pieces of at least 16 bytes, in files that a runtime can hold."""
        counts = ROOTED_CHUNK_COUNTS if self.collective in ("broadcast", "reduce") else CHUNK_COUNTS
        usable = [c for c in counts if self._steps(c) <= _STEPS_PER_RANK and self._chunk_bytes(c) >= _SMALLEST_CHUNK]
        return tuple(usable) or (1,)

    def _chunk_bytes(self, c: int) -> float:
        return self.size_bytes / self.demand(c).chunks_per_size

    def _steps(self, c: int) -> float:
        """About how many steps the busiest rank takes: what it sends and receives, relayed data included."""
        n = self.topology.nranks
        relays = 3 if self.collective in ("alltoall", "gather", "scatter") else 1
        peers = {"allreduce": 4 * (n - 1), "broadcast": n, "reduce": n}.get(self.collective, 2 * (n - 1))
        return float(c * peers * relays)
