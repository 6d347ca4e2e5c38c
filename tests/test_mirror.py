"""Reductions: copies run backwards, on machines whose links differ by direction."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import machine, machines

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.mirror import chained, mirrored
from teccl_msccl.topology.model import Topology

BACKWARDS = {"reduce_scatter": "allgather", "reduce": "broadcast"}


def searched(topology: Topology, demand, seed: int) -> Schedule:
    return GreedySearch(topology).trial(demand, seed)


@settings(max_examples=80, deadline=None)
@given(machines(), st.sampled_from(sorted(BACKWARDS)), st.sampled_from([0, 1, 1e4, 1e6, 1e15]), st.integers(0, 99))
def test_a_reduction_takes_no_longer_than_its_copy_backwards(topology, collective, size, seed):
    """Also where paths of several links cross a shared link in another order than they start."""
    count, root = 1 + seed % 3, seed % topology.nranks
    copy = searched(topology.reversed(), demand_for(BACKWARDS[collective], topology.nranks, size, count, root), seed)
    demand = demand_for(collective, topology.nranks, size, count, root)
    reduction = mirrored(copy, topology, demand)
    reduction.validate()
    assert reduction.demand == demand
    assert reduction.topology == topology
    assert reduction.finish_us <= copy.finish_us * (1 + 1e-9) + 1e-9
    assert all(send.reduce for send in reduction.sends)
    assert sorted(s.path[::-1] for s in copy.sends) == sorted(s.path for s in reduction.sends)


@settings(max_examples=60, deadline=None)
@given(machines(most=5), st.sampled_from([0, 1e4, 1e6]), st.integers(0, 99))
def test_an_allreduce_overlaps_its_phases(topology, size, seed):
    n, count = topology.nranks, 1 + seed % 2
    gather = demand_for("allgather", n, size, count)
    scatter = mirrored(
        searched(topology.reversed(), gather, seed), topology, demand_for("reduce_scatter", n, size, count)
    )
    spread = searched(topology, gather, seed + 1)
    whole = chained(scatter, spread, demand_for("allreduce", n, size, n * count))
    whole.validate()
    assert whole.finish_us <= (scatter.finish_us + spread.finish_us) * (1 + 1e-9) + 1e-9
    assert [send.reduce for send in whole.sends].count(True) == len(scatter.sends)


@pytest.mark.parametrize(("there", "back"), [(100, 10), (10, 100)])
def test_one_slow_direction(there, back):
    """Reducing uses the links that spreading does not: a one-way figure on either side shows in the finish."""
    pair = machine("gg", [(0, 1, there, 0.0), (1, 0, back, 0.0)], one_way=True)
    copy = searched(pair.reversed(), demand_for("broadcast", 2, 1e5), 0)
    reduction = mirrored(copy, pair, demand_for("reduce", 2, 1e5))
    assert reduction.finish_us == pytest.approx(1e5 / (back * 1e3))


def test_a_shared_link_is_left_in_the_reverse_order():
    """Two GPUs far and near behind one switch: forwards the far one is served first, backwards it arrives last."""
    fan = machine("gggs", [(0, 3, 50, 0), (3, 1, 50, 10), (3, 2, 50, 0)])
    for seed in range(8):
        copy = searched(fan.reversed(), demand_for("broadcast", 3, 1e6, 4), seed)
        reduction = mirrored(copy, fan, demand_for("reduce", 3, 1e6, 4))
        reduction.validate()
        assert reduction.finish_us <= copy.finish_us * (1 + 1e-9)


def test_phases_of_one_chunk_do_not_wait_for_those_of_another():
    """On a ring the allgather of a finished chunk starts while other chunks are still being reduced, or at worst
    right after."""
    ring = Topology.load("ring-4")
    rng = random.Random(1)
    overlapped = 0
    for _ in range(10):
        gather = demand_for("allgather", 4, 1e6, 3)
        scatter = mirrored(
            searched(ring.reversed(), gather, rng.randrange(99)), ring, demand_for("reduce_scatter", 4, 1e6, 3)
        )
        spread = searched(ring, gather, rng.randrange(99))
        whole = chained(scatter, spread, demand_for("allreduce", 4, 1e6, 12))
        whole.validate()
        first = min(send.start_us for send in whole.sends if not send.reduce)
        overlapped += first < scatter.finish_us - 1e-6
    assert overlapped
