"""Lower bounds on allreduce: every chunk is complete at one GPU first, gathered along a tree and spread along another.

A schedule's send either merges a GPU's whole share, after which the GPU takes in no other, or copies what is complete
(`schedule.validate`). So of each chunk the merging sends are a tree into the one GPU, its root, that completes it by
merging, and the first copies a tree out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import igraph
import numpy as np
from mip import xsum
from numpy.typing import NDArray

from ..topology.model import Topology
from ..topology.symmetry import automorphism_generators
from .arborescence import TIGHT, Matrix, arborescence
from .budget import UNLIMITED, Budget
from .crossing import filling_time
from .solver import new_model, solve_linear

#: GPUs beyond which the linear program over trees is not worth its time in a bound, and its rounds.
MAX_GPUS = 64
MAX_ROUNDS = 40
_CLOSE = 1e-4

Latencies = Mapping[int, Mapping[int, float]]


@dataclass(frozen=True)
class AllreduceBound:
    """A lower bound and the link prices that prove it."""

    bound_us: float
    prices: Mapping[int, float]


def latency_bound_us(topology: Topology, latency: Latencies) -> tuple[float, int]:
    """The least latency in and out again over all roots, and the root."""
    into, out_of = _eccentricities(topology, latency)
    root = int((into + out_of).argmin())
    return float(into[root] + out_of[root]), root


def _eccentricities(topology: Topology, latency: Latencies) -> tuple[Matrix, Matrix]:
    """For every root how long the farthest contribution takes to it, and the result from it to the farthest GPU."""
    far = np.array([[latency[u][v] for v in topology.gpus] for u in topology.gpus])
    return far.max(axis=0), far.max(axis=1)


def tree_bound(
    topology: Topology, nbytes: float, latency: Latencies, budget: Budget = UNLIMITED
) -> AllreduceBound | None:
    """The bound of the linear program over pairs of trees with one root, or of the prices at which it is when the
    `budget` runs out; None for many GPUs or multicast switches, or without a budget.

        min T   s.t.  Σ_p x_p = 1;   Σ_p load_p(l) x_p · nbytes ≤ b_l · T   on every link l

    over pairs p of a tree into a root and one out of it, by column generation: at link prices w the best pair is a
    pair of least arborescences (Edmonds) over w-distances. Links that symmetries of the topology exchange share a
    row, as do the directions of a wire where all wires have two; roots that they exchange share one search. What it
    proves needs only the prices (`price_bound_us`).
    """
    if topology.nranks > MAX_GPUS or nbytes <= 0 or budget.spent or any(node.multicast for node in topology.nodes):
        return None
    return _TreeProgram(topology, nbytes, latency).bound(budget)


def price_bound_us(topology: Topology, nbytes: float, prices: Mapping[int, float], latency: Latencies) -> float:
    """The bound that link prices (by link id) prove for an allreduce of `nbytes`.

    For any prices w ≥ 0 every byte costs at least the cheapest pair of trees with one root, and link l, idle for a_l
    at the beginning and the end, earns at most w_l b_l · max(0, T − a_l).
    """
    return _TreeProgram(topology, nbytes, latency).priced_us(np.array([prices[link.id] for link in topology.links]))


def soonest(topology: Topology, latency: Latencies) -> Matrix:
    """Per link a_l: the latency to it from the nearest GPU and from it to the nearest GPU. (It may carry shares
    inwards from the beginning and results outwards to the end, so that no more is sure.)"""
    to = {node.id: min(latency[gpu].get(node.id, np.inf) for gpu in topology.gpus) for node in topology.nodes}
    since = {node.id: min(latency[node.id].get(gpu, np.inf) for gpu in topology.gpus) for node in topology.nodes}
    return np.array([to[link.src] + link.alpha_us + since[link.dst] for link in topology.links])


class _TreeProgram:
    def __init__(self, topology: Topology, nbytes: float, latency: Latencies) -> None:
        self.topology = topology
        self.nbytes = nbytes
        self.bandwidth = np.array([link.bandwidth_GBps for link in topology.links])
        self.soonest = soonest(topology, latency)
        index = {node.id: i for i, node in enumerate(topology.nodes)}
        self.gpus = [index[gpu] for gpu in topology.gpus]
        self.graph = igraph.Graph(
            n=len(index), edges=[(index[x.src], index[x.dst]) for x in topology.links], directed=True
        )

    # -- prices → trees ----------------------------------------------------------------------------------

    def distances(self, prices: Matrix) -> Matrix:
        """GPU to GPU, by price."""
        return np.array(self.graph.distances(self.gpus, self.gpus, weights=prices.tolist(), mode="out"))

    def priced_us(self, prices: Matrix) -> float:
        """The bound that these prices prove; every root is tried."""
        prices = np.maximum(prices, 0)
        far = self.distances(prices)
        cost = _cheapest(far, range(len(far)))[0] - 4 * len(far) * TIGHT * float(far.max())  # what ties may have cost
        earning = [
            (price * bandwidth, soonest)
            for price, bandwidth, soonest in zip(prices, self.bandwidth, self.soonest, strict=True)
            if price > 0
        ]
        return filling_time(self.nbytes * cost, earning) if earning and cost > 0 else 0.0

    def pair(self, prices: Matrix, roots: list[int]) -> tuple[float, Matrix]:
        """The cheapest pair of trees with one of the `roots`, and how often it takes each link."""
        cost, hops = _cheapest(self.distances(prices), roots)
        load = np.zeros(len(self.bandwidth))
        for u, v in hops:
            (way,) = self.graph.get_shortest_paths(
                self.gpus[u], self.gpus[v], weights=prices.tolist(), mode="out", output="epath"
            )
            load[way] += 1
        return cost, load

    # -- the linear program --------------------------------------------------------------------------------

    def bound(self, budget: Budget) -> AllreduceBound | None:
        """Rounds of prices and trees until they agree, the best of the rounds' bounds kept."""
        links, roots = _orbits(self.topology)
        capacity = np.bincount(links, weights=self.bandwidth).astype(np.float64)  # of each orbit
        centre = 1 / self.bandwidth / len(self.bandwidth)  # the prices around which the search goes on
        loads: list[Matrix] = []
        best_rate, best = 0.0, centre
        for _ in range(MAX_ROUNDS):
            cost, load = self.pair(np.maximum(centre, 1e-12), roots)
            loads.append(np.bincount(links, weights=load).astype(np.float64))
            if cost > best_rate:
                best_rate, best = cost, centre
            solved = _master(loads, capacity)
            if solved is None or budget.spent:
                break
            time, prices = solved
            if time <= best_rate * (1 + _CLOSE):
                break
            centre = 0.5 * best + 0.5 * prices[links]
        return AllreduceBound(self.priced_us(best), dict(zip([x.id for x in self.topology.links], best, strict=True)))


