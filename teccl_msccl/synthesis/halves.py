"""A demand as copies: what is reduced is gathered at one rank (a copy, run backwards) and spread from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..collective.demand import Chunk, Demand

#: Where a reduced chunk is gathered.
Owner = Callable[[Chunk], int]


def gathering(demand: Demand, owner: Owner) -> Demand:
    """What is reduced, run backwards: from its owner to every origin. Other chunks stay where they are."""

    def turned(chunk: Chunk) -> Chunk:
        at = (owner(chunk),) if chunk.reduce else chunk.origin
        return replace(chunk, origin=at, want=chunk.origin if chunk.reduce else at, reduce=False)

    return replace(demand, collective="custom", chunks=tuple(map(turned, demand.chunks)))


def gathered(demand: Demand, owner: Owner) -> Demand:
    """The reductions alone, each wanted by its owner only."""
    chunks = (replace(c, want=(owner(c),)) if c.reduce else replace(c, want=c.origin) for c in demand.chunks)
    return replace(demand, collective="custom", chunks=tuple(chunks))


def spreading(demand: Demand, owner: Owner) -> Demand:
    """Copies, and what has been reduced at its owner on its way to those who want it."""
    chunks = (replace(c, origin=(owner(c),), reduce=False) if c.reduce else c for c in demand.chunks)
    return replace(demand, collective="custom", chunks=tuple(chunks))


def in_blocks(demand: Demand) -> Owner:
    """A chunk is gathered at the one rank that wants it; if several do, equal runs of such chunks at each in turn."""
    alike: dict[tuple[int, ...], int] = {}
    number = {}
    for chunk in demand.chunks:
        number[chunk.id] = alike.get(chunk.want, 0)
        alike[chunk.want] = number[chunk.id] + 1
    return lambda chunk: chunk.want[number[chunk.id] * len(chunk.want) // alike[chunk.want]]
