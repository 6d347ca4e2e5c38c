"""Recursive doubling, and its mirror image recursive halving (Thakur, Rabenseifner and Gropp, IJHPCA 2005)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ...topology.model import Topology
from .plan import Baseline, Hop, Team


def _nearest_first(topology: Topology, team: Team) -> Iterator[Hop]:
    """Partners 1, 2, 4… ranks away: little goes near, most goes far."""
    return _doubling(team, farthest_first=False)


def _farthest_first(topology: Topology, team: Team) -> Iterator[Hop]:
    """Partners …, 4, 2, 1 ranks away: little goes far, most goes near."""
    return _doubling(team, farthest_first=True)


def _doubling(team: Team, farthest_first: bool) -> Iterator[Hop]:
    """log₂ N steps in which partners swap all that they have. Where N is no power of two, each rank beyond the last
    one first gives its share to a partner within it, and gets everything from there in the end."""
    members = team.members
    held = {rank: list(chunks) for rank, chunks in team.shares().items()}
    size = 1 << (len(members).bit_length() - 1)
    steps = count()

    def swap(pairs: list[tuple[int, int]]) -> Iterator[Hop]:
        """All (from, to) at once."""
        step = next(steps)
        hops = []
        for src, to in pairs:
            known = set(held[to])
            hops += [Hop(step, chunk, src, to) for chunk in held[src] if chunk not in known]
        for hop in hops:
            held[hop.dst].append(hop.chunk)
        yield from hops

    beyond = [(members[i], members[i - size]) for i in range(size, len(members))]
    if beyond:
        yield from swap(beyond)
    bits = range(size.bit_length() - 1)
    for bit in reversed(bits) if farthest_first else bits:
        yield from swap([(members[i], members[i ^ (1 << bit)]) for i in range(size)])
    if beyond:
        yield from swap([(within, rank) for rank, within in beyond])


RECURSIVE_DOUBLING = Baseline(
    "recursive-doubling", ("allgather", "reduce_scatter", "allreduce"), (_nearest_first, _farthest_first)
)
