"""Trees of a cluster: out of one root, from host to host in a chain, and down a tree within each.

A piece leaves every host at one GPU and enters the next at the GPU of the same position, so that all rails carry pieces
and no NIC sends one twice; NCCL's rings pipeline a broadcast so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from ..errors import InputError
from ..topology.model import Topology
from ..topology.paths import Path, on_direct_paths
from ..topology.without import only

#: Trees (each its paths) out of the GPU at a position: of one host, or of a network with a GPU for each host.
Packed = Callable[[Topology, int], Sequence[Sequence[Path]]]
#: A tree of a host, as hops: the positions that each joins, and which of parallel paths it takes.
Tree = list[tuple[int, int, int]]
#: Trees of a cluster, put together of those that are packed.
HostTrees = Callable[[Topology, Sequence[Path], int, Packed], Iterator[list[int]]]


@dataclass(frozen=True)
class Cluster:
    """Hosts of as many GPUs each (their ranks in order, the root's host first), the numbers of the paths between two
    ranks, and a host by itself."""

    hosts: Sequence[Sequence[int]]
    numbers: Mapping[tuple[int, int], Sequence[int]]
    host: Topology

    @classmethod
    def of(cls, topology: Topology, paths: Sequence[Path], root: int) -> Cluster | None:
        """None unless all hosts have as many GPUs, with direct paths to each other: where there are none within a host,
        its trees are deep, and a search link by link finds better ones in the time."""
        hosts = _hosts(topology)
        if len(hosts) < 2 or len({len(ranks) for ranks in hosts}) > 1:
            return None
        begins = next(i for i, ranks in enumerate(hosts) if root in ranks)
        hosts = hosts[begins:] + hosts[:begins]
        numbers: dict[tuple[int, int], list[int]] = {}
        for number, path in enumerate(paths):
            numbers.setdefault((path.src_rank, path.dst_rank), []).append(number)
        if not numbers.keys() >= set(permutations(hosts[0], 2)):
            return None
        try:
            return cls(hosts, numbers, on_direct_paths(only(topology, hosts[0])))
        except InputError:  # its GPUs reach each other only through other hosts
            return None


def chained_trees(topology: Topology, paths: Sequence[Path], root: int, packed: Packed) -> Iterator[list[int]]:
    """The trees, each as numbers in `paths`: for every position at which hosts are joined, in the root's host each of
    those `packed` there, in the others the first of those at the position, or each with one of the root's.

    None where there is no `Cluster`.
    """
    cluster = Cluster.of(topology, paths, root)
    if cluster is None:
        return
    hosts, numbers, host = cluster.hosts, cluster.numbers, cluster.host
    own = by_position(packed(host, hosts[0].index(root)))
    for position in range(len(hosts[0])):
        entries = [ranks[position] for ranks in hosts]
        if any(pair not in numbers for pair in pairwise(entries)):
            continue
        others = by_position(packed(host, position))
        pairs = [(ours, others[0]) for ours in own]
        pairs += [(own[turn % len(own)], other) for turn, other in enumerate(others)]
        for turn, (ours, theirs) in enumerate(pairs):
            pieces = [ours, *[theirs] * (len(hosts) - 1)]
            hops = [(a, b, turn) for a, b in pairwise(entries)]
            hops += [(ranks[u], ranks[v], k) for ranks, tree in zip(hosts, pieces, strict=True) for u, v, k in tree]
            if all((u, v) in numbers for u, v, _ in hops):
                yield [numbers[u, v][k % len(numbers[u, v])] for u, v, k in hops]


def by_position(trees: Sequence[Sequence[Path]]) -> list[Tree]:
    """Trees as hops: the positions that each joins, and which of parallel paths it takes."""
    turn: dict[tuple[int, ...], int] = {}
    taken: dict[tuple[int, int], int] = defaultdict(int)
    hops: list[Tree] = []
    for tree in trees:
        hops.append([])
        for path in tree:
            ends = path.src_rank, path.dst_rank
            if path.links not in turn:
                turn[path.links] = taken[ends]
                taken[ends] += 1
            hops[-1].append((*ends, turn[path.links]))
    return hops


def _hosts(topology: Topology) -> list[list[int]]:
    """Their ranks, in order."""
    hosts: dict[int, list[int]] = defaultdict(list)
    for rank, gpu in enumerate(topology.gpus):
        hosts[topology.node_by_id[gpu].host].append(rank)
    return list(hosts.values())
