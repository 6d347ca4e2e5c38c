"""Direct: every owner sends its chunks itself to everyone who wants them; of N ranks, the i-th next in step i."""

from __future__ import annotations

from collections.abc import Iterator

from ...collective.demand import COLLECTIVES, GIVEN
from ...topology.model import Topology
from .plan import Baseline, Hop, Team


def _rotation(topology: Topology, team: Team) -> Iterator[Hop]:
    position = {rank: i for i, rank in enumerate(team.members)}
    for chunk in team.chunks:
        (owner,) = chunk.origin
        for want in chunk.want:
            if want != owner:
                yield Hop((position[want] - position[owner]) % len(position), chunk.id, owner, want)


DIRECT = Baseline("direct", (*COLLECTIVES, *GIVEN), (_rotation,))
