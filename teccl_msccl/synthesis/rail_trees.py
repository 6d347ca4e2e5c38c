"""Trees of a cluster of which every rail is a pipe: out of one root, from host to host, and down a star within each.

A rail joins GPUs of the same position. Each passes through the hosts in an order of its own, so that a NIC sends to
one other only and finds it free, and few hosts follow each other on many rails: a piece comes to one host by one rail
and from there to most others by the rest, as in a scatter with an allgather (van de Geijn 1994), where chains, with one
order for all rails, are as deep as there are hosts. The last host of a rail, which has nobody to send to, may hand
pieces back to the root's, whose GPU then sends less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise, permutations

from ..topology.model import Link, Node, Topology
from ..topology.paths import Path
from .host_trees import Cluster, Packed, Tree, by_position

#: A hop across: the position of its GPUs, and the hosts that it joins. A rail's are a ring, from the root's host on.
Across = tuple[int, int, int]


def rail_trees(topology: Topology, paths: Sequence[Path], root: int, packed: Packed) -> Iterator[list[int]]:
    """The trees, each as numbers in `paths`: for every tree `packed` in the network of hosts, in each host the
    shallowest of the trees packed there, and in the root's those in which it sends little. None where there is no
    `Cluster`."""
    cluster = Cluster.of(topology, paths, root)
    rails = _rails(cluster.hosts, paths, cluster.numbers) if cluster else []
    if cluster is None or not rails:
        return
    hosts, numbers = cluster.hosts, cluster.numbers
    within = [by_position(packed(cluster.host, position))[0] for position in range(len(hosts[0]))]
    for turn, tree in enumerate(packed(_network(len(hosts), rails), 0)):
        across = [rails[path.links[0]] for path in tree]
        for ours, back in _at_the_root(hosts[0].index(root), across, rails, within, turn):
            pieces = [(0, ours), *((b, within[u]) for u, _, b in across)]
            hops = [(hosts[a][u], hosts[b][u], turn) for u, a, b in (*across, *back)]
            hops += [(hosts[at][u], hosts[at][v], k) for at, piece in pieces for u, v, k in piece]
            if all((u, v) in numbers for u, v, _ in hops):
                for shift in range(max(len(numbers[u, v]) for u, v, _ in hops)):
                    yield [numbers[u, v][(k + shift) % len(numbers[u, v])] for u, v, k in hops]


def _rails(
    hosts: Sequence[Sequence[int]], paths: Sequence[Path], numbers: Mapping[tuple[int, int], Sequence[int]]
) -> list[Across]:
    """The hops of all rails, one order for those that share links, as of one NIC; where not all hosts are joined, they
    follow each other as they are."""
    joined = [
        [p for pair in pairwise(ranks) for p in numbers[pair]]
        if all(pair in numbers for pair in pairwise(ranks))
        else []
        for ranks in zip(*hosts, strict=True)
    ]
    sharing: list[set[int]] = []  # links
    for by in joined:
        links = {link for p in by for link in paths[p].links}
        together = [other for other in sharing if other & links]
        sharing = [other for other in sharing if not other & links] + [links.union(*together)]
    free = all(pair in numbers for ranks in zip(*hosts, strict=True) for pair in permutations(ranks, 2))
    orders = host_orders(len(hosts) - 1, len(sharing) if free else 1)
    rails: list[Across] = []
    for position, by in enumerate(joined):
        if by:
            group = next(i for i, links in enumerate(sharing) if links & {*paths[by[0]].links})
            ring = [0, *(1 + host for host in orders[group % len(orders)]), 0]
            rails += [(position, a, b) for a, b in pairwise(ring)]
    return rails


def host_orders(hosts: int, count: int) -> list[list[int]]:
    """So many orders of 0 … hosts - 1: each begins with the next, and goes on with the one that has followed the last
    least often, so that few follow each other oftener than must be. O(count · hosts²)."""
    orders: list[list[int]] = []
    for turn in range(count):
        followed = Counter(chain.from_iterable(map(pairwise, orders)))
        order = [turn % hosts]
        while len(order) < hosts:
            last = order[-1]
            left = (host for host in range(hosts) if host not in order)
            order.append(min(left, key=lambda host: (followed[last, host], (host - last - turn) % hosts)))
        orders.append(order)
    return orders


def _network(hosts: int, rails: Sequence[Across]) -> Topology:
    """The hosts as GPUs, and all hops as links, in the order given."""
    return Topology(
        name="hosts",
        nodes=tuple(Node(id=host, kind="gpu", rank=host, host=host) for host in range(hosts)),
        links=tuple(Link(id=i, src=a, dst=b, bandwidth_GBps=1.0, alpha_us=1.0) for i, (_, a, b) in enumerate(rails)),
    )


def _at_the_root(
    root: int, across: Sequence[Across], rails: Sequence[Across], within: Sequence[Tree], turn: int
) -> Iterator[tuple[Tree, list[Across]]]:
    """Trees of the root's host, and what is handed back to it: its GPU sends to one that spreads the piece, which
    sends it to other hosts too unless the root does itself; all get it so, or one from the last host of its rail."""
    leaving = next(u for u, a, _ in across if a == 0)
    back = {u: (u, a, b) for u, a, b in rails if b == 0}
    for spreading in (leaving,) if leaving != root else (u for u in range(len(within)) if u != root):
        below = [hop for hop in within[spreading] if hop[1] != root]
        yield [(root, spreading, turn), *below], []
        inner = {spreading, *(u for u, _, _ in below)}
        if leaving == root and spreading in back and root not in inner:
            yield below, [back[spreading]]
        needed = inner.union(u for u, a, _ in across if a == 0)
        for leaf in back.keys() - needed - {root}:
            yield [(root, spreading, turn), *(hop for hop in below if hop[1] != leaf)], [back[leaf]]