def _master(loads: list[Matrix], capacity: Matrix) -> tuple[float, Matrix] | None:
    """The least time per byte with the trees at hand, and its prices per orbit, for which Σ price · capacity = 1."""
    model: Any = new_model("cbc")
    unit = float(capacity.max())
    time = model.add_var(obj=1.0)
    shares = [model.add_var() for _ in loads]
    model += xsum(shares) == 1
    rows = [
        model.add_constr(
            xsum(float(load[o]) * x for load, x in zip(loads, shares, strict=True)) <= capacity[o] / unit * time
        )
        for o in range(len(capacity))
    ]
    if not solve_linear(model):
        return None
    prices = np.array([abs(float(row.pi)) for row in rows])
    return float(time.x) / unit, prices / float(prices @ capacity)


def _orbits(topology: Topology) -> tuple[NDArray[np.int64], list[int]]:
    """The orbit of every link (numbered from 0, by position) and one rank of every orbit of ranks."""
    generators = automorphism_generators(topology)
    kinds: dict[Any, list[int]] = {}
    for i, link in enumerate(topology.links):
        kinds.setdefault((link.src, link.dst, link.bandwidth_GBps, link.alpha_us, link.kind), []).append(i)
    alike = [(same[0], i) for same in kinds.values() for i in same[1:]]
    if all(len(kinds.get((dst, src, *figures), ())) == len(same) for (src, dst, *figures), same in kinds.items()):
        # backwards, a pair of trees is one again
        alike += [(same[0], kinds[dst, src, *figures][0]) for (src, dst, *figures), same in kinds.items()]
    for image in generators:
        alike += [(same[0], kinds[image[src], image[dst], *figures][0]) for (src, dst, *figures), same in kinds.items()]
    swapped = [(r, topology.rank_of[image[gpu]]) for image in generators for r, gpu in enumerate(topology.gpus)]
    ranks = _components(topology.nranks, swapped)
    return np.array(_components(len(topology.links), alike)), [ranks.index(orbit) for orbit in sorted(set(ranks))]


def _components(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    """To which of the groups that the pairs join each of `count` things belongs."""
    return list(igraph.Graph(n=count, edges=pairs).connected_components().membership)


# -- least arborescences ---------------------------------------------------------------------------------------


def _cheapest(far: Matrix, roots: Iterable[int]) -> tuple[float, list[tuple[int, int]]]:
    """The least cost of a tree into one of the roots and a tree out of it, and their arcs."""
    best: tuple[float, list[tuple[int, int]]] = (np.inf, [])
    for root in roots:
        outwards, inwards = arborescence(far, root), arborescence(far.T, root)
        arcs = [(p, v) for v, p in enumerate(outwards) if v != root] + [
            (v, p) for v, p in enumerate(inwards) if v != root
        ]
        cost = float(sum(far[arc] for arc in arcs))
        if cost < best[0]:
            best = cost, arcs
    return best
