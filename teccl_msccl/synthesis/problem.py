"""What has to be searched for a collective: one copying stage, or two for allreduce, and how they make the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm

from ..collective.demand import Demand, Group, demand_for
from ..errors import InputError, whole
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from .halves import gathered, gathering, in_blocks, spreading
from .mirror import chained, mirrored

#: Chunk counts worth trying: small ones for latency, multiples of 2 and 3 to fill links of 1:2 and 1:3 bandwidth.
CHUNK_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
#: A rooted collective pipelines its chunks down trees, so more of them help.
ROOTED_CHUNK_COUNTS = (*CHUNK_COUNTS, 128, 192, 256, 384)
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
    """A collective of a size on a topology. `demand(c)` is the whole's demand with c chunks per rank.

    With `groups` of ranks each has the collective, of that size, at once; `own` is a demand that no name and size
    tell (an alltoallv's, a custom one), to be split.
    """

    topology: Topology
    collective: str
    size_bytes: float
    root: int = 0
    groups: tuple[Group, ...] = ()
    own: Demand | None = None

    def __post_init__(self) -> None:
        """Raise `InputError` for a root that is no rank or a topology with nobody to talk to."""
        if not 0 <= whole("root", self.root) < self.topology.nranks:
            raise InputError(
                f"root {self.root} is not a rank of {self.topology.name}; use 0..{self.topology.nranks - 1}"
            )
        if self.topology.nranks < 2:
            raise InputError(f"{self.topology.name}: has one GPU; a collective needs at least two")

    def demand(self, chunks_per_rank: int) -> Demand:
        """The demand with `chunks_per_rank` chunks of every rank's share."""
        sharers = lcm(*(len(group.ranks) for group in self.groups)) if self.groups else self.topology.nranks
        return self.split(chunks_per_rank * (sharers if self.collective == "allreduce" else 1))

    def split(self, nchunks: int) -> Demand:
        """The demand with `nchunks` chunks per share (see `Demand`)."""
        if self.own is not None:
            return self.own.split(nchunks)
        return demand_for(self.collective, self.topology.nranks, self.size_bytes, nchunks, self.root, self.groups)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The searches whose schedules `assemble` puts together."""
        n, size, root = self.topology.nranks, self.size_bytes, self.root
        backwards = self.topology.reversed()
        if not self.named:
            return tuple(self._halves())

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
        if not self.named:
            return self._joined(parts, self.split(c))
        match self.collective:
            case "reduce_scatter" | "reduce":
                return mirrored(parts[0], self.topology, self.demand(c))
            case "allreduce":
                scatter = demand_for("reduce_scatter", self.topology.nranks, self.size_bytes, c)
                return chained(mirrored(parts[0], self.topology, scatter), parts[1], self.demand(c))
            case _:
                return parts[0]

    @property
    def named(self) -> bool:
        """Whether it is a collective of all ranks, told by its name."""
        return not self.groups and self.own is None

    def _halves(self) -> list[Stage]:
        """Any demand: what is reduced is gathered, backwards, and spread with what is copied."""
        once = self.demand(1)
        if not once.reducing:
            return [Stage(self.topology, self.demand)]
        stages = [Stage(self.topology.reversed(), lambda c: gathering(d := self.demand(c), in_blocks(d)))]
        if _moves(spreading(once, in_blocks(once))):
            stages.append(Stage(self.topology, lambda c: spreading(d := self.demand(c), in_blocks(d))))
        return stages

    def _joined(self, parts: Sequence[Schedule], demand: Demand) -> Schedule:
        if not demand.reducing:
            return parts[0]
        reduced = mirrored(parts[0], self.topology, gathered(demand, in_blocks(demand)))
        if len(parts) == 1:
            return Schedule(self.topology, demand, reduced.sends, reduced.finish_us)
        return chained(reduced, parts[1], demand)

    def chunk_counts(self) -> tuple[int, ...]:
        """Chunks per rank worth trying: pieces of at least 16 bytes, in files that a runtime can hold."""
        counts = ROOTED_CHUNK_COUNTS if self.collective in ("broadcast", "reduce") else CHUNK_COUNTS
        once = self.demand(1)
        steps, largest = self._steps(once), max((chunk.bytes for chunk in once.chunks), default=0.0)
        usable = [c for c in counts if c * steps <= _STEPS_PER_RANK and largest / c >= _SMALLEST_CHUNK]
        return tuple(usable) or (1,)

    def _steps(self, once: Demand) -> int:
        """About how many steps the busiest rank takes for each chunk that its share is split in: what it sends and
        receives, relayed data included."""
        if not self.named:
            touched = Counter(rank for k in once.chunks for rank in {*k.origin, *k.want})
            return 3 * max(touched.values(), default=0)
        n = self.topology.nranks
        relays = 3 if self.collective in ("alltoall", "gather", "scatter") else 1
        peers = {"allreduce": 4 * (n - 1), "broadcast": 4, "reduce": 4}.get(self.collective, 2 * (n - 1))
        return peers * relays


def _moves(demand: Demand) -> bool:
    return any(set(chunk.want) - set(chunk.origin) for chunk in demand.chunks)
