"""Lower bounds on the finish time of any schedule, whatever its chunks: certificates for the gap."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heapify, heapreplace
from itertools import combinations
from math import inf, lcm

import networkx as nx
from networkx.algorithms.flow import preflow_push

from ..collective.demand import Chunk, Demand
from ..errors import InputError
from ..topology.model import Topology
from ..topology.paths import Path, direct_paths, on_direct_paths
from ..topology.without import only
from .allreduce_bound import latency_bound_us, soonest, tree_bound
from .budget import UNLIMITED, Budget
from .crossing import Traffic, best_crossing, filling_time
from .flow import flow_bound
from .large_bounds import large_bounds
from .rooted_trees import rooted_bound

_SOURCE, _SINK = "source", "sink"
#: Hosts of which every set is tried as a cut, and links up to which the least cut around a set of hosts is computed.
MOST_HOSTS = 5
MOST_LINKS_CUT = 1000
#: GPUs × links beyond which only those bounds are computed that take seconds there.
LARGE = 30_000
#: The part of a budget for the exact bandwidth bound.
CUTS_SHARE = 0.5


@dataclass(frozen=True)
class Bound:
    """A lower bound in µs and what proves it, in words."""

    term: str
    bound_us: float
    certificate: str


def lower_bounds(topology: Topology, demand: Demand, budget: Budget = UNLIMITED) -> tuple[Bound, ...]:
    """Every bound that applies to `demand`, largest first; all hold for any splitting of the data.

    alpha: the farthest origin of a wanted chunk, over least-latency paths. ingress, egress, cut: what a GPU, a set of
    hosts or a bottleneck must take in or give out over its border, no link of which delivers before its least latency
    (joint α–β: Σ_l b_l · max(0, T − a_l) ≥ bytes), for the data of the farther GPUs alone, too (see `crossing`); for
    allgather and reduce_scatter the bottlenecks include the exact bandwidth bound over all node sets. flow: the
    maximum concurrent flow of what nobody copies (alltoall, gather, scatter), as proved by link prices, α included.
    root, trees, traffic: an allreduce's, see `allreduce_bound`. Where the `budget` runs out the exact bandwidth bound
    and those of linear programs are as good as they are by then, and hold all the same. Raises `InputError` for a
    single GPU.
    """
    if topology.nranks < 2:
        raise InputError(f"{topology.name}: has one GPU; a collective needs at least two")
    if topology.nranks * len(topology.links) > LARGE:
        any_demand = replace(demand, collective="custom") if demand.groups else demand
        large = (Bound(*term) for term in large_bounds(topology, any_demand))
        return tuple(sorted(large, key=lambda bound: -bound.bound_us))
    cuts: list[frozenset[int]] = []
    if demand.collective == "allgather" and not demand.groups:
        cuts = allgather_cuts(topology, budget.part(CUTS_SHARE))[1]
    elif demand.collective == "reduce_scatter" and not demand.groups:
        everything = frozenset(topology.node_by_id)
        cuts = [everything - nodes for nodes in allgather_cuts(topology.reversed(), budget.part(CUTS_SHARE))[1]]
    latency = latencies(topology)
    bounds = [_alpha(topology, demand, latency), *_crossings(topology, demand, cuts, latency)]
    if demand.collective == "allreduce" and not demand.groups:
        bounds += _allreduce(topology, demand, latency, budget)
    if demand.copy_free:
        flow = flow_bound(topology, demand, latency, budget)
        if flow is not None:
            priced = sum(price > 0 for price in flow.prices.values())
            bounds.append(
                Bound(
                    "flow",
                    flow.bound_us,
                    f"prices of {priced} links in {'the maximum' if flow.maximum else 'any'} concurrent flow of the "
                    f"{flow.pairs} pairs of GPUs at least {flow.least_us:g} µs apart",
                )
            )
    bounds += _groups_alone(topology, demand, budget)
    return tuple(sorted(bounds, key=lambda bound: -bound.bound_us))


def program_bounds(topology: Topology, demand: Demand, budget: Budget = UNLIMITED) -> tuple[Bound, ...]:
    """`lower_bounds` for what a program can say: it names the GPU that it sends to but not the way, so that links on
    no direct path count for nothing. A schedule of other paths may be faster. With `trees` for broadcast and reduce
    (see `rooted_trees`)."""
    topology = on_direct_paths(topology)
    bounds = (*lower_bounds(topology, demand, budget), *_rooted(topology, demand, budget))
    return tuple(sorted(bounds, key=lambda bound: -bound.bound_us))


def _rooted(topology: Topology, demand: Demand, budget: Budget) -> Iterator[Bound]:
    """What the trees cost down which a root's data goes or, backwards, comes."""
    if demand.collective not in ("broadcast", "reduce") or demand.groups or demand.root is None:
        return
    way = topology if demand.collective == "broadcast" else topology.reversed()
    bound = rooted_bound(way, demand.size_bytes, demand.root, latencies(way), budget)
    if bound is not None:
        priced = sum(price > 0 for price in bound.prices.values())
        yield Bound("trees", bound.bound_us, f"prices of {priced} links at which any tree of the root costs more")


