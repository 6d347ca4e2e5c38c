"""Hierarchy: clusters of equal hosts, rail by rail; proved by the replay and held against the bounds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis import bounds, portfolio
from teccl_msccl.synthesis.ask import ask
from teccl_msccl.synthesis.baselines import search
from teccl_msccl.synthesis.baselines.search import BASELINES, baseline_schedule
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.hierarchy import Hierarchy, search_hierarchically
from teccl_msccl.synthesis.incumbent import Incumbent
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.synthesis.settings import Settings
from teccl_msccl.synthesis.symmetry import SymmetricSearch
from teccl_msccl.topology.model import Topology


@pytest.fixture(autouse=True)
def quick_bounds(monkeypatch):
    monkeypatch.setattr(bounds, "LARGE", 0)


def solver(problem: Problem) -> Schedule:
    """Sub-problems by a few trials."""
    topology = problem.topology
    search = SymmetricSearch.of(topology) or GreedySearch(topology)
    demand = demand_for(problem.collective, topology.nranks, problem.size_bytes, 1)
    return min(search.trials(demand, range(4)), key=lambda schedule: schedule.finish_us)


def searched(topology: Topology, collective: str, size: float, nchunks: int | None = None) -> Incumbent:
    incumbent = Incumbent(Problem(topology, collective, size), 60, lambda progress: None)
    search_hierarchically(incumbent, Settings(nchunks=nchunks), solver)
    return incumbent


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce", "alltoall"])
@pytest.mark.parametrize(("hosts", "network"), [(2, "single-switch"), (4, "rail")])
def test_near_the_bound_on_hosts_with_a_nic_per_gpu(hosts, network, collective):
    incumbent = searched(Topology.load("dgx-h100", hosts=hosts, network=network), collective, 1e9)
    schedule = incumbent.best
    assert schedule is not None
    schedule.validate()
    assert schedule.finish_us <= (1.06 if hosts == 2 else 1.04) * incumbent.bound_us


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["dgx-a100", "dgx1", "mi300x", "ndv2", "a100x4", "hgx-b200"]),
    st.sampled_from([2, 3]),
    st.sampled_from(["rail", "rail:2", "fat-tree", "single-switch", "ring"]),
    st.sampled_from(["allgather", "alltoall"]),
    st.sampled_from([1, 2]),
)
def test_any_composition_is_scheduled_or_left_to_others(name, hosts, network, collective, nchunks):
    topology = Topology.load(name, hosts=hosts, network=network)
    hierarchy = Hierarchy.of(topology, solver)
    if hierarchy is None:
        return
    schedule = hierarchy.schedule(demand_for(collective, topology.nranks, 1e6, nchunks))
    schedule.validate()
    assert schedule.finish_us >= bounds.lower_bound_us(topology, schedule.demand) * (1 - 1e-9)


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100"])
def test_uneven_exchanges_go_the_ways_of_even_ones(name):
    """As experts have it: some pairs have much to send, some nothing."""
    topology = Topology.load(name, hosts=2, network="rail")
    draw = Random(1)
    matrix = [[1e6 * draw.choice([0, 1, 1, 2, 5]) * (s != d) for d in range(16)] for s in range(16)]
    problem = ask(topology, "alltoallv", matrix=matrix)
    incumbent = Incumbent(problem, 60, lambda progress: None)
    search_hierarchically(incumbent, Settings(), solver)
    assert incumbent.best is not None
    incumbent.best.validate()
    direct = baseline_schedule(topology, problem.demand(1), BASELINES["direct"])
    assert incumbent.best.finish_us < 0.7 * direct.finish_us


def test_rails_that_look_alike_are_solved_once():
    hierarchy = Hierarchy.of(Topology.load("dgx-h100", hosts=3, network="rail"), solver)
    assert hierarchy is not None and len(hierarchy.rails) == 8
    hierarchy.schedule(demand_for("allgather", 24, 1e9, 1))
    assert len(hierarchy._solved_rails) == 1


def test_every_host_takes_in_each_chunk_once():
    """What makes it optimal: no chunk enters a host twice."""
    topology = Topology.load("dgx-h100", hosts=3, network="rail")
    schedule = searched(topology, "allgather", 1e9, nchunks=1).best
    assert schedule is not None
    host = {rank: topology.node_by_id[gpu].host for rank, gpu in enumerate(topology.gpus)}
    entries = [
        (send.chunk, host[target])
        for send in schedule.sends
        for source, target in [schedule.ends(send)]
        if host[source] != host[target]
    ]
    assert len(entries) == len(set(entries)) == 24 * 2


@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
def test_ways_that_are_alike_take_turns(collective):
    """Two GPUs share two NICs: each rail alone fills one."""
    incumbent = searched(Topology.load("dgx-a100", hosts=2, network="rail"), collective, 1e9, nchunks=2)
    assert incumbent.best is not None
    assert incumbent.best.finish_us <= (1.1 if collective == "allgather" else 1.001) * incumbent.bound_us


def test_large_clusters_without_structure_get_what_the_field_does(monkeypatch):
    whole = Topology.load("dgx1", hosts=2)
    lame = replace(whole, links=whole.links[1:])
    assert Hierarchy.of(lame, solver) is None
    monkeypatch.setattr(portfolio, "greedy_seconds", lambda problem: 1e9)
    monkeypatch.setattr(search, "OFFERED", ())
    for search_of_structure in ("search_rails", "plant_pipelines"):
        monkeypatch.setattr(portfolio, search_of_structure, lambda incumbent, settings: None)
    for collective in ("allgather", "allreduce", "broadcast"):
        result = portfolio.run(Problem(lame, collective, 1e6), Settings(nchunks=1), time_limit=0.5)
        result.schedule.validate()
        assert result.method in ("hierarchical", "direct")


def test_nothing_to_do_on_one_host_or_for_a_root():
    assert searched(Topology.load("dgx-h100"), "allgather", 1e6).best is None
    assert searched(Topology.load("dgx-h100", hosts=2), "broadcast", 1e6).best is None
