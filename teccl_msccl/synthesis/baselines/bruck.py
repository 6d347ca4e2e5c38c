"""Bruck: everything is everywhere after ⌈log₂ N⌉ steps, for any N (Bruck et al., IEEE TPDS 1997).

Its mirror image, a reduce_scatter in as many steps, is what NCCL calls PAT.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...topology.model import Topology
from .plan import Baseline, Hop, Team


def _doubling(topology: Topology, team: Team) -> Iterator[Hop]:
    """Allgather: in step k, rank i passes the shares of i … i + 2ᵏ − 1 to rank i − 2ᵏ."""
    members, shares, size = team.members, team.shares(), len(team.members)
    step, distance = 0, 1
    while distance < size:
        for i, rank in enumerate(members):
            for ahead in range(min(distance, size - distance)):
                for chunk in shares[members[(i + ahead) % size]]:
                    yield Hop(step, chunk, rank, members[i - distance])
        step, distance = step + 1, 2 * distance


def _bit_by_bit(topology: Topology, team: Team) -> Iterator[Hop]:
    """Alltoall: what has d ranks to go moves on by 2ᵏ in step k if d has bit k."""
    members, size = team.members, len(team.members)
    position = {rank: i for i, rank in enumerate(members)}
    for chunk in team.chunks:
        at, to = position[chunk.origin[0]], position[chunk.want[0]]
        distance = (to - at) % size
        for step in range(distance.bit_length()):
            if distance >> step & 1:
                onward = (at + (1 << step)) % size
                yield Hop(step, chunk.id, members[at], members[onward])
                at = onward


def _bruck(topology: Topology, team: Team) -> Iterator[Hop]:
    everyone = any(len(chunk.want) > 1 for chunk in team.chunks)
    return (_doubling if everyone else _bit_by_bit)(topology, team)


BRUCK = Baseline("bruck", ("allgather", "reduce_scatter", "allreduce", "alltoall", "alltoallv"), (_bruck,))
