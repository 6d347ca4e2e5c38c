"""Symmetry: one GPU's chunks stand for all; the whole takes as long as the part where links are not shared."""

from __future__ import annotations

import pytest

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.synthesis.bounds import lower_bound_us, program_bound_us
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.incumbent import Incumbent
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.synthesis.settings import Settings
from teccl_msccl.synthesis.symmetric_routes import FreeRootsRouter, SymmetricRouter
from teccl_msccl.synthesis.symmetric_search import search_symmetrically
from teccl_msccl.synthesis.symmetry import SymmetricSearch
from teccl_msccl.topology.model import Topology

MACHINES = ["ring-5", "torus-3x3", "hypercube-8", "star-5", "full-4", "dgx-h100", "mi300x"]


@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
@pytest.mark.parametrize("name", MACHINES)
def test_the_whole_takes_as_long_as_the_part(name, collective):
    topology = Topology.load(name)
    search = SymmetricSearch.of(topology)
    assert search is not None
    demand = demand_for(collective, topology.nranks, 1e6, 2)
    for schedule in search.trials(demand, range(3)):
        schedule.validate()
        assert schedule.finish_us == pytest.approx(search.found[2].finish_us)
        assert schedule.finish_us >= lower_bound_us(topology, demand) * (1 - 1e-9)


@pytest.mark.parametrize(("name", "hosts"), [("dgx1", 2), ("teccl-dgx2", 2), ("teccl-ndv2", 4), ("dgx-a100", 2)])
def test_hosts_stand_for_each_other_where_gpus_do_not(name, hosts):
    search = SymmetricSearch.of(Topology.load(name, hosts=hosts))
    assert search is not None
    demand = demand_for("allgather", search.quotient.nranks, 1e6, 1)
    (schedule,) = search.trials(demand, range(1))
    schedule.validate()


@pytest.mark.parametrize("name", ["ring-6", "torus-3x3", "hypercube-8", "star-6"])
def test_as_good_as_the_search_without_symmetry(name):
    topology = Topology.load(name)
    demand = demand_for("allgather", topology.nranks, 1e8, 4)
    search = SymmetricSearch.of(topology)
    assert search is not None
    best_us = min(schedule.finish_us for schedule in search.trials(demand, range(24)))
    plain_us = min(schedule.finish_us for schedule in GreedySearch(topology).trials(demand, range(24)))
    assert best_us <= plain_us * 1.02


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce", "alltoall"])
def test_every_stage_is_searched(collective):
    incumbent = Incumbent(Problem(Topology.load("torus-3x3"), collective, 1e8), 20, lambda progress: None)
    search_symmetrically(incumbent, Settings(nchunks=4))
    assert incumbent.best is not None
    incumbent.best.validate()
    assert incumbent.best.finish_us <= 1.15 * incumbent.bound_us


def test_the_torus_is_filled_to_the_brim():
    """4 chunks on 4 links a GPU: the bandwidth bound, exactly."""
    incumbent = Incumbent(Problem(Topology.load("torus-4x4"), "allgather", 1e9), 20, lambda progress: None)
    search_symmetrically(incumbent, Settings(nchunks=4))
    assert incumbent.closed(1e-3)


@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
@pytest.mark.parametrize("name", ["ring-6", "torus-3x3", "teccl-dgx1", "dgx-a100"])
def test_trees_of_a_part_are_everybodys(name, collective):
    topology = Topology.load(name)
    search = SymmetricSearch.of(topology)
    assert search is not None
    router = SymmetricRouter(topology, demand_for(collective, topology.nranks, 1e8, 2), search)
    routes = router.justified(router.packed(0.1, 8, 0.0, 0)[0], shared=True)
    better = router.rerouted(routes, 0.0, 100, 0)
    assert better.finish_us <= routes.finish_us
    for one in (routes, better):
        schedule = router.schedule(one)
        schedule.validate()
        assert schedule.finish_us == pytest.approx(one.finish_us)


@pytest.mark.parametrize(("name", "nchunks", "most"), [("dgx-a100", 24, 0.01), ("dgx1", 48, 0.015)])
def test_trees_of_a_part_fill_unequal_links_of_two_hosts(name, nchunks, most):
    """Fast links within hosts and slow ones between: both are filled for nearly all of the time."""
    topology = Topology.load(name, hosts=2)
    demand = demand_for("allgather", 16, 1e9, nchunks)
    search = SymmetricSearch.of(topology)
    assert search is not None
    router, floor_us = SymmetricRouter(topology, demand, search), lower_bound_us(topology, demand)
    routes = router.justified(router.packed(0.01, 32, 0.0, 0)[0], shared=True)
    for seed in range(8):
        routes = router.justified(router.rerouted(routes, floor_us, 300, seed))
    schedule = router.schedule(routes)
    schedule.validate()
    assert schedule.finish_us <= (1 + most) * floor_us


@pytest.mark.parametrize(("name", "most"), [("mesh-2x4", 0.08), ("ring-6", 0.04), ("full-4", 0.02)])
def test_an_allreduce_of_a_part_with_free_roots_is_everybodys(name, most):
    """On a mesh equal shares take half as long again."""
    topology = Topology.load(name)
    search = SymmetricSearch.of(topology)
    assert search is not None
    demand = demand_for("allreduce", topology.nranks, 1e9, 48 * topology.nranks)
    floor_us = program_bound_us(topology, demand)
    router = FreeRootsRouter(topology, demand, search.quotient)
    trees = router.packed(0.1, 16, 0.0, 0)[0].delayed(0.9 * floor_us * router.turns)
    routes = router.justified(router.justified(trees, shared=True))
    for seed in range(3):
        routes = router.justified(router.rerouted(routes, floor_us, 100, seed))
    schedule = router.schedule(routes)
    schedule.validate()
    assert schedule.finish_us <= routes.finish_us * (1 + 1e-9)
    assert schedule.finish_us <= (1 + most) * floor_us


def test_no_symmetry_no_search():
    assert SymmetricSearch.of(Topology.load("mesh-3x3")) is None  # whatever moves leaves its middle
    incumbent = Incumbent(Problem(Topology.load("line-5"), "allgather", 1e6), 5, lambda progress: None)
    search_symmetrically(incumbent, Settings())
    assert incumbent.best is None


def test_large_sizes_have_schedules_of_few_chunks_too() -> None:
    """Of large data the finest chunks are tried first, and end at the bound; files hold fewer, which do so as well."""
    problem = Problem(Topology.load("star-4"), "allgather", 2e8)
    incumbent = Incumbent(problem, 60, lambda progress: None)
    search_symmetrically(incumbent, Settings())
    assert set(incumbent.whole) >= {96, 48, 24, 12}
    assert all(schedule.finish_us <= 1.001 * incumbent.bound_us for _, schedule in incumbent.whole.values())
    assert all(max(chunk.bytes for chunk in s.demand.chunks) <= 8e6 for _, s in incumbent.whole.values())
