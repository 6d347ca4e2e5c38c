"""Lower bounds for hundreds of GPUs: the cuts that matter there, of one GPU and one host for all that are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from math import lcm

import igraph
import numpy as np
from numpy.typing import NDArray

from ..collective.demand import Demand
from ..topology.model import Topology
from ..topology.symmetry import rank_generators
from .crossing import filling_time

#: What a double counts exactly.
_EXACT = 2**53

#: Term, µs, certificate.
Term = tuple[str, float, str]


def large_bounds(topology: Topology, demand: Demand) -> Iterator[Term]:
    """The terms of `lower_bounds` that take about a second for a thousand GPUs that are alike.

    alpha, ingress, egress and cut as there, the cuts those of hosts and, for allgather and reduce_scatter, the tightest
    of all; GPUs that automorphisms exchange are represented by one where the collective asks the same of all. root:
    an allreduce's chunk is complete at one GPU first, gathered there and spread. traffic: it enters hosts at least
    2 · (hosts − 1) times, one tree gathering and one spreading it. O(representatives · links · log nodes) and as many
    maximum flows.
    """
    network = _Network(topology)
    ranks = _representatives(topology) if _is_even(demand) else list(range(topology.nranks))
    yield _alpha(network, demand, ranks)
    moved = _Moved(demand)
    gpus = [(f"GPU {rank}", frozenset({topology.gpus[rank]})) for rank in ranks]
    hosts = sorted({topology.node_by_id[topology.gpus[rank]].host for rank in ranks}) if len(topology.hosts) > 1 else []
    cuts = [(f"host {host}", frozenset(node.id for node in topology.nodes if node.host == host)) for host in hosts]
    cuts += _leaves(topology, hosts)
    if demand.collective in ("allgather", "reduce_scatter"):
        cuts += [(f"{len(nodes)} nodes", nodes) for nodes in _tightest(topology, demand.collective, ranks)]
    everything = frozenset(topology.node_by_id)
    for term, sets in (("ingress", gpus), ("cut", cuts)):
        yield max(
            (network.crossing(term, f"into {name}", nodes, moved) for name, nodes in sets), key=_us, default=_NONE
        )
    for term, sets in (("egress", gpus), ("cut", cuts)):
        found = (network.crossing(term, f"out of {name}", everything - nodes, moved) for name, nodes in sets)
        yield max(found, key=_us, default=_NONE)
    if demand.collective == "allreduce":
        yield _root(network, ranks)
        yield from network.traffic(demand)


def _leaves(topology: Topology, hosts: Collection[int]) -> Iterator[tuple[str, frozenset[int]]]:
    """The hosts next to a switch between hosts, and the switch, where some but not all hosts are."""
    host, every = {node.id: node.host for node in topology.nodes}, set(topology.hosts)
    beside: dict[int, set[int]] = defaultdict(set)
    for link in topology.links:
        if host[link.src] in every and host[link.dst] not in every:
            beside[link.dst].add(host[link.src])
    for switch, those in beside.items():
        if not those.isdisjoint(hosts) and those != every:
            inside = frozenset(node.id for node in topology.nodes if node.host in those) | {switch}
            yield f"the hosts at {topology.node_by_id[switch].name or f'node {switch}'}", inside


def _is_even(demand: Demand) -> bool:
    """Whether the demand asks the same of every GPU, as its name says."""
    everyone, first = demand.nranks, demand.chunks[0] if demand.chunks else None
    expected = {
        "allgather": (everyone, 1, everyone),
        "reduce_scatter": (everyone, everyone, 1),
        "allreduce": (1, everyone, everyone),
        "alltoall": (everyone**2, 1, 1),
    }.get(demand.collective)
    if expected is None or first is None:
        return False
    shares, origins, wants = expected
    return (len(demand.chunks), len(first.origin), len(first.want)) == (shares * demand.nchunks, origins, wants)


_NONE: Term = ("cut", 0.0, "nothing has to cross")


def _us(term: Term) -> float:
    return term[1]


def _representatives(topology: Topology) -> list[int]:
    """The lowest rank of each orbit of the GPUs."""
    lowest = list(range(topology.nranks))

    def find(rank: int) -> int:
        while lowest[rank] != rank:
            lowest[rank] = lowest[lowest[rank]]
            rank = lowest[rank]
        return rank

    for generator in rank_generators(topology):
        for rank, image in enumerate(generator):
            one, other = sorted((find(rank), find(image)))
            lowest[other] = one
    return [rank for rank in range(topology.nranks) if lowest[rank] == rank]


class _Moved:
    """How much of a demand must enter a set of ranks."""

    def __init__(self, demand: Demand) -> None:
        self.chunks = demand.chunks
        self.single = all(len(chunk.origin) == len(chunk.want) == 1 for chunk in demand.chunks)

    @cached_property
    def _pairs(self) -> NDArray[np.int64]:
        return np.array([(chunk.origin[0], chunk.want[0]) for chunk in self.chunks])

    @cached_property
    def _bytes(self) -> NDArray[np.float64]:
        return np.array([chunk.bytes for chunk in self.chunks])

    def into(self, ranks: frozenset[int]) -> float:
        if self.single:
            inside = np.isin(self._pairs, list(ranks))
            return float(self._bytes[inside[:, 1] & ~inside[:, 0]].sum())
        return sum(
            chunk.bytes
            for chunk in self.chunks
            if not ranks.isdisjoint(chunk.want)
            and (not ranks.issuperset(chunk.origin) if chunk.reduce else ranks.isdisjoint(chunk.origin))
        )


class _Network:
    """A topology as a graph of least latencies."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._place = {node.id: i for i, node in enumerate(topology.nodes)}
        self._arcs = [(self._place[link.src], self._place[link.dst]) for link in topology.links]
        self._alpha = [link.alpha_us for link in topology.links]

    def _latency(self, nodes: Collection[int], towards: bool) -> list[float]:
        """Least α from (or `towards`) the nearest of some nodes, by place of the other node."""
        ends = [self._place[node] for node in nodes]
        hub = len(self._place)
        spokes = [(end, hub) if towards else (hub, end) for end in ends]
        graph = igraph.Graph(n=hub + 1, edges=[*self._arcs, *spokes], directed=True)
        weights = [*self._alpha, *[0.0] * len(spokes)]
        found: list[float] = graph.distances(hub, weights=weights, mode="in" if towards else "out")[0]
        return found[:hub]

    def farthest(self, rank: int, towards: bool = False) -> tuple[float, int]:
        """The least α from (or `towards`) a GPU to the GPU farthest from it, and that GPU's rank."""
        gpus = self.topology.gpus
        latency = self._latency([gpus[rank]], towards)
        return max((latency[self._place[gpu]], other) for other, gpu in enumerate(gpus))

    def crossing(self, term: str, name: str, nodes: frozenset[int], moved: _Moved) -> Term:
        """T with Σ_l b_l · max(0, T − a_l) = the bytes that must enter `nodes`, a_l the least α from a GPU outside,
        through l, to one inside."""
        topology = self.topology
        inside = [gpu for gpu in topology.gpus if gpu in nodes]
        outside = [gpu for gpu in topology.gpus if gpu not in nodes]
        nbytes = moved.into(frozenset(topology.rank_of[gpu] for gpu in inside))
        border = [link for link in topology.links if link.dst in nodes and link.src not in nodes]
        if nbytes <= 0 or not border:
            return term, 0.0, f"{name}: nothing has to cross"
        before, after = self._latency(outside, False), self._latency(inside, True)
        figures = [
            (link.bandwidth_GBps, before[self._place[link.src]] + link.alpha_us + after[self._place[link.dst]])
            for link in border
        ]
        total = sum(bandwidth for bandwidth, _ in figures)
        return (
            term,
            filling_time(nbytes, figures),
            f"{name}: {nbytes:.6g} bytes over {len(border)} link(s) of {total:g} GB/s in all",
        )

    def traffic(self, demand: Demand) -> Iterator[Term]:
        """Gathering a chunk takes a send into every GPU, and every host, but one, spreading it as many again: the least
        calls of one-way gossip (Harary and Schwenk 1974), so that copies made by switches save none."""
        topology = self.topology
        gpus = set(topology.gpus)
        host, every = {node.id: node.host for node in topology.nodes}, set(topology.hosts)
        into_gpus = [link for link in topology.links if link.dst in gpus]
        into_hosts = [link for link in topology.links if host[link.dst] in every and host[link.src] != host[link.dst]]
        before, after = self._latency(topology.gpus, False), self._latency(topology.gpus, True)
        for what, count, links in (("GPUs", len(gpus), into_gpus), ("hosts", len(every), into_hosts)):
            if links:
                nbytes = 2 * (count - 1) * demand.size_bytes
                figures = [
                    (x.bandwidth_GBps, before[self._place[x.src]] + x.alpha_us + after[self._place[x.dst]])
                    for x in links
                ]
                total = sum(bandwidth for bandwidth, _ in figures)
                yield "traffic", filling_time(nbytes, figures), f"{nbytes:.6g} bytes into {what} at {total:g} GB/s"


