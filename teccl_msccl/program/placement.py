"""Where chunks live: their places in the user's buffers, and which places are one when a call is in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..collective.demand import Chunk, Demand

MODES = ("inplace", "outofplace")


class Place(NamedTuple):
    """One chunk's worth of a rank's buffer: "i" input, "o" output, "s" scratch."""

    buffer: str
    offset: int


@dataclass(frozen=True)
class Layout:
    """The buffers of a collective as NCCL lays them out (MSCCL XML reference §5, §7)."""

    demand: Demand

    def input_place(self, chunk: Chunk, rank: int) -> Place:
        """Where `rank`, an origin of `chunk`, finds its contribution."""
        demand, c = self.demand, self.demand.nchunks
        match demand.collective:
            case "allgather" | "gather":
                return Place("i", chunk.id % c)
            case "alltoall":
                return Place("i", chunk.id % (demand.nranks * c))
            case _:  # the chunks are the input buffer, in order
                return Place("i", chunk.id)

    def output_place(self, chunk: Chunk, rank: int) -> Place:
        """Where `rank`, which wants `chunk`, must find it."""
        demand, c = self.demand, self.demand.nchunks
        match demand.collective:
            case "reduce_scatter" | "scatter":
                return Place("o", chunk.id % c)
            case "alltoall":
                source = chunk.id // (demand.nranks * c)
                return Place("o", source * c + chunk.id % c)
            case _:  # the chunks are the output buffer, in order
                return Place("o", chunk.id)

    @property
    def chunks_per_loop(self) -> int:
        """The format's nchunksperloop. Runtimes count a gather or scatter by one rank's share (reference §5)."""
        demand = self.demand
        return demand.nchunks if demand.collective in ("gather", "scatter") else demand.chunks_per_size

    def sizes(self, rank: int) -> tuple[int, int]:
        """Input and output chunks of `rank`."""
        demand, c = self.demand, self.demand.nchunks
        everyone = demand.nranks * c
        match demand.collective:
            case "allgather":
                return c, everyone
            case "reduce_scatter":
                return everyone, c
            case "alltoall":
                return everyone, everyone
            case "gather":
                return c, everyone if rank == demand.root else 0
            case "scatter":
                return everyone if rank == demand.root else 0, c
            case _:
                return c, c

    def aliased(self, place: Place, rank: int) -> Place:
        """The memory that `place` is when the call is in place: NCCL's smaller buffer lies in the larger one."""
        demand, c = self.demand, self.demand.nchunks
        match demand.collective, place.buffer:
            case (("allgather" | "gather"), "i") if demand.root in (None, rank):
                return Place("o", rank * c + place.offset)
            case (("reduce_scatter" | "scatter"), "o") if demand.root in (None, rank):
                return Place("i", rank * c + place.offset)
            case (("alltoall" | "allreduce" | "broadcast" | "reduce"), "i"):
                return Place("o", place.offset)
        return place
