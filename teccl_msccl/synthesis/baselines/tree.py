"""Double binary tree: each half of the data goes down a tree of its own, whose leaves are inner ranks of the other
(Sanders, Speck and Träff, Parallel Computing 2009; NCCL)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ...topology.model import Topology
from .plan import Baseline, Hop, Team
from .rings import find_rings

Blocks = list[tuple[int, ...]]


def _between_gpus(topology: Topology, team: Team) -> Iterator[Hop]:
    """On one host, binary trees of its GPUs."""
    return _down(topology, team, chained=False)


def _between_hosts(topology: Topology, team: Team) -> Iterator[Hop]:
    """On one host, chains, which is what is left of NCCL's trees there."""
    return _down(topology, team, chained=True)


def _down(topology: Topology, team: Team, chained: bool) -> Iterator[Hop]:
    """Every chunk goes from its owner down a tree; the chunks take the trees in turns."""
    trees = _trees(topology, [team])
    for i, chunk in enumerate(team.chunks):
        (owner,) = chunk.origin
        children = _children(topology, team.members, i % trees, owner, chained)
        level, step = [owner], 0
        while level:
            yield from (Hop(step, chunk.id, rank, child) for rank in level for child in children[rank])
            level, step = [child for rank in level for child in children[rank]], step + 1


def _children(
    topology: Topology, members: tuple[int, ...], number: int, root: int, chained: bool
) -> dict[int, list[int]]:
    """The `number`-th tree from `root`: between hosts a binary tree, inside a chain as the ring goes; on one host a
    binary tree of its GPUs, or such a chain."""
    rings = find_rings(topology, members)
    ring = rings[number // 2 % len(rings)]
    begin = ring.index(root)
    order = ring[begin:] + ring[:begin]
    blocks = _blocks(topology, order)
    if len(blocks) == 1 and not chained:
        blocks = [(rank,) for rank in order]
    if number % 2:
        blocks = [blocks[0], *_swapped(blocks[1:])]
    children: dict[int, list[int]] = defaultdict(list)
    for i, block in enumerate(blocks):
        if i:
            children[blocks[_parent(i, len(blocks))][0]].append(block[0])
        for rank, following in pairwise(block):
            children[rank].append(following)
    return children


def _blocks(topology: Topology, order: Sequence[int]) -> Blocks:
    """The ranks of each host, in the order in which the hosts first come."""
    hosts: dict[int, list[int]] = defaultdict(list)
    for rank in order:
        hosts[topology.node_by_id[topology.gpus[rank]].host].append(rank)
    return [tuple(block) for block in hosts.values()]


def _parent(i: int, size: int) -> int:
    """The parent of position i > 0: positions 1, 3, 5… are leaves, 2, 6, 10… have them as children, and so on up to the
    one child of position 0."""
    low = i & -i
    above = (i ^ low) | (low << 1)
    return above if above < size else i ^ low


def _swapped(rest: Blocks) -> Blocks:
    """Odd positions become even ones, and (all but one, where their number is odd) the other way round."""
    return rest[::-1] if len(rest) % 2 == 0 else rest[1:] + rest[:1]


def _root(topology: Topology, members: tuple[int, ...], number: int) -> int:
    """Where a chunk that everyone wants is gathered: where the ring of its tree begins."""
    rings = find_rings(topology, members)
    return rings[number // 2 % len(rings)][0]


def _trees(topology: Topology, teams: Sequence[Team]) -> int:
    return 2 * max(len(find_rings(topology, team.members)) for team in teams)


TREE = Baseline(
    "tree", ("allreduce", "broadcast", "reduce"), (_between_gpus, _between_hosts), pieces=_trees, root=_root
)
