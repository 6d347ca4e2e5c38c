"""Demand: the chunks of a collective — who has them, who needs them, copied or reduced."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from ..errors import InputError

#: Collectives that combine contributions rather than copy them.
REDUCING = frozenset({"reduce_scatter", "allreduce", "reduce"})
#: Collectives with one distinguished rank.
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
#: Collectives whose size counts all ranks' shares, so that a chunk is size / (nranks · chunks per rank).
_SIZE_SPANS_RANKS = frozenset({"allgather", "reduce_scatter", "alltoall", "gather", "scatter"})
#: Chunks that a demand may have: far more than any file can hold.
MOST_CHUNKS = 4_000_000


@dataclass(frozen=True)
class Chunk:
    """A piece of data held by `origin` ranks and wanted by `want` ranks.

    With `reduce` every origin holds a contribution and `want` ranks need the reduction of them all.
    """

    id: int
    origin: tuple[int, ...]
    want: tuple[int, ...]
    bytes: float
    reduce: bool = False


@dataclass(frozen=True)
class Demand:
    """What a collective must move among `nranks` ranks.

    `size_bytes` counts as in nccl-tests (allgather, reduce_scatter, gather, scatter: the full buffer; alltoall,
    allreduce, broadcast, reduce: one rank's buffer). `nchunks` is the number of chunks per share: per rank for
    allgather, reduce_scatter, gather and scatter, per pair of ranks for alltoall, per buffer for the others.
    Chunk ids count 0, 1, 2… and give the place in the buffers (`teccl_msccl.program.placement`).
    """

    collective: str
    nranks: int
    chunks: tuple[Chunk, ...]
    nchunks: int
    size_bytes: float
    root: int | None = None

    def __post_init__(self) -> None:
        self.validate()

    @property
    def chunks_per_size(self) -> int:
        """How many chunks make up `size_bytes`."""
        return self.nchunks * (self.nranks if self.collective in _SIZE_SPANS_RANKS else 1)

    @cached_property
    def reducing(self) -> bool:
        """Whether any chunk is a reduction."""
        return any(chunk.reduce for chunk in self.chunks)

    def validate(self) -> None:
        """Raise `InputError` unless ids count from 0, ranks exist and sizes are usable."""
        if self.nchunks < 1:
            raise InputError(f"{self.collective}: {self.nchunks} chunks; use 1 or more")
        if not 0 <= self.size_bytes < math.inf:
            raise InputError(f"{self.collective}: size {self.size_bytes}; it must be finite, zero or more")
        for position, chunk in enumerate(self.chunks):
            where = f"{self.collective}: chunk {chunk.id}"
            if chunk.id != position:
                raise InputError(f"{where}: stands where chunk {position} is due; number chunks 0, 1, 2…")
            if not chunk.origin:
                raise InputError(f"{where}: nobody has it; give it an origin")
            if not chunk.reduce and len(chunk.origin) != 1:
                raise InputError(f"{where}: a chunk that is not reduced has one origin, not {len(chunk.origin)}")
            for rank in (*chunk.origin, *chunk.want):
                if not 0 <= rank < self.nranks:
                    raise InputError(f"{where}: no rank {rank} among 0..{self.nranks - 1}")
            for ranks in (chunk.origin, chunk.want):
                if len(set(ranks)) < len(ranks):
                    raise InputError(f"{where}: names a rank twice; name each once")
            if not 0 <= chunk.bytes < math.inf:
                raise InputError(f"{where}: {chunk.bytes} bytes; it must be finite, zero or more")

    def reversed(self) -> Demand:
        """The demand run backwards in time: copies become reductions and the other way round.

        Reversing every send of a schedule that meets this demand gives one that meets the original on the
        reversed topology (TE-CCL leaves reduce-scatter out; this is how ForestColl and others obtain it).
        A reduction that several ranks want (allreduce) has no such mirror.
        """
        return replace(self, chunks=tuple(_mirror(chunk) for chunk in self.chunks))

    def to_json(self) -> dict[str, Any]:
        """The design's JSON form."""
        return {"chunks": [chunk_to_json(chunk) for chunk in self.chunks]}


def chunk_to_json(chunk: Chunk) -> dict[str, Any]:
    """One chunk in the JSON of a Demand or a Schedule."""
    return {
        "id": chunk.id,
        "origin": list(chunk.origin),
        "want": list(chunk.want),
        "reduce": chunk.reduce,
        "bytes": chunk.bytes,
    }


def _mirror(chunk: Chunk) -> Chunk:
    if chunk.reduce and len(chunk.want) != 1:
        raise ValueError(f"chunk {chunk.id} is reduced for {len(chunk.want)} ranks: it has no mirror image")
    if chunk.reduce:
        return replace(chunk, origin=chunk.want, want=chunk.origin, reduce=False)
    return replace(chunk, origin=(*chunk.want,), want=chunk.origin, reduce=True)


# -- the collectives -----------------------------------------------------------------------------------------

_Pattern = list[tuple[tuple[int, ...], tuple[int, ...]]]


def _allgather(nranks: int, nchunks: int, root: int) -> _Pattern:
    everyone = tuple(range(nranks))
    return [((rank,), everyone) for rank in range(nranks) for _ in range(nchunks)]


def _reduce_scatter(nranks: int, nchunks: int, root: int) -> _Pattern:
    everyone = tuple(range(nranks))
    return [(everyone, (rank,)) for rank in range(nranks) for _ in range(nchunks)]


def _allreduce(nranks: int, nchunks: int, root: int) -> _Pattern:
    everyone = tuple(range(nranks))
    return [(everyone, everyone) for _ in range(nchunks)]


def _alltoall(nranks: int, nchunks: int, root: int) -> _Pattern:
    return [((src,), (dst,)) for src in range(nranks) for dst in range(nranks) for _ in range(nchunks)]


def _broadcast(nranks: int, nchunks: int, root: int) -> _Pattern:
    return [((root,), tuple(range(nranks))) for _ in range(nchunks)]


def _reduce(nranks: int, nchunks: int, root: int) -> _Pattern:
    return [(tuple(range(nranks)), (root,)) for _ in range(nchunks)]


def _gather(nranks: int, nchunks: int, root: int) -> _Pattern:
    return [((rank,), (root,)) for rank in range(nranks) for _ in range(nchunks)]


def _scatter(nranks: int, nchunks: int, root: int) -> _Pattern:
    return [((root,), (rank,)) for rank in range(nranks) for _ in range(nchunks)]


COLLECTIVES: Mapping[str, Callable[[int, int, int], _Pattern]] = MappingProxyType(
    {
        "allgather": _allgather,
        "reduce_scatter": _reduce_scatter,
        "allreduce": _allreduce,
        "alltoall": _alltoall,
        "broadcast": _broadcast,
        "reduce": _reduce,
        "gather": _gather,
        "scatter": _scatter,
    }
)


#: Every accepted name of a collective, in lower case, and the design's spelling of it.
SPELLINGS: Mapping[str, str] = MappingProxyType(
    {**{name: name for name in COLLECTIVES}, "reducescatter": "reduce_scatter"}
)


def collective_named(name: str) -> str:
    """The design's spelling of a collective's name ("reducescatter" is accepted). Raises `InputError`."""
    if name.lower() not in SPELLINGS:
        raise InputError(f"unknown collective {name!r}; use {', '.join(COLLECTIVES)}")
    return SPELLINGS[name.lower()]


@lru_cache(maxsize=4)  # an alltoall among a thousand takes seconds to write down
def demand_for(collective: str, nranks: int, size_bytes: float, nchunks: int = 1, root: int = 0) -> Demand:
    """The Demand of a named collective.

    `size_bytes` follows nccl-tests and need not be divisible; `nchunks` is per share (see `Demand`).
    """
    collective = collective_named(collective)
    if nchunks < 1:
        raise InputError(f"{nchunks} chunks; use 1 or more")
    if not 0 <= root < nranks:
        raise InputError(f"root {root} is not a rank; use 0..{nranks - 1}")
    pattern = COLLECTIVES[collective]
    if nchunks * len(pattern(nranks, 1, root)) > MOST_CHUNKS:
        raise InputError(f"{nchunks} chunks are too many among {nranks} ranks; use fewer ({MOST_CHUNKS} in all)")
    per_size = nchunks * (nranks if collective in _SIZE_SPANS_RANKS else 1)
    chunks = tuple(
        Chunk(id, origin, want, size_bytes / per_size, collective in REDUCING)
        for id, (origin, want) in enumerate(pattern(nranks, nchunks, root))
    )
    return Demand(collective, nranks, chunks, nchunks, size_bytes, root if collective in ROOTED else None)
