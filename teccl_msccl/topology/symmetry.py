"""Symmetry: what renumbering of its nodes leaves a topology as it is, and which one makes it another.

The search is BLISS (Junttila and Kaski, ALENEX 2007: colour refinement with backtracking), through igraph, which ships
wheels: networkx's VF2 takes minutes where this takes milliseconds, and pynauty has to be compiled. BLISS takes plain
undirected graphs with coloured vertices, so that a link becomes a vertex between its ends; links that join the same
nodes in parallel become one, coloured by them all, and a wire whose two directions differ becomes two.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

import igraph

from .model import Link, Node, Topology

Permutation = dict[int, int]

#: The links that a host's GPUs are joined by.
FABRIC_KINDS = ("nvlink", "xgmi")


def automorphism_generators(topology: Topology) -> list[Permutation]:
    """Permutations of the node ids that generate all automorphisms of a topology.

    An automorphism keeps each node's kind and multicast, and each link's bandwidth, α and kind; names, ranks and
    hosts may change. Each generator has every node id as a key. [] where there is no symmetry. Milliseconds for
    hundreds of nodes; exponential in the worst case, as graph isomorphism is.
    """
    graph, colours, ids = _coloured(topology, {})
    found = graph.automorphism_group(color=colours)
    return [{ids[i]: ids[image[i]] for i in range(len(ids))} for image in found]


def rank_generators(topology: Topology) -> list[tuple[int, ...]]:
    """The generators as permutations of ranks: rank r goes to position r's entry; those that move no rank left out."""
    moved = []
    for permutation in automorphism_generators(topology):
        ranks = tuple(topology.rank_of[permutation[gpu]] for gpu in topology.gpus)
        if ranks != tuple(range(topology.nranks)):
            moved.append(ranks)
    return list(dict.fromkeys(moved))


def is_automorphism(topology: Topology, permutation: Mapping[int, int]) -> bool:
    """Whether renumbering by `permutation` leaves the topology as it is. O(nodes + links)."""
    return is_isomorphism(topology, topology, permutation)


def is_isomorphism(one: Topology, other: Topology, mapping: Mapping[int, int]) -> bool:
    """Whether `mapping` (node ids of `one` → of `other`) turns `one` into `other`. O(nodes + links)."""
    if sorted(mapping) != sorted(one.node_by_id) or sorted(mapping.values()) != sorted(other.node_by_id):
        return False
    if any(_node_colour(node) != _node_colour(other.node_by_id[mapping[node.id]]) for node in one.nodes):
        return False
    renumbered = Counter((mapping[x.src], mapping[x.dst], _link_colour(x)) for x in one.links)
    return renumbered == Counter((x.src, x.dst, _link_colour(x)) for x in other.links)


def isomorphism(one: Topology, other: Topology) -> Permutation | None:
    """A mapping of node ids that turns `one` into `other`, None where there is none."""
    palette: dict[Hashable, int] = {}
    graph, colours, ids = _coloured(one, palette)
    target, target_colours, target_ids = _coloured(other, palette)
    if sorted(colours) != sorted(target_colours) or graph.ecount() != target.ecount():
        return None
    same, image, _ = graph.isomorphic_bliss(target, return_mapping_12=True, color1=colours, color2=target_colours)
    if not same:
        return None
    mapping = {id: target_ids[image[i]] for i, id in enumerate(ids)}
    if not is_isomorphism(one, other, mapping):
        raise AssertionError(f"{one.name} → {other.name}: the mapping that was found does not map")
    return mapping


def fingerprint(topology: Topology) -> str:
    """A SHA-256 that topologies share exactly if renumbering nodes turns one into the other: that of the canonical form
    that BLISS gives them. Another version of BLISS may give another; `isomorphism` is then the judge."""
    palette: dict[Hashable, int] = {}
    graph, colours, _ = _coloured(topology, palette)
    names = {number: repr(colour) for colour, number in palette.items()}
    order = {number: rank for rank, number in enumerate(sorted(names, key=names.__getitem__))}
    canonical = [order[colour] for colour in colours]
    place = {vertex: new for new, vertex in enumerate(graph.canonical_permutation(color=canonical))}
    vertices = sorted((place[vertex], names[colour]) for vertex, colour in enumerate(colours))
    edges = sorted(tuple(sorted((place[a], place[b]))) for a, b in graph.get_edgelist())
    return hashlib.sha256(repr((vertices, edges)).encode()).hexdigest()


@dataclass(frozen=True)
class Match:
    """Whether two machines are the same but for their numbering.

    `permutation[r]` is the rank of the second that rank r of the first is, None where they differ. `difference` says
    how they differ, or, where only their GPU fabrics are the same (`fabric_only`), how the rest does.
    """

    permutation: tuple[int, ...] | None
    difference: str = ""
    fabric_only: bool = False


