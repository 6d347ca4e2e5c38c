"""The LP: its schedules against the bound that the same program proves, on machines known and random."""

from collections import Counter, defaultdict

import pytest
from asked import run
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import machine, machines

from teccl_msccl import _core
from teccl_msccl.collective.demand import demand_for
from teccl_msccl.errors import InputError
from teccl_msccl.schedule.simulate import core_demand, core_network
from teccl_msccl.synthesis.bounds import lower_bound_us
from teccl_msccl.synthesis.flow import bytes_between
from teccl_msccl.synthesis.lp import FlowRouting
from teccl_msccl.synthesis.rounding import round_to_chunks
from teccl_msccl.topology.model import Topology


@pytest.mark.parametrize("name", ["ring-8", "star-8", "hypercube-8", "mesh-4x4", "teccl-dgx1", "line-5"])
@pytest.mark.parametrize("size", [1e3, 1e9])
def test_alltoall_is_within_a_hundredth_of_its_bound(name, size):
    result = run(Topology.load(name), "alltoall", size, method="lp", time_limit=5)
    result.schedule.validate()
    assert result.method == "lp"
    assert result.gap <= 0.01


@pytest.mark.parametrize(("collective", "gap"), [("gather", 1e-4), ("scatter", 0.02)])
def test_rooted_collectives_use_every_link_of_the_root(collective, gap):
    result = run(Topology.load("teccl-dgx1"), collective, 1e9, root=2, method="lp", time_limit=5)
    result.schedule.validate()
    assert result.gap <= gap


def test_uplinks_and_downlinks_in_series_are_all_busy_all_the_time():
    """Two rails that only join GPUs of one parity: half of the data change rails inside the hosts."""
    nodes = "gggggggg" + "ss" + "ss"
    wires = [(g, 8 + g // 4, 300, 0.35) for g in range(8)] + [(g, 10 + g % 2, 25, 1.3) for g in range(8)]
    result = run(machine(nodes, wires), "alltoall", 1e9, method="lp", time_limit=10)
    result.schedule.validate()
    assert result.gap <= 0.01


@settings(max_examples=30, deadline=None)
@given(machines(most=5), st.sampled_from(["alltoall", "gather", "scatter"]), st.sampled_from([1, 1e5, 1e9]))
def test_every_schedule_is_valid_and_none_beats_the_bound(topology, collective, size):
    demand = demand_for(collective, topology.nranks, size, 2)
    bound = lower_bound_us(topology, demand)
    routing = FlowRouting(topology, bytes_between(demand))
    found = list(routing.schedules(demand, seed=1))
    assert found
    for schedule in found:
        schedule.validate()
        assert schedule.finish_us >= bound * (1 - 1e-9)
        assert schedule.retimed().finish_us <= schedule.finish_us * (1 + 1e-9)
    assert [s.sends for s in found] == [s.sends for s in routing.schedules(demand, seed=1)]


@pytest.mark.parametrize("time_limit", [0, 0.2])
def test_no_time_still_leaves_a_schedule(time_limit):
    result = run(Topology.load("mesh-3x3"), "alltoall", "1MB", method="lp", time_limit=time_limit)
    result.schedule.validate()
    assert result.seconds < time_limit + 2


def test_no_bytes_at_all():
    run(Topology.load("ring-4"), "alltoall", 0, method="lp", time_limit=1).schedule.validate()


def test_what_copies_is_refused():
    with pytest.raises(InputError, match="allgather copies data"):
        run(Topology.load("ring-4"), "allgather", "1MB", method="lp")


# -- rounding ------------------------------------------------------------------------------------------------------


def test_shares_become_whole_chunks_and_no_link_is_left_busier_than_need_be():
    """Three pairs, two ways each, one of which they share; shares that add up to one chunk and a half."""
    costs = [{0: 1.0}, {1: 1.0}, {2: 1.0}, {3: 1.0}]
    shares = {(0, 1): {(0,): 0.5, (1,): 0.5}, (0, 2): {(0,): 0.5, (2,): 0.5}, (0, 3): {(0,): 0.5, (3,): 0.5}}
    chunks = {pair: (3 * i, 3 * i + 1, 3 * i + 2) for i, pair in enumerate(shares)}
    chosen = round_to_chunks(costs, shares, chunks, [1.0] * 9)
    load = Counter(route for route in chosen.values())
    assert sorted(chosen) == list(range(9))
    assert max(load.values()) == 3


def test_a_chunk_leaves_the_busiest_link():
    """Whole shares put both on link 0; only the moves mend that."""
    costs = [{0: 1.0}, {1: 1.0}]
    shares = {(0, 1): {(0,): 1.0, (1,): 0.0}, (1, 0): {(0,): 1.0, (1,): 0.0}}
    chosen = round_to_chunks(costs, shares, {(0, 1): [0], (1, 0): [1]}, [1.0, 1.0])
    assert sorted(chosen.values()) == [(0,), (1,)]


# -- dispatch --------------------------------------------------------------------------------------------------------


def test_of_what_is_ready_the_highest_priority_is_sent_first():
    line = machine("ggg", [(0, 1, 10, 0.5), (1, 2, 10, 0.5)])
    link = {(x.src, x.dst): x.id for x in line.links}
    demand = demand_for("scatter", 3, 3e4, 2)  # chunks 2, 3 for rank 1; 4, 5 for rank 2; 5,000 bytes: 0.5 µs
    paths = [(link[0, 1],), (link[1, 2],)]
    chunks, ways = [2, 3, 4, 4, 5, 5], [0, 0, 0, 1, 0, 1]
    priority = [1.0, 4.0, 2.0, 0.0, 3.0, 0.0]
    out = _core.dispatch(core_network(line, paths), core_demand(demand), chunks, ways, priority)
    starts = defaultdict(list)
    for chunk, way, start in zip(*(column.tolist() for column in out[:3]), strict=True):
        starts[way].append((start, chunk))
    assert [chunk for _, chunk in sorted(starts[0])] == [3, 5, 4, 2]
    assert [start for start, _ in sorted(starts[0])] == pytest.approx([0, 0.5, 1.0, 1.5])
    assert sorted(starts[1]) == [(pytest.approx(1.5), 5), (pytest.approx(2.0), 4)]


def test_a_chunk_that_never_comes_is_named():
    line = machine("ggg", [(0, 1, 10, 0.5), (1, 2, 10, 0.5)])
    demand = demand_for("scatter", 3, 3e4, 1)
    with pytest.raises(ValueError, match="GPU 1 sends chunk 2 that it never receives"):
        _core.dispatch(core_network(line, [(2,)]), core_demand(demand), [2], [0], [1.0])
