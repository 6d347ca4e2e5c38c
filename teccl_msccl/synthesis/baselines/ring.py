"""Ring: every chunk goes round from its owner, one rank a step (Patarasuk and Yuan, JPDC 2009; NCCL)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...topology.model import Topology
from .plan import Baseline, Hop, Team
from .rings import find_rings


def _round(topology: Topology, team: Team) -> Iterator[Hop]:
    """A share's chunks take the rings in turns. N − 1 steps."""
    rings = find_rings(topology, team.members)
    size = len(team.members)
    for owner, chunks in team.shares().items():
        for i, chunk in enumerate(chunks):
            ring = rings[i % len(rings)]
            begin = ring.index(owner)
            for step in range(size - 1):
                yield Hop(step, chunk, ring[(begin + step) % size], ring[(begin + step + 1) % size])


def _rings(topology: Topology, teams: Sequence[Team]) -> int:
    return max(len(find_rings(topology, team.members)) for team in teams)


RING = Baseline("ring", ("allgather", "reduce_scatter", "allreduce", "broadcast", "reduce"), (_round,), pieces=_rings)