def _alpha(network: _Network, demand: Demand, ranks: Sequence[int]) -> Term:
    """The farthest pair from a representative, where the demand is even; else the farthest wanted pair."""
    if _is_even(demand):
        far, source, target = max((*network.farthest(rank), rank) for rank in ranks)
        return "alpha", far, f"data of GPU {target} cannot reach GPU {source} sooner"
    topology = network.topology
    wanted: dict[int, set[int]] = {}
    for chunk in demand.chunks:
        for origin in chunk.origin:
            wanted.setdefault(origin, set()).update(chunk.want)
    best = (0.0, 0, 0)
    for origin, targets in wanted.items():
        latency = network._latency([topology.gpus[origin]], False)
        best = max(best, *((latency[network._place[topology.gpus[target]]], origin, target) for target in targets))
    return "alpha", best[0], f"data of GPU {best[1]} cannot reach GPU {best[2]} sooner"


def _root(network: _Network, ranks: Sequence[int]) -> Term:
    both = ((network.farthest(rank, True)[0] + network.farthest(rank)[0], rank) for rank in ranks)
    time, rank = min(both)
    return "root", time, f"what is reduced at one GPU, at best {rank}, has been gathered and must be spread"


def _tightest(topology: Topology, collective: str, ranks: Sequence[int]) -> Iterator[frozenset[int]]:
    """The node sets met on the way to the tightest cut: those to be entered, for reduce_scatter to be left."""
    turned = topology if collective == "allgather" else topology.reversed()
    cuts = _Cuts(turned)
    rate = min(cuts.leaving(gpu) for gpu in turned.gpus)
    unproved = list(ranks)
    while unproved:
        entered, ratio = cuts.before(turned.gpus[unproved[-1]], rate)
        if ratio < rate:
            rate, unproved = ratio, [*ranks]
            yield entered
        else:
            unproved.pop()


