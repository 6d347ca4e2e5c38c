"""Balanced levels: optimal where the graph is symmetric, valid on any direct graph, and balanced indeed."""

from __future__ import annotations

from itertools import product

import pytest
from asked import run
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import machine, machines

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.errors import InputError
from teccl_msccl.synthesis.bounds import lower_bound_us
from teccl_msccl.synthesis.levels import Levels, balanced
from teccl_msccl.topology.model import Topology


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
@pytest.mark.parametrize(("name", "nchunks"), [("ring-8", 2), ("torus-4x4", 4), ("hypercube-16", 4), ("full-5", 1)])
def test_symmetric_graphs_are_optimal_in_latency_and_bandwidth(name, nchunks, collective):
    topology = Topology.load(name)
    for size in (1e6, 1e9):
        result = run(topology, collective, size, method="bfb", nchunks=nchunks)
        result.schedule.validate()
        assert result.method == "bfb"
        assert result.gap < 1e-3


def kautz(degree: int, n: int) -> Topology:
    """Imase and Itoh's generalised Kautz graph: i → −degree·i − 1 … −degree·i − degree (mod n), one way."""
    wires = [(i, (-degree * i - a) % n) for i in range(n) for a in range(1, degree + 1)]
    return machine("g" * n, [(i, j, 50, 0.5) for i, j in wires if i != j], one_way=True)


@pytest.mark.parametrize(("degree", "n"), [(2, 9), (3, 14)])
def test_generalised_kautz_graphs_take_as_many_steps_as_their_diameter(degree, n):
    topology = kautz(degree, n)
    hops = 2 if degree**2 + degree >= n - 1 else 3
    while degree ** (hops + 1) < n:
        hops += 1
    schedule = Levels(topology).schedule(demand_for("allgather", n, n, 1))
    schedule.validate()
    assert schedule.finish_us <= (hops + 1) * 0.5 + 1e-2


@settings(max_examples=20, deadline=None)
@given(machines(most=6, switches=0), st.integers(1, 3), st.sampled_from([1.0, 1e6]))
def test_any_direct_graph_is_served(topology, nchunks, size):
    levels = Levels(topology)
    assert levels.direct
    demand = demand_for("allgather", topology.nranks, size, nchunks)
    schedule = levels.schedule(demand)
    schedule.validate()
    assert schedule.finish_us >= lower_bound_us(topology, demand) * (1 - 1e-9)
    assert len({(send.chunk, schedule.ends(send)[1]) for send in schedule.sends}) == len(schedule.sends)
    assert levels.schedule(demand) == schedule


sources = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True), min_size=1, max_size=4)


@settings(max_examples=50, deadline=None)
@given(sources, st.integers(1, 2), st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_no_other_choice_of_paths_ends_earlier(options, count, before):
    """Against every choice, of links of which one is three times as slow."""
    slowness = (1.0, 1.0, 3.0)
    shares = balanced(dict(enumerate(options)), count, dict(enumerate(before)), slowness)
    assert all(sum(shares[source].values()) == count for source in shares)
    assert all({path for path, n in shares[source].items() if n} <= set(options[source]) for source in shares)

    def busiest(loads) -> float:
        return max(
            (load * slow for load, old, slow in zip(loads, before, slowness, strict=True) if load > old), default=0
        )

    ours = [before[path] + sum(shares[source].get(path, 0) for source in shares) for path in range(3)]
    pieces = [each for each in options for _ in range(count)]
    others = ([before[p] + chosen.count(p) for p in range(3)] for chosen in product(*pieces))
    assert busiest(ours) == min(map(busiest, others))


def test_what_it_does_not_do_is_refused():
    for name, collective in (("star-4", "allgather"), ("ring-4", "alltoall"), ("ring-4", "broadcast")):
        with pytest.raises(InputError, match="method bfb does allgather, reduce_scatter, allreduce"):
            run(Topology.load(name), collective, 1e6, method="bfb", time_limit=1)


def test_auto_takes_it_where_it_is_best():
    result = run(Topology.load("torus-3x3"), "allgather", 1e6, time_limit=5)
    assert result.method == "bfb"
    assert result.gap < 1e-2
