"""The flow bound: closed forms, and validity for any prices."""

from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import machine, machines

from teccl_msccl import Topology
from teccl_msccl.collective.demand import demand_for
from teccl_msccl.synthesis.bounds import latencies
from teccl_msccl.synthesis.flow import bytes_between, concurrent_flow, flow_bound, price_bound_us


def test_closed_forms() -> None:
    """Ring of 8: every GPU's 8 MB cross 2 links on average, 16 links share them; star: 7/8 through one port."""
    ring = Topology.load("ring-8")
    assert flow_bound(ring, demand_for("alltoall", 8, 8e6)).bound_us == pytest.approx(8 * 1e6 * 16 / (16 * 50e3))
    star = Topology.load("star-8")
    for demand in (demand_for("alltoall", 8, 8e6), demand_for("gather", 8, 8e6, root=3)):
        assert flow_bound(star, demand).bound_us == pytest.approx(7e6 / 50e3)
        assert flow_bound(star, demand, latencies(star)).bound_us == pytest.approx(7e6 / 50e3 + 0.5)


def test_published_figures() -> None:
    """The bandwidth limits that a concurrent-flow program proved elsewhere for these two boards."""
    for name, limit_us in (("teccl-dgx1", 13333.3333), ("mesh-4x4", 20000)):
        topology = Topology.load(name)
        assert flow_bound(topology, demand_for("alltoall", topology.nranks, 1e9)).bound_us == pytest.approx(limit_us)


def test_few_bytes_are_bounded_by_those_that_have_far_to_go() -> None:
    """Two GPUs on either side of a thin wire between two others: only the pairs of the outer ones are 2.5 µs apart."""
    wires = [(0, 2, 50, 1.0), (1, 2, 50, 1.0), (2, 3, 10, 0.5), (3, 4, 50, 1.0), (3, 5, 50, 1.0)]
    topology = machine("gggggg", wires)
    found = flow_bound(topology, demand_for("alltoall", 6, 6e3), latencies(topology))
    assert found.pairs < 30 and found.least_us > 0.5
    assert found.bound_us == pytest.approx(2.5 + 4 * 1e3 / 10e3)


@given(machines(most=5))
def test_the_flow_is_one_and_its_prices_prove_it(topology: Topology) -> None:
    """Rechecked in exact fractions: conservation to rounding, and the prices' bound is the flow's time."""
    wanted = bytes_between(demand_for("alltoall", topology.nranks, topology.nranks * 1e6))
    found = concurrent_flow(topology, wanted)
    balance = {(s, node.id): 0.0 for s in range(topology.nranks) for node in topology.nodes}
    load = {link.id: 0.0 for link in topology.links}
    for (source, id), nbytes in found.flow.items():
        link = topology.link_by_id[id]
        balance[source, link.src] -= nbytes
        balance[source, link.dst] += nbytes
        load[id] += nbytes
    for (source, node), net in balance.items():
        rank = topology.rank_of.get(node)
        due = (
            -sum(b for (s, _), b in wanted.items() if s == source) if rank == source else wanted.get((source, rank), 0)
        )
        assert net == pytest.approx(due, abs=10)
    time_us = max(load[link.id] / (link.bandwidth_GBps * 1e3) for link in topology.links)
    assert _exact_bound(topology, wanted, found.prices) == pytest.approx(time_us, rel=1e-3)
    assert float(_exact_bound(topology, wanted, found.prices)) <= time_us * (1 + 1e-6)


def _exact_bound(topology, wanted, prices) -> Fraction:
    graph = nx.MultiDiGraph()
    for link in topology.links:
        graph.add_edge(link.src, link.dst, price=Fraction(prices[link.id]))
    cost = Fraction(0)
    for (source, target), nbytes in wanted.items():
        ends = topology.gpus[source], topology.gpus[target]
        cost += Fraction(nbytes) * nx.dijkstra_path_length(graph, *ends, weight="price")
    return cost / sum(Fraction(prices[link.id]) * Fraction(link.bandwidth_GBps) * 1000 for link in topology.links)


@given(st.lists(st.floats(0, 10), min_size=16, max_size=16))
def test_any_prices_give_a_bound_below_the_optimum(prices: list[float]) -> None:
    ring = Topology.load("ring-8")
    wanted = {(s, t): 1e6 for s in range(8) for t in range(8) if s != t}
    bound = price_bound_us(ring, wanted, dict(enumerate(prices)))
    assert bound <= 8 * 1e6 * 16 / (16 * 50e3) * (1 + 1e-9)


def test_nothing_to_move() -> None:
    assert flow_bound(Topology.load("ring-4"), demand_for("alltoall", 4, 0)) is None