def _groups_alone(topology: Topology, demand: Demand, budget: Budget) -> list[Bound]:
    """The best bound on a group whose data stays on its own GPUs: those alone, with all links to themselves."""
    alone = []
    for number, group in enumerate(demand.groups):
        with suppress(InputError):  # what its GPUs cannot bring to each other, the searchers say
            if not group.confined:
                continue
            best = lower_bounds(only(topology, group.ranks), demand.of_group(number), budget)[0]
            alone.append(Bound("group", best.bound_us, f"group {number} alone, {best.term}: {best.certificate}"))
    return [max(alone, key=lambda bound: bound.bound_us)] if alone else []


def lower_bound_us(topology: Topology, demand: Demand) -> float:
    """The best of `lower_bounds`, in µs."""
    return lower_bounds(topology, demand)[0].bound_us


def program_bound_us(topology: Topology, demand: Demand, budget: Budget = UNLIMITED) -> float:
    """The best of `program_bounds`, in µs."""
    return program_bounds(topology, demand, budget)[0].bound_us


# -- latency -------------------------------------------------------------------------------------------------


Latencies = Mapping[int, Mapping[int, float]]


def latencies(topology: Topology) -> Latencies:
    """Least α sum in µs from every node to every node it reaches. O(V · E log V)."""
    graph = _simple_graph(topology)
    return {source: nx.single_source_dijkstra_path_length(graph, source, weight="alpha") for source in (*graph.nodes,)}


def _simple_graph(topology: Topology) -> nx.DiGraph:
    """One arc per pair of nodes: the least α, the summed bandwidth."""
    graph = nx.DiGraph()
    graph.add_nodes_from(node.id for node in topology.nodes)
    for link in topology.links:
        arc = graph.get_edge_data(link.src, link.dst, {"alpha": link.alpha_us, "bandwidth": Fraction(0)})
        graph.add_edge(
            link.src,
            link.dst,
            alpha=min(arc["alpha"], link.alpha_us),
            bandwidth=arc["bandwidth"] + Fraction(link.bandwidth_GBps).limit_denominator(10**6),
        )
    return graph


def _alpha(topology: Topology, demand: Demand, distance: Latencies) -> Bound:
    pairs = {(source, target) for chunk in demand.chunks for source in chunk.origin for target in chunk.want}
    far = max(pairs, key=lambda pair: (distance[topology.gpus[pair[0]]][topology.gpus[pair[1]]], pair), default=(0, 0))
    value = distance[topology.gpus[far[0]]][topology.gpus[far[1]]]
    return Bound("alpha", value, f"data of GPU {far[0]} cannot reach GPU {far[1]} sooner")


# -- what must cross a border --------------------------------------------------------------------------------


def _crossings(
    topology: Topology, demand: Demand, extra: Collection[frozenset[int]], latency: Latencies
) -> Iterator[Bound]:
    """The best ingress, egress and cut bound over every GPU, sets of hosts and the node sets in `extra`."""
    traffic = Traffic(demand)
    everything = frozenset(topology.node_by_id)
    gpus = [(f"GPU {rank}", frozenset({node})) for rank, node in enumerate(topology.gpus)]
    cuts = [(f"nodes {sorted(nodes)}", nodes) for nodes in extra]
    cuts += [(f"out of nodes {sorted(nodes)}", everything - nodes) for nodes in extra]
    families = {
        "ingress": [(f"into {name}", nodes) for name, nodes in gpus],
        "egress": [(f"out of {name}", everything - nodes) for name, nodes in gpus],
        "cut": [*_host_sets(topology), *cuts],
    }
    for term, family in families.items():
        found = [(name, best_crossing(topology, traffic, nodes, latency)) for name, nodes in family]
        proved = [(crossing.bound_us, name, crossing) for name, crossing in found if crossing is not None]
        if proved:
            bound_us, name, crossing = max(proved, key=lambda entry: entry[0])
            yield Bound(term, bound_us, f"{name}: {crossing}")


