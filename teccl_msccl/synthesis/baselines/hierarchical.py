"""Hierarchical: between hosts among GPUs of the same place in theirs (a rail), and inside the hosts (NCCL's PXN and
MSCCL's hierarchical alltoall; Träff and Hunold, IEEE CLUSTER 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...collective.demand import COLLECTIVES
from ...errors import InputError
from ...topology.model import Topology
from .plan import Baseline, Hop, Planner, Team
from .rings import by_host, find_rings

#: More steps than any phase has.
_PHASE = 1_000_000


@dataclass(frozen=True)
class _Hosts:
    """A team's ranks, host by host; every host has as many."""

    topology: Topology
    ranks: Sequence[Sequence[int]]

    @classmethod
    def of(cls, topology: Topology, team: Team) -> _Hosts:
        ranks = by_host(topology, team.members)
        if len(ranks) < 2 or len({len(host) for host in ranks}) > 1:
            raise InputError(
                f"method hierarchical needs several hosts with as many GPUs each; {topology.name} has "
                f"{' + '.join(str(len(host)) for host in ranks)}; use ring, tree or direct"
            )
        return cls(topology, ranks)

    @property
    def size(self) -> int:
        return len(self.ranks[0])

    def place(self, rank: int) -> tuple[int, int]:
        """The rank's host, and its place there."""
        return next((h, host.index(rank)) for h, host in enumerate(self.ranks) if rank in host)


def _planner(between: str, inside: str) -> Planner:
    """`between` hosts and `inside` them: "ring" (from one to the next) or "direct" (straight to each)."""

    def plan(topology: Topology, team: Team) -> Iterator[Hop]:
        hosts = _Hosts.of(topology, team)
        wants = {chunk.id: chunk.want for chunk in team.chunks}
        owners = {owner: chunks for owner, chunks in team.shares().items() if chunks}
        for owner, chunks in owners.items():
            for number, chunk in enumerate(chunks):
                if len(wants[chunk]) == 1:
                    yield from _relayed(hosts, chunk, owner, wants[chunk][0])
                else:
                    rail = hosts.place(owner)[1] + (number if len(owners) == 1 else 0)
                    yield from _spread(hosts, chunk, owner, rail % hosts.size, number, between, inside)

    return plan


def _relayed(hosts: _Hosts, chunk: int, owner: int, want: int) -> Iterator[Hop]:
    """To the GPU of the owner's host that has the target's place, from there to the target."""
    (here, place), (there, rail) = hosts.place(owner), hosts.place(want)
    via = hosts.ranks[here][rail]
    if via != owner:
        yield Hop((rail - place) % hosts.size, chunk, owner, via)
    if via != want:
        yield Hop(_PHASE + (there - here) % len(hosts.ranks), chunk, via, want)


def _spread(hosts: _Hosts, chunk: int, owner: int, rail: int, number: int, between: str, inside: str) -> Iterator[Hop]:
    """Over `rail` (the owner's own; where one rank owns everything, each in turn) to every host, and inside each from
    there to everyone."""
    home, _ = hosts.place(owner)
    count = len(hosts.ranks)
    heads = [hosts.ranks[(home + i) % count][rail] for i in range(count)]
    if heads[0] != owner:
        yield Hop(0, chunk, owner, heads[0])
    yield from _passed(chunk, heads, between, 1)
    for head in (owner, *heads[1:]):
        members = tuple(hosts.ranks[hosts.place(head)[0]])
        rings = find_rings(hosts.topology, members) if inside == "ring" else (members,)
        ring = rings[number % len(rings)]
        begin = ring.index(head)
        yield from _passed(chunk, ring[begin:] + ring[:begin], inside, _PHASE)


def _passed(chunk: int, order: Sequence[int], way: str, step: int) -> Iterator[Hop]:
    """From the first of `order` to all others."""
    for i, rank in enumerate(order[1:]):
        yield Hop(step + i, chunk, order[i] if way == "ring" else order[0], rank)


def _rails(topology: Topology, teams: Sequence[Team]) -> int:
    """Where one rank owns everything, a chunk for every rail."""
    alone = [team for team in teams if sum(map(bool, team.shares().values())) == 1]
    return max((_Hosts.of(topology, team).size for team in alone), default=1)


HIERARCHICAL = Baseline(
    "hierarchical",
    (*COLLECTIVES, "alltoallv"),
    tuple(_planner(between, inside) for between in ("direct", "ring") for inside in ("direct", "ring")),
    pieces=_rails,
)