class _Cuts:
    """Minimum cuts in front of a GPU when every GPU is fed at one rate (ForestColl, arXiv 2402.06787, §3)."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._place = {node.id: i for i, node in enumerate(topology.nodes)}
        self._arcs = [(self._place[link.src], self._place[link.dst]) for link in topology.links]
        self._GBps = [Fraction(link.bandwidth_GBps).limit_denominator(10**6) for link in topology.links]
        self._scale = lcm(*(rate.denominator for rate in self._GBps))

    def leaving(self, gpu: int) -> Fraction:
        """Bandwidth out of a GPU."""
        links = zip(self.topology.links, self._GBps, strict=True)
        return sum((GBps for link, GBps in links if link.src == gpu), Fraction(0))

    def before(self, target: int, rate: Fraction) -> tuple[frozenset[int], Fraction]:
        """The nodes behind the minimum cut, and the rate that this cut allows. The cut found is proof of its own
        rate even where the flow was not computed exactly."""
        gpus = self.topology.gpus
        source = len(self._place)
        factor = self._scale * rate.denominator
        whole = [int(GBps * factor) for GBps in self._GBps] + [int(rate * factor)] * len(gpus)
        unit = 1 if sum(whole) < _EXACT else factor
        arcs = [*self._arcs, *((source, self._place[gpu]) for gpu in gpus)]
        graph = igraph.Graph(n=source + 1, edges=arcs, directed=True)
        cut = graph.st_mincut(source, self._place[target], capacity=[amount / unit for amount in whole])
        behind = set(cut.partition[1])
        if source in behind:
            behind = set(cut.partition[0])
        crossing = sum(
            (GBps for (u, v), GBps in zip(self._arcs, self._GBps, strict=True) if u not in behind and v in behind),
            Fraction(0),
        )
        senders = sum(1 for gpu in gpus if self._place[gpu] not in behind)
        entered = frozenset(node.id for node in self.topology.nodes if self._place[node.id] in behind)
        return entered, crossing / senders if senders else rate