def _host_sets(topology: Topology) -> Iterator[tuple[str, frozenset[int]]]:
    """Sets of hosts with the other nodes that leave them the least bandwidth inwards: every set of up to
    `MOST_HOSTS` hosts, of more every host and all but it."""
    hosts = topology.hosts
    if len(hosts) < 2:
        return
    sizes = range(1, len(hosts)) if len(hosts) <= MOST_HOSTS else (1, len(hosts) - 1)
    for count in sizes:
        for chosen in combinations(hosts, count):
            inside = [gpu for gpu in topology.gpus if topology.node_by_id[gpu].host in chosen]
            yield (
                f"into host{'s' * (count > 1)} {', '.join(map(str, chosen))}",
                _least_entered(topology, inside, chosen),
            )


def _least_entered(topology: Topology, inside: Collection[int], hosts: Collection[int]) -> frozenset[int]:
    """The GPUs `inside` and such other nodes that the least bandwidth leads in: a minimum cut. In large topologies the
    nodes of these hosts."""
    if len(topology.links) > MOST_LINKS_CUT:
        return frozenset(node.id for node in topology.nodes if node.host in hosts)
    graph = nx.DiGraph()
    for u, v, arc in _simple_graph(topology).edges(data=True):
        graph.add_edge(u, v, capacity=float(arc["bandwidth"]))
    for gpu in topology.gpus:
        graph.add_edge(*((gpu, _SINK) if gpu in inside else (_SOURCE, gpu)))
    _, (_, entered) = nx.minimum_cut(graph, _SOURCE, _SINK, flow_func=preflow_push)
    return frozenset(entered) - {_SINK}


def _must_enter(chunk: Chunk, ranks: frozenset[int]) -> bool:
    """Whether some of the chunk's data starts outside `ranks` and is wanted inside."""
    if ranks.isdisjoint(chunk.want):
        return False
    return not ranks.issuperset(chunk.origin) if chunk.reduce else ranks.isdisjoint(chunk.origin)


def whole_chunks_us(topology: Topology, demand: Demand) -> float:
    """A lower bound for schedules that move the chunks of `demand` whole, store and forward, on direct paths.

    The larger of the time to bring the farthest chunk over, paying β at every GPU on the way, and, per GPU, the time
    at which its in-links have delivered as many whole chunks as it needs, or its out-links taken what it must give.
    """
    reach = _store_and_forward(topology, max((chunk.bytes for chunk in demand.chunks), default=0.0))
    farthest = max(
        (reach.get((o, w), 0.0) for c in demand.chunks for o in c.origin for w in c.want if o != w), default=0.0
    )
    return max([farthest, *(_ports_us(topology, demand, rank) for rank in range(topology.nranks))])


def _store_and_forward(topology: Topology, nbytes: float) -> dict[tuple[int, int], float]:
    """Least time to bring `nbytes` from rank to rank over direct paths."""
    graph = nx.DiGraph()
    for path in direct_paths(topology):
        hop = path.alpha_us + nbytes / (path.bandwidth_GBps * 1e3)
        known = graph.get_edge_data(path.src_rank, path.dst_rank, {"hop": inf})["hop"]
        graph.add_edge(path.src_rank, path.dst_rank, hop=min(hop, known))
    lengths = nx.all_pairs_dijkstra_path_length(graph, weight="hop")
    return {(source, target): time for source, row in lengths for target, time in row.items()}


def _ports_us(topology: Topology, demand: Demand, rank: int) -> float:
    """When the links into (out of) GPU `rank` can have carried every whole chunk that must come in (go out)."""
    alone = frozenset({rank})
    others = frozenset(range(topology.nranks)) - alone
    into = [path for path in direct_paths(topology) if path.dst_rank == rank]
    out_of = [path for path in direct_paths(topology) if path.src_rank == rank]
    return max(
        _whole_filling_time(topology, into, -1, [c.bytes for c in demand.chunks if _must_enter(c, alone)]),
        _whole_filling_time(topology, out_of, 0, [c.bytes for c in demand.chunks if _must_enter(c, others)]),
    )


