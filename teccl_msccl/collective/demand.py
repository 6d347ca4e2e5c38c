"""Demand: the chunks of a collective — who has them, who needs them, copied or reduced."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from ..errors import InputError, unknown
from .size import MOST_BYTES

#: Collectives that combine contributions rather than copy them.
REDUCING = frozenset({"reduce_scatter", "allreduce", "reduce"})
#: Collectives with one distinguished rank.
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
#: Collectives whose size counts all ranks' shares, so that a chunk is size / (nranks · chunks per rank).
_SIZE_SPANS_RANKS = frozenset({"allgather", "reduce_scatter", "alltoall", "gather", "scatter"})
#: Demands that no rank count and size describe: a traffic matrix (`--matrix`), a list of chunks (`--demand`).
GIVEN = ("alltoallv", "custom")
#: Chunks that a demand may have: far more than any file can hold.
MOST_CHUNKS = 4_000_000


@dataclass(frozen=True)
class Chunk:
    """A piece of data held by `origin` ranks and wanted by `want` ranks.

    With `reduce` every origin holds a contribution and `want` ranks need the reduction of them all. `group` is the
    position of its group in `Demand.groups`, where there are any.
    """

    id: int
    origin: tuple[int, ...]
    want: tuple[int, ...]
    bytes: float
    reduce: bool = False
    group: int = 0


@dataclass(frozen=True)
class Group:
    """Ranks with a collective of their own, while others have theirs on the same links (a tenant, a TP or DP group).

    Where groups contend, chunks of greater `weight` go first. `confined`: the data stays on these ranks' GPUs; else
    others may relay it.
    """

    ranks: tuple[int, ...]
    weight: float = 1.0
    confined: bool = True


@dataclass(frozen=True)
class Demand:
    """What a collective must move among `nranks` ranks.

    `size_bytes` counts as in nccl-tests (allgather, reduce_scatter, gather, scatter: the full buffer; alltoall,
    allreduce, broadcast, reduce: one rank's buffer). `nchunks` is the number of chunks per share: per rank for
    allgather, reduce_scatter, gather and scatter, per pair of ranks for alltoall, per buffer for the others.
    Chunk ids count 0, 1, 2… and give the place in the buffers (`teccl_msccl.program.placement`). With `groups` each of
    them has the collective: `size_bytes`, `nchunks` and `root` (a position in the group) are each group's own, chunks
    follow group by group.
    """

    collective: str
    nranks: int
    chunks: tuple[Chunk, ...]
    nchunks: int
    size_bytes: float
    root: int | None = None
    groups: tuple[Group, ...] = ()

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

    @cached_property
    def copy_free(self) -> bool:
        """Whether every chunk goes to one rank at most (alltoall, gather, scatter): then it is a flow."""
        return not any(chunk.reduce or len(set(chunk.want) - set(chunk.origin)) > 1 for chunk in self.chunks)

    def group_of(self, chunk: Chunk) -> Group:
        """The group that `chunk` is of; without groups that of all ranks."""
        return self.groups[chunk.group] if self.groups else Group(tuple(range(self.nranks)), confined=False)

    def of_group(self, number: int) -> Demand:
        """What group `number` alone wants, its ranks counted 0, 1, 2… in their order."""
        place = {rank: i for i, rank in enumerate(self.groups[number].ranks)}
        mine = [chunk for chunk in self.chunks if chunk.group == number]
        chunks = tuple(
            replace(
                chunk,
                id=id,
                group=0,
                origin=tuple(place[r] for r in chunk.origin),
                want=tuple(place[r] for r in chunk.want),
            )
            for id, chunk in enumerate(mine)
        )
        return replace(self, nranks=len(place), chunks=chunks, groups=())

    def holders(self, chunk: Chunk) -> frozenset[int] | None:
        """The ranks that may hold `chunk`; None: all."""
        return self._confined.get(chunk.group)

    @cached_property
    def _confined(self) -> Mapping[int, frozenset[int]]:
        return {i: frozenset(group.ranks) for i, group in enumerate(self.groups) if group.confined}

    def split(self, nchunks: int) -> Demand:
        """Every chunk in pieces: the largest in `nchunks`, the others in as few as make none larger than those."""
        if nchunks < 1:
            raise InputError(f"{nchunks} chunks; use 1 or more")
        piece = max((chunk.bytes for chunk in self.chunks), default=0.0) / nchunks
        counts = [max(1, math.ceil(c.bytes / piece * (1 - 1e-9))) if piece > 0 else nchunks for c in self.chunks]
        if sum(counts) > MOST_CHUNKS:
            raise InputError(f"{nchunks} chunks are too many here; use fewer ({MOST_CHUNKS} in all)")
        pieces = ((chunk, count) for chunk, count in zip(self.chunks, counts, strict=True) for _ in range(count))
        numbered = tuple(replace(c, id=id, bytes=c.bytes / count) for id, (c, count) in enumerate(pieces))
        return replace(self, chunks=numbered, nchunks=self.nchunks * nchunks)

    def validate(self) -> None:
        """Raise `InputError` unless ids count from 0, ranks exist and sizes are usable."""
        if self.nchunks < 1:
            raise InputError(f"{self.collective}: {self.nchunks} chunks; use 1 or more")
        if not 0 <= self.size_bytes <= MOST_BYTES:
            raise InputError(
                f"{self.collective}: size {self.size_bytes}; it must be zero or more, at most {MOST_BYTES:g}"
            )
        self._validate_groups()
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
            if not 0 <= chunk.group < max(1, len(self.groups)):
                raise InputError(f"{where}: there is no group {chunk.group}; count them 0, 1, 2…")
            outside = self._outsiders(chunk)
            if outside:
                raise InputError(f"{where}: rank {outside[0]} is not in its group")
            if not 0 <= chunk.bytes <= MOST_BYTES:
                raise InputError(f"{where}: {chunk.bytes} bytes; it must be zero or more, at most {MOST_BYTES:g}")

    def _validate_groups(self) -> None:
        for i, group in enumerate(self.groups):
            where = f"{self.collective}: group {i}"
            if len(set(group.ranks)) < len(group.ranks):
                twice = next(rank for rank in group.ranks if group.ranks.count(rank) > 1)
                raise InputError(f"{where}: names rank {twice} twice; name each once")
            for rank in group.ranks:
                if not 0 <= rank < self.nranks:
                    raise InputError(f"{where}: no rank {rank} among 0..{self.nranks - 1}")
            if len(group.ranks) < 2:
                raise InputError(f"{where}: has {len(group.ranks)} rank(s); a collective needs at least two")
            if not 0 < group.weight < math.inf:
                raise InputError(f"{where}: weight {group.weight}; it must be finite and more than zero")

    def _outsiders(self, chunk: Chunk) -> list[int]:
        members = self._members[chunk.group] if self.groups else None
        return [] if members is None else sorted({*chunk.origin, *chunk.want} - members)

    @cached_property
    def _members(self) -> tuple[frozenset[int], ...]:
        return tuple(frozenset(group.ranks) for group in self.groups)

    def reversed(self) -> Demand:
        """The demand run backwards in time: copies become reductions and the other way round.

        Reversing every send of a schedule that meets this demand gives one that meets the original on the
        reversed topology (TE-CCL leaves reduce-scatter out; this is how ForestColl and others obtain it).
        A reduction that several ranks want (allreduce) has no such mirror.
        """
        return replace(self, chunks=tuple(_mirror(chunk) for chunk in self.chunks))

    def to_json(self) -> dict[str, Any]:
        """The design's JSON form."""
        chunks = [chunk_to_json(chunk) for chunk in self.chunks]
        return {
            **({"groups": [group_to_json(group) for group in self.groups]} if self.groups else {}),
            "chunks": chunks,
        }


def chunk_to_json(chunk: Chunk) -> dict[str, Any]:
    """One chunk in the JSON of a Demand or a Schedule."""
    return {
        "id": chunk.id,
        "origin": list(chunk.origin),
        "want": list(chunk.want),
        "reduce": chunk.reduce,
        "bytes": chunk.bytes,
        **({"group": chunk.group} if chunk.group else {}),
    }


def group_to_json(group: Group) -> dict[str, Any]:
    """One group in the JSON of a Demand or a Schedule."""
    return {"ranks": list(group.ranks), "weight": group.weight, "confined": group.confined}


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
    plain = str(name).lower().replace("-", "_")
    if plain in GIVEN:
        return plain
    if plain not in SPELLINGS:
        raise unknown("collective", name, (*COLLECTIVES, *GIVEN), meant=SPELLINGS)
    return SPELLINGS[plain]


@lru_cache(maxsize=4)  # an alltoall among a thousand takes seconds to write down
def demand_for(
    collective: str,
    nranks: int,
    size_bytes: float,
    nchunks: int = 1,
    root: int = 0,
    groups: tuple[Group, ...] = (),
) -> Demand:
    """The Demand of a named collective among `nranks` ranks, or in each of `groups` of them.

    `size_bytes` follows nccl-tests and need not be divisible; `nchunks` is per share (see `Demand`).
    """
    collective = collective_named(collective)
    if collective in GIVEN:
        raise InputError(
            f"{collective} is not told by its name: give its --{'matrix' if collective == 'alltoallv' else 'demand'}"
        )
    if nchunks < 1:
        raise InputError(f"{nchunks} chunks; use 1 or more")
    pattern = COLLECTIVES[collective]
    chunks: list[Chunk] = []
    for number, group in enumerate(groups or [Group(tuple(range(nranks)))]):
        n, ranks = len(group.ranks), group.ranks
        if not 0 <= root < n:
            raise InputError(f"root {root} is not a rank{' of group ' + str(number) if groups else ''}; use 0..{n - 1}")
        if len(chunks) + nchunks * len(pattern(n, 1, root)) > MOST_CHUNKS:
            raise InputError(f"{nchunks} chunks are too many among {n} ranks; use fewer ({MOST_CHUNKS} in all)")
        nbytes = size_bytes / (nchunks * (n if collective in _SIZE_SPANS_RANKS else 1))
        for origin, want in pattern(n, nchunks, root):
            if groups:
                origin, want = (tuple(ranks[i] for i in places) for places in (origin, want))
            chunks.append(Chunk(len(chunks), origin, want, nbytes, collective in REDUCING, number))
    rooted = root if collective in ROOTED else None
    return Demand(collective, nranks, tuple(chunks), nchunks, size_bytes, rooted, groups)
