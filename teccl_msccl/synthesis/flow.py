"""Maximum concurrent flow: the exact bandwidth limit of collectives in which nothing is copied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import networkx as nx
import numpy as np
from mip import xsum
from numpy.typing import NDArray

from ..collective.demand import Demand
from ..topology.model import Topology
from .budget import UNLIMITED, Budget
from .crossing import MOST_LEVELS, filling_time, thinned
from .even import EvenPart, Wanted
from .solver import new_model, solve_linear

#: Flow variables beyond which the linear program is not worth its time in a bound.
MAX_COLUMNS = 30_000
#: Flow variables up to which it is also solved for the farther pairs alone, whose data come later.
MAX_COLUMNS_LEVELS = 8_000
#: Seconds that a flow variable takes to build, and at least to solve for.
COLUMN_S = 5e-5
#: How much longer than the least time flows may take to have shorter ways.
_SHARE_FOR_SHORT_WAYS = 1e-6


@dataclass(frozen=True)
class ConcurrentFlow:
    """An optimum of the time-free linear program for bytes wanted between ranks, flows aggregated by source (TE-CCL,
    arXiv 2305.13479, §4 without epochs):

        min T   s.t.  Σ_in f[s,·] − Σ_out f[s,·] = bytes from s wanted there   at every node but s
                      Σ_s f[s,l] ≤ b_l · T                                     on every link l

    `flow` holds the bytes of each (source rank, link id), `prices` the dual of every link's row.
    """

    flow: Mapping[tuple[int, int], float]
    prices: Mapping[int, float]


@dataclass(frozen=True)
class FlowBound:
    """A lower bound and the (link id, price) pairs that prove it for the `pairs` of ranks at least `least_us` apart;
    whether the prices are those of the `maximum` flow."""

    bound_us: float
    pairs: int
    least_us: float
    prices: Mapping[int, float]
    maximum: bool = True


def flow_bound(
    topology: Topology,
    demand: Demand,
    latency: Mapping[int, Mapping[int, float]] | None = None,
    budget: Budget = UNLIMITED,
) -> FlowBound | None:
    """A lower bound for a copy-free `demand` (alltoall, gather, scatter), exact in bandwidth; None if the program would
    be too large or nothing has to move. `latency`: least α sums between nodes, with which it is a joint α–β bound.

    Of the solver only prices are believed: see `price_bound_us`. Where the `budget` is too small for the program, a
    price of one for each link is what the bound rests on. With latencies it is solved for all pairs of ranks and for
    those at least so far apart, for every distance: they have fewer bytes, but these come to every link later.
    """
    wanted = bytes_between(demand)
    if not wanted:
        return None
    part = EvenPart.of(topology, wanted)
    columns = flow_columns(topology, wanted, part)
    if columns > MAX_COLUMNS:
        return None
    best: FlowBound | None = None
    for least_us in _levels(topology, wanted, latency) if latency and columns <= MAX_COLUMNS_LEVELS else (0.0,):
        far = {
            pair: nbytes
            for pair, nbytes in wanted.items()
            if not latency or latency[topology.gpus[pair[0]]][topology.gpus[pair[1]]] >= least_us - 1e-9
        }
        solved = concurrent_flow(topology, far, seconds=budget.seconds_left, part=part)
        prices = {link.id: 1.0 for link in topology.links} if solved is None else solved.prices
        bound_us = price_bound_us(topology, far, prices, latency, part)
        if best is None or bound_us > best.bound_us:
            best = FlowBound(bound_us, len(far), least_us, prices, solved is not None)
        if budget.spent:
            break
    return best


def flow_columns(topology: Topology, wanted: Wanted, part: EvenPart) -> int:
    """Flow variables of the linear program."""
    return len({source for source, _ in wanted} & part.ranks) * len(topology.links)


def _levels(topology: Topology, wanted: Wanted, latency: Mapping[int, Mapping[int, float]]) -> list[float]:
    """The distances between ranks that want something of each other, ascending."""
    gpus = topology.gpus
    distances = np.unique([round(latency[gpus[s]][gpus[t]], 9) for s, t in wanted])
    return [float(distance) for distance in thinned(distances, MOST_LEVELS // 2)]


def price_bound_us(
    topology: Topology,
    wanted: Wanted,
    prices: Mapping[int, float],
    latency: Mapping[int, Mapping[int, float]] | None = None,
    part: EvenPart | None = None,
) -> float:
    """The bound that link prices (by link id) prove for bytes wanted between ranks.

    For any prices w ≥ 0 every byte from s to t costs at least the w-distance of t from s, and link l, idle for at
    least a_l (the latency to it from the first source and from it to the first target), earns at most
    w_l b_l · max(0, T − a_l):

        Σ_l w_l b_l · max(0, T − a_l)  ≥  Σ bytes(s,t) · dist_w(s,t)

    Without `latency` all a_l are 0. Where prices are alike on the orbits of a `part` that stands for all, its sources'
    costs are everybody's.
    """
    graph = nx.DiGraph()
    for link in topology.links:
        price = max(0.0, prices[link.id])
        known = graph.get_edge_data(link.src, link.dst, {"price": price})["price"]
        graph.add_edge(link.src, link.dst, price=min(price, known))
    distance = {
        source: nx.single_source_dijkstra_path_length(graph, topology.gpus[source], weight="price")
        for source in {source for source, _ in wanted}
        if part is None or source in part.ranks
    }
    cost = sum(
        nbytes * distance[source][topology.gpus[target]]
        for (source, target), nbytes in wanted.items()
        if source in distance
    ) * (1 if part is None else part.count)
    soonest = _soonest(topology, wanted, latency) if latency else dict.fromkeys(prices, 0.0)
    earning = [
        (prices[link.id] * link.bandwidth_GBps, soonest[link.id])
        for link in topology.links
        if prices[link.id] > 0 and soonest[link.id] < np.inf
    ]
    return filling_time(cost, earning) if earning and cost > 0 else 0.0


def _soonest(topology: Topology, wanted: Wanted, latency: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """Per link the least latency from a source to it, α, and the least from it to a target: for so long it is idle at
    the beginning and the end. (The two may belong to different pairs: a link may serve one early, another late.)"""
    pairs = np.array(sorted(wanted))
    gpus = topology.gpus
    to: dict[int, NDArray[Any]] = {}
    since: dict[int, NDArray[Any]] = {}
    for node in topology.nodes:
        to[node.id] = np.array([latency[gpu].get(node.id, np.inf) for gpu in gpus])
        since[node.id] = np.array([latency[node.id].get(gpu, np.inf) for gpu in gpus])
    return {
        link.id: float(to[link.src][pairs[:, 0]].min() + link.alpha_us + since[link.dst][pairs[:, 1]].min())
        for link in topology.links
    }


def bytes_between(demand: Demand) -> dict[tuple[int, int], float]:
    """Bytes from rank to rank."""
    wanted: dict[tuple[int, int], float] = defaultdict(float)
    for chunk in demand.chunks:
        for target in chunk.want:
            if target not in chunk.origin:
                wanted[chunk.origin[0], target] += chunk.bytes
    return {pair: nbytes for pair, nbytes in wanted.items() if nbytes > 0}


def concurrent_flow(
    topology: Topology,
    wanted: Wanted,
    short_ways: bool = False,
    seconds: float = np.inf,
    part: EvenPart | None = None,
) -> ConcurrentFlow | None:
    """An optimal flow, its sizes scaled to about 1 for the solver; None if the solver finds none in so many `seconds`.

    `short_ways`: of all optimal flows (to within a millionth) one with the least latency summed over bytes, so that
    none takes a longer way for nothing. `part`: what stands for all (see `even`); `flow` then holds the bytes of its
    sources only, which everybody else's follow.
    """
    finish_by = monotonic() + seconds
    part = EvenPart(topology, None) if part is None else part
    scale = max(wanted.values())
    unit = max(link.bandwidth_GBps for link in topology.links)
    sources = sorted({source for source, _ in wanted} & part.ranks)
    if len(sources) * len(topology.links) * COLUMN_S > seconds:
        return None
    model: Any = new_model("cbc")
    time = model.add_var(obj=1.0)
    flow = {(s, link.id): model.add_var() for s in sources for link in topology.links}
    for s in sources:
        balance: dict[int, list[Any]] = defaultdict(list)
        for link in topology.links:
            balance[link.dst].append(flow[s, link.id])
            balance[link.src].append(-flow[s, link.id])
        for node, terms in balance.items():
            if node != topology.gpus[s]:
                rank = topology.rank_of.get(node)
                need = round(wanted.get((s, rank), 0.0) / scale, 12) if rank is not None else 0.0
                model += xsum(terms) == need
    carried: dict[int, list[Any]] = defaultdict(list)
    for (_, id), variable in flow.items():
        carried[part.orbit[id]].append(variable)
    capacity = {}
    for first, terms in carried.items():
        bandwidth = topology.link_by_id[first].bandwidth_GBps / unit
        capacity[first] = model.add_constr(part.load(first) * xsum(terms) - bandwidth * time <= 0)
    if not solve_linear(model, finish_by - monotonic()):
        return None
    price = {first: abs(float(row.pi)) / part.size[first] for first, row in capacity.items()}
    if short_ways:
        most = time.x * (1 + _SHARE_FOR_SHORT_WAYS)
        alpha = max(link.alpha_us for link in topology.links) or 1.0
        model.objective = xsum((1 + topology.link_by_id[link].alpha_us / alpha) * f for (_, link), f in flow.items())
        model += time <= most
        if not solve_linear(model, finish_by - monotonic()):
            return None
    return ConcurrentFlow(
        {key: variable.x * scale for key, variable in flow.items() if variable.x > 1e-9},
        {link.id: price[part.orbit[link.id]] for link in topology.links},
    )