def _whole_filling_time(topology: Topology, paths: list[Path], end: int, sizes: list[float]) -> float:
    """The least time in which the GPU's links at that `end` of the paths carry as many chunks as `sizes` has."""
    if not sizes:
        return 0.0
    alpha: dict[int, float] = {}
    for path in paths:
        link = path.links[end]
        alpha[link] = min(alpha.get(link, inf), path.alpha_us)
    beta = {link: topology.link_by_id[link].beta_us(min(sizes)) for link in alpha}
    queue = [(alpha[link] + beta[link], link) for link in alpha]
    heapify(queue)
    time = 0.0
    for _ in sizes:
        time, link = queue[0]
        heapreplace(queue, (time + beta[link], link))
    return time


# -- bandwidth -----------------------------------------------------------------------------------------------


def allgather_cuts(topology: Topology, budget: Budget = UNLIMITED) -> tuple[Fraction, list[frozenset[int]]]:
    """The exact allgather rate per GPU, x in GB/s, and the bottleneck node sets met on the way to it.

    x = min over node sets A that lack a GPU of B⁺(A) / |A ∩ GPUs| (ForestColl, arXiv 2402.06787, §3). A rate is
    feasible iff, with an arc of capacity x from a source to every GPU, every GPU has a max-flow of N·x from it;
    a violated cut lowers x to its own ratio (Newton), in exact fractions. Each set returned is the side that
    must be entered. O(N) max-flows for each of a few passes; where the `budget` runs out, the lowest rate met so far.
    """
    base = _simple_graph(topology)
    scale = lcm(*(arc["bandwidth"].denominator for _, _, arc in base.edges(data=True)))
    out_of_all = [
        sum((base.edges[arc]["bandwidth"] for arc in base.out_edges(gpu)), Fraction(0)) for gpu in topology.gpus
    ]
    rate = min(out_of_all)
    bottlenecks: list[frozenset[int]] = []
    unproved = list(topology.gpus)
    while unproved and not budget.spent:
        target = unproved[-1]
        entered, ratio = _tightest_cut(base, topology, target, rate, scale)
        if ratio < rate:
            rate = ratio
            bottlenecks.append(entered)
            unproved = [target, *(gpu for gpu in topology.gpus if gpu != target)][::-1]
        else:
            unproved.pop()
    return rate, bottlenecks


def _tightest_cut(
    base: nx.DiGraph, topology: Topology, target: int, rate: Fraction, scale: int
) -> tuple[frozenset[int], Fraction]:
    """A minimum cut in front of `target` when every GPU is fed at `rate`, and the rate that this cut allows."""
    factor = scale * rate.denominator
    graph = nx.DiGraph()
    graph.add_edges_from((u, v, {"capacity": int(arc["bandwidth"] * factor)}) for u, v, arc in base.edges(data=True))
    graph.add_edges_from((_SOURCE, gpu, {"capacity": int(rate * factor)}) for gpu in topology.gpus)
    _, (fed, entered) = nx.minimum_cut(graph, _SOURCE, target, flow_func=preflow_push)
    crossing = sum((base.edges[u, v]["bandwidth"] for u, v in base.edges if u in fed and v in entered), Fraction(0))
    senders = sum(1 for gpu in topology.gpus if gpu in fed)
    return frozenset(entered), crossing / senders if senders else rate


def _allreduce(topology: Topology, demand: Demand, latency: Latencies, budget: Budget) -> Iterator[Bound]:
    alpha_us, root = latency_bound_us(topology, latency)
    yield Bound("root", alpha_us, f"what is reduced at one GPU, at best {root}, has been gathered and must be spread")
    tree = tree_bound(topology, demand.size_bytes, latency, budget)
    if tree is not None:
        priced = sum(price > 0 for price in tree.prices.values())
        yield Bound("trees", tree.bound_us, f"prices of {priced} links at which any two trees with one root cost more")
    gpus = set(topology.gpus)
    into = [
        (link.bandwidth_GBps, float(idle_us))
        for link, idle_us in zip(topology.links, soonest(topology, latency), strict=True)
        if link.dst in gpus
    ]
    nbytes = 2 * (topology.nranks - 1) * demand.size_bytes
    if into:  # as many arrivals per chunk, whatever makes the copies (one-way gossip, Harary and Schwenk 1974)
        ingress = sum(bandwidth for bandwidth, _ in into)
        yield Bound("traffic", filling_time(nbytes, into), f"{nbytes:.6g} bytes into GPUs at {ingress:g} GB/s")
