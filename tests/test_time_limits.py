"""What a time limit cuts short: bounds that still hold, linear programs without an answer, baselines all the same."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from math import inf

import pytest
from asked import run
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from strategies import machines, seeded_machine

from teccl_msccl import InputError
from teccl_msccl.collective.demand import COLLECTIVES, demand_for
from teccl_msccl.synthesis import allreduce_bound, bounds, budget, flow, portfolio
from teccl_msccl.synthesis.baselines import search
from teccl_msccl.synthesis.bounds import allgather_cuts, lower_bounds
from teccl_msccl.synthesis.budget import Budget
from teccl_msccl.synthesis.flow import bytes_between, concurrent_flow, flow_bound
from teccl_msccl.synthesis.incumbent import INDIFFERENCE, Incumbent
from teccl_msccl.synthesis.lp import FlowRouting
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.synthesis.settings import Settings
from teccl_msccl.topology.model import Topology


@pytest.fixture
def ticking(monkeypatch):
    """A processor whose time passes by a second whenever somebody looks."""
    seconds = count()
    monkeypatch.setattr(budget, "thread_time", lambda: float(next(seconds)))


# -- bounds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce", "alltoall", "gather"])
def test_bounds_cut_short_hold_and_are_no_better_than_whole_ones(ticking, collective):
    for seed in range(3 if collective == "allreduce" else 6):
        topology = seeded_machine(seed, least=3)
        demand = demand_for(collective, topology.nranks, 1e6)
        whole_us = lower_bounds(topology, demand)[0].bound_us
        for seconds in (0, 3, 6, 12):
            short_us = lower_bounds(topology, demand, Budget(seconds))[0].bound_us
            assert 0 < short_us <= whole_us * (1 + 1e-4)


def test_no_budget_is_no_linear_program_and_no_tree(monkeypatch):
    def too_dear(*args, **kwargs):
        raise AssertionError("there was no time for this")

    monkeypatch.setattr(flow, "solve_linear", too_dear)
    monkeypatch.setattr(allreduce_bound, "arborescence", too_dear)
    monkeypatch.setattr(bounds, "_tightest_cut", too_dear)
    topology = Topology.load("mesh-3x3")
    for collective in ("allgather", "reduce_scatter", "allreduce", "alltoall"):
        assert lower_bounds(topology, demand_for(collective, 9, 1e6), Budget(0))[0].bound_us > 0
    for collective in ("allreduce", "alltoall"):
        with pytest.raises(AssertionError, match="no time"):
            lower_bounds(topology, demand_for(collective, 9, 1e6))


def test_a_budget_is_what_rounds_of_trees_and_cuts_are_counted_by(ticking, monkeypatch):
    rounds = []
    master, cut = allreduce_bound._master, bounds._tightest_cut
    monkeypatch.setattr(allreduce_bound, "_master", lambda *args: rounds.append("tree") or master(*args))
    monkeypatch.setattr(bounds, "_tightest_cut", lambda *args: rounds.append("cut") or cut(*args))
    topology = Topology.load("mesh-4x4")
    latency = bounds.latencies(topology)
    for seconds, most in ((2, 1), (3, 2), (inf, 40)):
        rounds.clear()
        allreduce_bound.tree_bound(topology, 1e9, latency, Budget(seconds))
        assert min(most, 4) <= len(rounds) <= most  # one look is spent on whether to begin
    rounds.clear()
    allgather_cuts(topology, Budget(6))
    assert 0 < len(rounds) < topology.nranks


def test_a_flow_of_single_prices_is_the_bound_of_a_torus():
    """Where all links are alike and used alike, a price of one for each is the maximum flow's."""
    demand = demand_for("alltoall", 16, 64e6)
    quick, exact = (flow_bound(Topology.load("torus-4x4"), demand, None, b) for b in (Budget(0), Budget()))
    assert quick.bound_us == pytest.approx(exact.bound_us, rel=1e-6)
    assert (quick.maximum, exact.maximum) == (False, True)


# -- linear programs -----------------------------------------------------------------------------------------------


def test_a_flow_not_found_in_time_leaves_the_quickest_routes():
    topology = Topology.load("mesh-5x5")
    demand = demand_for("alltoall", 25, 1e6)
    wanted = bytes_between(demand)
    assert concurrent_flow(topology, wanted, seconds=0.05) is None
    for seconds, most in ((0.05, 1), (60.0, 2)):
        routing = FlowRouting(topology, wanted, seconds)
        assert len(list(routing._shares(demand))) == most
        next(routing.schedules(demand, seed=0)).validate()


# -- baselines -----------------------------------------------------------------------------------------------------


@given(
    topology=machines(most=4, switches=1),
    collective=st.sampled_from(tuple(COLLECTIVES)),
    size=st.sampled_from((1e3, 1e7)),
)
@hypothesis_settings(max_examples=10, deadline=None)
def test_auto_is_no_slower_than_any_baseline_even_if_the_next_search_takes_all_the_time(topology, collective, size):
    def eat_the_time(incumbent: Incumbent, settings: Settings) -> None:
        incumbent.deadline = incumbent.began

    with pytest.MonkeyPatch.context() as patch:
        for later in ("search_symmetrically", "search_trees", "search_rails"):
            patch.setattr(portfolio, later, eat_the_time)
        for name in ("tree_bound", "flow_bound"):  # dear, and not what this is about
            patch.setattr(bounds, name, lambda *args: None)
        found = run(topology, collective, size, time_limit=600).schedule
        for name in (*portfolio.BASELINES, "bfb"):
            with suppress(InputError):  # it does not do this
                other = run(topology, collective, size, method=name, time_limit=600).schedule
                assert found.finish_us <= other.finish_us * (1 + INDIFFERENCE), name


def test_baselines_that_would_take_more_than_their_part_of_the_time_are_left_out(ticking, monkeypatch):
    """Time passes by a second at every look: 16 wants, of 0.8 s each, fit into a quarter of 60 s, but only once."""
    begun = []
    monkeypatch.setattr(search, "baseline_schedule", lambda topology, demand, it: begun.append(it.name) or it_all)
    monkeypatch.setattr(search, "OFFERED_S", inf)
    problem = Problem(Topology.load("star-4"), "allgather", 1e6)
    it_all = run(problem.topology, "allgather", 1e6, method="greedy", nchunks=1, time_limit=0).schedule
    for seconds, least, most in ((0.8, 1, 9), (3.0, 0, 0)):
        begun.clear()
        monkeypatch.setattr(search, "SECONDS_PER_WANT", seconds)
        incumbent = Incumbent(problem, 60, lambda progress: None)
        search.offer_baselines(incumbent, Settings())
        assert least <= len(begun) <= most
        assert len(set(begun)) == least
