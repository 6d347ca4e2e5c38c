"""Lower bounds: never above what some schedule does, exact where theory says so."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations

import networkx as nx
import pytest
from asked import run
from exhaustive import AllreduceSearch, CopySearch, all_paths
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import machine, machines, seeded_machine

from teccl_msccl.collective.demand import COLLECTIVES, demand_for
from teccl_msccl.synthesis.bounds import (
    allgather_cuts,
    latencies,
    lower_bound_us,
    lower_bounds,
    program_bound_us,
    whole_chunks_us,
)
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.synthesis.routes import Router
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.paths import direct_paths

JUST_BELOW = 1 - 1e-9


# -- figures that are known ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "collective", "size", "bound"),
    [
        ("ring-8", "allgather", 1e6, 9.25),  # 7/8 MB over two links of 50 GB/s that deliver from 0.5 µs on
        ("full-8", "allgather", 1e6, 3.0),
        ("star-8", "allgather", 1e6, 18.0),
        ("mesh-4x4", "allgather", 1e6, 9.875),
        ("teccl-dgx1", "allgather", 1e6, 6.0 + 8 / 15),
        ("teccl-dgx1", "allgather", 1e3, 1.4025),  # 3 GPUs are 1.4 µs away
        ("ring-8", "reduce_scatter", 1e6, 9.25),
        ("ring-8", "allgather", 0, 2.0),
        ("ring-8", "alltoall", 1e9, 20000.0),
        ("hypercube-8", "alltoall", 1e9, 10000.0),
        ("ring-8", "allreduce", 1e9, 17500.5),
        ("star-8", "allreduce", 1e9, 35000.5),
        ("mesh-4x4", "allreduce", 1e9, 12500.5),  # 80 GB/s: better than reduce-scatter and allgather, by free roots
        ("ring-8", "allreduce", 1, 4.0),  # there and back again
        ("line-5", "broadcast", 1e6, 22.0),  # the last byte leaves after 20 µs and has four hops of 0.5 before it
        ("line-5", "broadcast", 1, 2.0),
        ("line-2", "reduce", 1e6, 20.5),
    ],
)
def test_known_figures(name, collective, size, bound):
    topology = Topology.load(name)
    found = lower_bounds(topology, demand_for(collective, topology.nranks, size))
    assert found[0].bound_us == pytest.approx(bound, rel=1e-4)
    assert found[0].bound_us == max(term.bound_us for term in found)
    assert all(term.certificate for term in found)


@pytest.mark.parametrize(
    ("name", "collective", "nchunks", "bound"),
    [
        ("line-4", "broadcast", 1, 3 * (0.5 + 20)),
        ("ring-8", "allgather", 1, 4 * (0.5 + 2.5)),  # the farthest is 4 hops away
        ("ring-8", "allgather", 8, 0.5 + 28 * 2.5 / 8),
        ("star-8", "allgather", 1, 0.5 + 7 * 2.5),
        ("line-2", "alltoall", 3, 0.5 + 10),
        ("star-4", "gather", 2, 0.5 + 15),
    ],
)
def test_known_figures_for_whole_chunks(name, collective, nchunks, bound):
    topology = Topology.load(name)
    demand = demand_for(collective, topology.nranks, 1e6, nchunks)
    assert whole_chunks_us(topology, demand) == pytest.approx(bound)


# -- against every schedule there is -----------------------------------------------------------------------------

COPYING = ("allgather", "alltoall", "broadcast", "gather", "scatter")
BACKWARDS = {"reduce_scatter": "allgather", "reduce": "broadcast"}


def small_cases(collectives, seeds, most_gpus=4, most_paths=12):
    """(seed, topology, demand) with one or two chunks a share."""
    for seed in seeds:
        rng = random.Random(seed)
        topology = seeded_machine(seed, 2, most_gpus, 1)
        if len(all_paths(topology)) <= most_paths:
            count = 1 if topology.nranks > 3 else rng.choice([1, 2])
            size = rng.choice([1e3, 1e5, 1e6])
            root = rng.randrange(topology.nranks)
            yield seed, topology, demand_for(rng.choice(collectives), topology.nranks, size, count, root)


def test_no_schedule_beats_a_bound():
    """Over 500 small machines; a search that runs out of steps decides nothing and does not count."""
    decided = attained = 0
    for seed, topology, demand in small_cases(COPYING, range(360)):
        usual = [path.links for path in direct_paths(topology)]
        for bound, paths in (
            (lower_bound_us(topology, demand), None),
            (whole_chunks_us(topology, demand), usual),
        ):
            beaten = CopySearch(topology, demand, paths).beats(bound * JUST_BELOW, steps=250)
            assert not beaten, f"seed {seed}: {demand.collective} in less than {bound} µs"
            decided += beaten is not None
        best = min(trial.finish_us for trial in GreedySearch(topology).trials(demand, range(8), jobs=1))
        attained += best <= 1.0001 * bound
    assert decided > 500
    assert attained > 180  # the whole-chunk bound is not only sound: most of these machines attain it


def test_no_reduction_beats_a_bound():
    """A reduction backwards is a copy on the reversed machine."""
    decided = 0
    for seed, topology, demand in small_cases(tuple(BACKWARDS), range(1000, 1150)):
        bound = lower_bound_us(topology, demand)
        beaten = CopySearch(topology.reversed(), demand.reversed()).beats(bound * JUST_BELOW, steps=250)
        assert not beaten, f"seed {seed}: {demand.collective} in less than {bound} µs"
        decided += beaten is not None
    assert decided > 100


def test_no_allreduce_beats_a_bound():
    decided = attained = 0
    for seed, topology, demand in small_cases(("allreduce",), range(2000, 2130), most_gpus=3, most_paths=8):
        bound = lower_bound_us(topology, demand)
        search = AllreduceSearch(topology, demand)
        beaten = search.beats(bound * JUST_BELOW, steps=1500)
        assert not beaten, f"seed {seed}: allreduce in less than {bound} µs"
        decided += beaten is not None
        attained += search.beats(bound * 1.2, steps=1500) is True
    assert decided > 70
    assert attained > 25


def test_the_exhaustive_search_finds_what_exists():
    """Its own proof: whatever a trial of the greedy search reaches, it reaches too, and not a bit less at worst."""
    found = 0
    for _, topology, demand in small_cases(COPYING, range(60), most_gpus=3, most_paths=6):
        usual = [path.links for path in direct_paths(topology)]
        best = min(trial.finish_us for trial in GreedySearch(topology).trials(demand, range(8), jobs=1))
        outcome = CopySearch(topology, demand, usual).beats(best * 1.0001, steps=3000)
        assert outcome is not False
        found += outcome is True
    assert found > 15


@settings(max_examples=25, deadline=None)
@given(machines(), st.sampled_from(sorted(COLLECTIVES)), st.sampled_from([0, 1, 1e3, 1e6, 1e15]), st.integers(0, 5))
def test_no_bound_is_above_a_schedule_found(topology, collective, size, root):
    """Many chunks come near what any splitting can do."""
    problem = Problem(topology, collective, size, root % topology.nranks)
    bound = lower_bound_us(topology, problem.demand(1))
    for count in (1, 3, 12):
        parts = [GreedySearch(stage.topology).trial(stage.demand(count), 0) for stage in problem.stages]
        schedule = problem.assemble(parts)
        schedule.validate()
        assert schedule.finish_us >= bound * (1 - 1e-9)
        assert lower_bound_us(topology, problem.demand(count)) == pytest.approx(bound)
        for stage, part in zip(problem.stages, parts, strict=True):
            assert part.finish_us >= whole_chunks_us(stage.topology, part.demand) * (1 - 1e-9)


# -- the allgather's cuts, by enumeration --------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(machines(most=5))
def test_the_allgather_rate_is_the_least_over_all_node_sets(topology):
    rate, sets = allgather_cuts(topology)
    nodes = [node.id for node in topology.nodes]
    gpus = set(topology.gpus)

    def allowed(senders: set[int]) -> Fraction:
        out = sum(Fraction(link.bandwidth_GBps) for link in topology.links if _leaves(link, senders))
        return out / len(senders & gpus)

    every = [set(some) for k in range(1, len(nodes)) for some in combinations(nodes, k)]
    ratios = [allowed(some) for some in every if some & gpus and gpus - some]
    assert rate == min(ratios)
    for entered in sets:
        assert allowed(set(nodes) - entered) >= rate
    if sets:
        assert allowed(set(nodes) - sets[-1]) == rate


def test_a_cut_that_no_gpu_or_host_shows():
    """Two pairs of GPUs joined by one thin wire: only the cut between the pairs tells."""
    pairs = machine("gggg", [(0, 1, 100, 0), (2, 3, 100, 0), (1, 2, 10, 0.25)])
    found = lower_bounds(pairs, demand_for("allgather", 4, 4e6))
    assert found[0].term == "cut"
    assert found[0].bound_us == pytest.approx(2e6 / 1e4 + 0.25)


def test_what_a_slow_link_brings_near_is_not_there_soon():
    """A ring with diagonals of 0.5 GB/s: 250 bytes take one of them 0.5 + 0.5 µs, two hops of the ring 1 µs and more;
    with all of a GPU's data, for which its links are fast, in one sum, the bound was half of it."""
    ring = [(a, (a + 1) % 4, 50, 0.5) for a in range(4)]
    topology = machine("gggg", [*ring, (0, 2, 0.5, 0.5), (1, 3, 0.5, 0.5)])
    for collective in ("allgather", "reduce_scatter", "alltoall"):
        demand = demand_for(collective, 4, 1e3)
        assert lower_bound_us(topology, demand) == pytest.approx(1.0, rel=1e-6)
    assert run(topology, "allgather", 1e3, method="direct").gap < 1e-6


