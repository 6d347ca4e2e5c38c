"""Maximum concurrent flow: the exact bandwidth limit of collectives in which nothing is copied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import networkx as nx
from mip import xsum

from ..collective.demand import Demand
from ..topology.model import Topology
from .solver import link_prices, new_model

#: Flow variables beyond which the linear program is not worth its time in a bound.
MAX_COLUMNS = 30_000


def flow_bound_us(topology: Topology, demand: Demand) -> float | None:
    """A lower bound in µs for a copy-free `demand` (alltoall, gather, scatter), exact in bandwidth; None if the
    program would be too large.

    The time-free linear program, flows aggregated by source (TE-CCL, arXiv 2305.13479, §4 without epochs):

        min T   s.t.  Σ_in f[s,·] − Σ_out f[s,·] = bytes from s wanted there   at every node but s
                      Σ_s f[s,l] ≤ b_l · T                                     on every link l

    The solver's dual prices w are then all that is believed of it: for any w ≥ 0, every byte from s to t costs at
    least the w-distance of t from s, so T ≥ Σ bytes(s,t) · dist_w(s,t) / Σ_l w_l b_l.
    """
    wanted = _bytes_between(demand)
    sources = sorted({source for source, _ in wanted})
    if not wanted or len(sources) * len(topology.links) > MAX_COLUMNS:
        return None
    return price_bound_us(topology, wanted, _dual_prices(topology, wanted, sources))


def price_bound_us(topology: Topology, wanted: Mapping[tuple[int, int], float], prices: Mapping[int, float]) -> float:
    """The bound that link prices (by link id) prove for bytes wanted between ranks."""
    graph = nx.DiGraph()
    for link in topology.links:
        price = max(0.0, prices[link.id])
        known = graph.get_edge_data(link.src, link.dst, {"price": price})["price"]
        graph.add_edge(link.src, link.dst, price=min(price, known))
    budget = sum(max(0.0, prices[link.id]) * link.bandwidth_GBps * 1e3 for link in topology.links)
    if budget <= 0:
        return 0.0
    distance = {
        source: nx.single_source_dijkstra_path_length(graph, topology.gpus[source], weight="price")
        for source in {source for source, _ in wanted}
    }
    cost = sum(nbytes * distance[source][topology.gpus[target]] for (source, target), nbytes in wanted.items())
    return float(cost / budget)


def _bytes_between(demand: Demand) -> dict[tuple[int, int], float]:
    """Bytes from rank to rank."""
    wanted: dict[tuple[int, int], float] = defaultdict(float)
    for chunk in demand.chunks:
        for target in chunk.want:
            if target not in chunk.origin:
                wanted[chunk.origin[0], target] += chunk.bytes
    return {pair: nbytes for pair, nbytes in wanted.items() if nbytes > 0}


def _dual_prices(
    topology: Topology, wanted: Mapping[tuple[int, int], float], sources: list[int]
) -> Mapping[int, float]:
    """The links' prices in an optimum of the linear program, sizes scaled to about 1."""
    scale = max(wanted.values())
    unit = max(link.bandwidth_GBps for link in topology.links)
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
                need = wanted.get((s, rank), 0.0) / scale if rank is not None else 0.0
                model += xsum(terms) == need
    capacity = {}
    for link in topology.links:
        load = xsum(flow[s, link.id] for s in sources)
        capacity[link.id] = model.add_constr(load - link.bandwidth_GBps / unit * time <= 0)
    return link_prices(model, capacity)