def match(one: Topology, other: Topology, fabric: bool = True) -> Match:
    """The ranks of `other` that the ranks of `one` are.

    Machines that differ are compared by what NVLink or xGMI joins alone where both are one host all of whose GPUs
    these join, unless `fabric` is false: virtual machines hide PCIe, and a one-host program does not use it there.
    """
    mapping = isomorphism(one, other)
    if mapping is not None:
        return Match(_ranks(one, other, mapping))
    difference = first_difference(one, other)
    if fabric and len(one.hosts) == len(other.hosts) == 1:
        parts = gpu_fabric(one), gpu_fabric(other)
        if parts[0] is not None and parts[1] is not None:
            mapping = isomorphism(parts[0], parts[1])
            if mapping is not None:
                return Match(_ranks(parts[0], parts[1], mapping), difference, fabric_only=True)
            difference = first_difference(parts[0], parts[1])
    return Match(None, difference)


def gpu_fabric(topology: Topology) -> Topology | None:
    """A topology's GPUs and what NVLink or xGMI joins them by, None where that does not join them all."""
    links = tuple(link for link in topology.links if link.kind in FABRIC_KINDS)
    ends = {end for link in links for end in (link.src, link.dst)}
    if topology.nranks < 2 or not set(topology.gpus) <= ends:
        return None
    nodes = tuple(node for node in topology.nodes if node.id in ends)
    reached, todo = set(), [topology.gpus[0]]
    after: dict[int, list[int]] = defaultdict(list)
    for link in links:
        after[link.src].append(link.dst)
    while todo:
        if (node := todo.pop()) not in reached:
            reached.add(node)
            todo += after[node]
    return replace(topology, nodes=nodes, links=links) if reached >= set(topology.gpus) else None


def first_difference(one: Topology, other: Topology) -> str:
    """What tells two topologies apart: numbers of nodes, then of links of a class, then what is joined by what."""
    for what, count, other_count in _counts(
        Counter(f"{node.kind} nodes" for node in one.nodes), Counter(f"{node.kind} nodes" for node in other.nodes)
    ):
        return f"{count} {what} in {one.name}, {other_count} {what} in {other.name}"
    for what, count, other_count in _counts(_link_classes(one), _link_classes(other)):
        return f"{count} links of {what} in {one.name}, {other_count} in {other.name}"
    for what, count, other_count in _counts(_gpu_kinds(one), _gpu_kinds(other)):
        return f"{count} GPUs with {what} in {one.name}, {other_count} in {other.name}"
    return f"{one.name} and {other.name} have the same nodes and links, but join them differently"


def _ranks(one: Topology, other: Topology, mapping: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(other.rank_of[mapping[gpu]] for gpu in one.gpus)


def _counts(one: Counter[str], other: Counter[str]) -> Iterator[tuple[str, int, int]]:
    for what in sorted({*one, *other}):
        if one[what] != other[what]:
            yield what, one[what], other[what]


def _link_classes(topology: Topology) -> Counter[str]:
    kind = {node.id: node.kind for node in topology.nodes}
    return Counter(f"{_shown(link)} from {kind[link.src]} to {kind[link.dst]}" for link in topology.links)


def _gpu_kinds(topology: Topology) -> Counter[str]:
    kind = {node.id: node.kind for node in topology.nodes}
    out: dict[int, Counter[str]] = defaultdict(Counter)
    for link in topology.links:
        out[link.src][f"{_shown(link)} to a {kind[link.dst]}"] += 1
    return Counter(", ".join(f"{n} × {what}" for what, n in sorted(out[gpu].items())) for gpu in topology.gpus)


def _shown(link: Link) -> str:
    return f"{link.kind or 'unnamed'} {link.bandwidth_GBps:g} GB/s, α {link.alpha_us:g} µs"


# -- graphs that BLISS takes ---------------------------------------------------------------------------------


def _coloured(topology: Topology, palette: dict[Hashable, int]) -> tuple[igraph.Graph, list[int], list[int]]:
    """The graph, the colour of each vertex, and the node ids, which are its first vertices.

    `palette` numbers the colours, and is filled; graphs that are compared share one.
    """
    ids = [node.id for node in topology.nodes]
    vertex = {id: i for i, id in enumerate(ids)}
    colours = [palette.setdefault(("node", *_node_colour(node)), len(palette)) for node in topology.nodes]
    parallel: dict[tuple[int, int], list[tuple[object, ...]]] = defaultdict(list)
    for link in topology.links:
        parallel[vertex[link.src], vertex[link.dst]].append(_link_colour(link))
    bundle: dict[tuple[int, int], Hashable] = {ends: tuple(sorted(links, key=repr)) for ends, links in parallel.items()}
    edges: list[tuple[int, int]] = []

    def add(colour: Hashable, joined: Collection[int]) -> int:
        colours.append(palette.setdefault(colour, len(palette)))
        new = len(colours) - 1
        edges.extend((new, other) for other in joined)
        return new

    for (src, dst), colour in bundle.items():
        if bundle.get((dst, src)) == colour:
            if src < dst:
                add(("both ways", colour), (src, dst))
        else:
            leaving = add(("leaving", colour), (src,))
            add(("arriving", colour), (leaving, dst))
    return igraph.Graph(n=len(colours), edges=edges), colours, ids


def _node_colour(node: Node) -> tuple[object, ...]:
    return (node.kind, node.multicast)


def _link_colour(link: Link) -> tuple[object, ...]:
    return (link.bandwidth_GBps, link.alpha_us, link.kind)