@settings(max_examples=30, deadline=None)
@given(machines())
def test_latencies_are_least_alpha_sums(topology):
    found = latencies(topology)
    graph = topology.graph()
    for one in topology.gpus:
        for other in topology.gpus:
            routes = nx.all_simple_edge_paths(graph, one, other) if one != other else [[]]
            sums = (sum(topology.link_by_id[key].alpha_us for _, _, key in route) for route in _first(routes, 3000))
            assert found[one][other] <= min(sums) + 1e-9


def _first(items, most):
    return (item for item, _ in zip(items, range(most), strict=False))


def _leaves(link, nodes):
    return link.src in nodes and link.dst not in nodes


def test_links_that_no_program_can_choose_bound_nothing():
    """Beside 24 GB/s to a hub that also joins them, three GPUs have one of 100 GB/s, which programs take."""
    both = machine("gggss", [(i, s, GBps, 0.5) for i in range(3) for s, GBps in ((3, 100), (4, 24))])
    demand = demand_for("allgather", 3, 3e9)
    assert lower_bound_us(both, demand) == pytest.approx(2e6 / 124 + 1.0, rel=1e-6)
    assert program_bound_us(both, demand) == pytest.approx(2e6 / 100 + 1.0, rel=1e-6)


def test_links_between_hosts_count_for_programs():
    """The same hub as the only way between hosts."""
    topology = Topology.load("dgx-a100", hosts=2)
    demand = demand_for("allgather", 16, 1e9)
    assert program_bound_us(topology, demand) == pytest.approx(lower_bound_us(topology, demand), rel=1e-9)


@pytest.mark.parametrize("collective", ["allgather", "alltoall", "allreduce"])
def test_no_schedule_on_direct_paths_beats_what_programs_can(collective):
    for seed in range(10):
        topology = seeded_machine(seed, most=4, switches=2)
        demand = demand_for(collective, topology.nranks, 1e6, 2)
        bound_us = program_bound_us(topology, demand)
        assert bound_us >= lower_bound_us(topology, demand) * 0.999  # the trees' prices are not the very best
        router = Router(topology, demand)
        routes = router.justified(router.packed(0.1, 4, 0.0, seed)[0], shared=True)
        assert router.rerouted(routes, 0.0, 50, seed).finish_us >= bound_us * JUST_BELOW
