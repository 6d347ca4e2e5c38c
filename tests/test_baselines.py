"""The field's algorithms: closed forms, random machines, and data moved over threads."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from math import ceil, log2

import pytest
from asked import run
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from lowered import require_right
from strategies import machine, machines

from teccl_msccl import InputError, lower
from teccl_msccl.collective.demand import COLLECTIVES, demand_for
from teccl_msccl.schedule.group import group_finish_us
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis import portfolio
from teccl_msccl.synthesis.ask import ask
from teccl_msccl.synthesis.baselines.rings import find_rings
from teccl_msccl.synthesis.baselines.search import ALIASES, BASELINES, baseline_schedule, offer_baselines
from teccl_msccl.synthesis.bounds import lower_bound_us
from teccl_msccl.synthesis.greedy import search_greedily
from teccl_msccl.synthesis.incumbent import Incumbent
from teccl_msccl.synthesis.portfolio import method_named
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.synthesis.settings import Settings
from teccl_msccl.topology.model import Topology

SERVED = [(name, each) for name, baseline in BASELINES.items() for each in baseline.serves if each in COLLECTIVES]
ONE_HOST = [(name, collective) for name, collective in SERVED if name != "hierarchical"]


def one_way_ring(n: int, GBps: float, alpha_us: float) -> Topology:
    return machine("g" * n, [(i, (i + 1) % n, GBps, alpha_us) for i in range(n)], one_way=True)


def baseline(
    topology: Topology,
    name: str,
    collective: str,
    size: float,
    nchunks: int = 1,
    root: int = 0,
    variant: int | None = None,
) -> Schedule:
    algorithm = BASELINES[name]
    if variant is not None:
        algorithm = replace(algorithm, planners=algorithm.planners[variant : variant + 1])
    schedule = baseline_schedule(topology, demand_for(collective, topology.nranks, size, nchunks, root), algorithm)
    schedule.validate()
    return schedule


# -- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize(("collective", "rounds"), [("allgather", 1), ("reduce_scatter", 1), ("allreduce", 2)])
def test_a_ring_takes_n_minus_1_steps_of_alpha_and_a_share(n, collective, rounds):
    """(N − 1)(α + S/(N·B)) each for reduce_scatter and allgather (Patarasuk and Yuan)."""
    schedule = baseline(one_way_ring(n, 25.0, 0.7), "ring", collective, n * 1e6, n if collective == "allreduce" else 1)
    assert schedule.finish_us == pytest.approx(rounds * (n - 1) * (0.7 + 1e6 / 25e3))
    assert len(schedule.sends) == rounds * n * (n - 1)


@pytest.mark.parametrize(("n", "pieces"), [(3, 1), (5, 4), (8, 64)])
def test_a_broadcast_flows_along_the_ring(n, pieces):
    """(N − 2 + c)(α + β) but α only once a hop: a pipeline of c pieces over N − 1 hops."""
    schedule = baseline(one_way_ring(n, 25.0, 0.7), "ring", "broadcast", 1e6, pieces)
    piece_us = 40 / pieces
    assert schedule.finish_us == pytest.approx((n - 1) * (0.7 + piece_us) + (pieces - 1) * piece_us)


def ones(number: int) -> int:
    return bin(number).count("1")


@pytest.mark.parametrize("n", [2, 3, 4, 6, 7, 8, 11, 16])
def test_recursive_doubling_takes_log2_steps(n):
    """A partner for every bit; ranks beyond the last power of two are folded in before and out after. Without barriers
    a share is where it has to go after as many hops as its way there has bits."""
    full = Topology.load(f"full-{n}")
    alpha, within = full.links[0].alpha_us, 1 << int(log2(n))
    farthest = max(ones(a % within ^ b % within) + (a >= within) + (b >= within) for a in range(n) for b in range(n))
    for collective, rounds in (("allgather", 1), ("reduce_scatter", 1), ("allreduce", 2)):
        nothing = baseline(full, "recursive-doubling", collective, 0, n if collective == "allreduce" else 1)
        assert nothing.finish_us == pytest.approx(rounds * farthest * alpha)
    assert farthest == log2(n) or within != n
    partners = peers_of(baseline(full, "recursive-doubling", "allgather", 1e6))
    assert [len(partners[rank]) for rank in range(n)] == [
        int(log2(n)) + (rank < n - within) if rank < within else 1 for rank in range(n)
    ]


@pytest.mark.parametrize("n", range(2, 18))
@pytest.mark.parametrize("collective", ["allgather", "alltoall", "reduce_scatter"])
def test_bruck_takes_log2_steps_of_any_number(n, collective):
    full = Topology.load(f"full-{n}")
    schedule = baseline(full, "bruck", collective, 0)
    assert schedule.finish_us == pytest.approx(max(map(ones, range(n))) * full.links[0].alpha_us)
    assert {len(peers) for peers in peers_of(schedule).values()} == {ceil(log2(n))}


def peers_of(schedule: Schedule) -> dict[int, set[int]]:
    """Whom each rank sends to."""
    peers = defaultdict(set)
    for source, target in map(schedule.ends, schedule.sends):
        peers[source].add(target)
    return peers


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_direct_goes_straight(collective):
    full = Topology.load("full-6")
    schedule = baseline(full, "direct", collective, 6e6, 6 if collective == "allreduce" else 1, root=4)
    wire = full.links[0]
    share = 6e6 if collective in ("broadcast", "reduce") else 1e6
    rounds = 2 if collective == "allreduce" else 1
    assert schedule.finish_us == pytest.approx(rounds * (wire.alpha_us + wire.beta_us(share)))
    assert Counter(schedule.ends(send) for send in schedule.sends).most_common(1)[0][1] == rounds


@pytest.mark.parametrize("n", [4, 5, 8, 9, 16])
def test_two_trees_halve_what_a_rank_carries(n):
    """Each rank is inner in at most one tree (save one in an odd rest), so it sends and receives about the whole once
    down, and no chunk is more than ~log₂ N hops from the root."""
    full = Topology.load(f"full-{n}")
    schedule = baseline(full, "tree", "broadcast", 1e6, 2, variant=0)
    sends = Counter(schedule.ends(send)[0] for send in schedule.sends)
    inner = [{schedule.ends(s)[0] for s in schedule.sends if s.chunk == tree} for tree in (0, 1)]
    assert len((inner[0] & inner[1]) - {0}) <= (n - 1) % 2
    assert sends[0] == 2
    assert max(sends.values()) <= 2 + (n - 1) % 2 * 2
    latency = baseline(full, "tree", "broadcast", 0, 2, variant=0).finish_us / full.links[0].alpha_us
    assert latency <= ceil(log2(n)) + 1
    assert baseline(full, "tree", "allreduce", 0, 2, variant=0).finish_us == pytest.approx(
        2 * latency * full.links[0].alpha_us
    )


def test_on_one_host_a_tree_may_be_a_chain():
    """NCCL's: reduced along the ring's chain, spread along it, c pieces in a pipeline of 2(N − 1) hops."""
    ring = Topology.load("ring-6")
    alpha, beta = ring.links[0].alpha_us, ring.links[0].beta_us(1e6)
    schedule = baseline(ring, "tree", "allreduce", 4e6, 4, variant=1)
    assert schedule.finish_us <= 2 * 5 * (alpha + beta) + 3 * beta + 1e-9
    assert len(schedule.sends) == 4 * 2 * 5


@pytest.mark.parametrize("collective", ["allgather", "alltoall", "reduce_scatter"])
def test_hierarchical_crosses_between_hosts_on_the_rails(collective):
    """Every host takes from every other what it needs once, each rail as much."""
    cluster = Topology.load("dgx-a100", hosts=3)
    schedule = baseline(cluster, "hierarchical", collective, 24e6)
    host = [cluster.node_by_id[gpu].host for gpu in cluster.gpus]
    crossing = [ends for ends in map(schedule.ends, schedule.sends) if host[ends[0]] != host[ends[1]]]
    assert all(src % 8 == dst % 8 for src, dst in crossing)
    per_rail = Counter(src % 8 for src, _ in crossing)
    assert set(per_rail.values()) == {6 * (8 if collective == "alltoall" else 1)}


# -- rings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rings", "GBps"),
    [("ring-6", 2, 100), ("full-5", 4, 200), ("teccl-dgx1", 6, 150), ("dgx-a100", 1, None), ("hypercube-8", 12, 150)],
)
def test_rings_use_up_the_links(name, rings, GBps):
    topology = Topology.load(name)
    found = find_rings(topology, tuple(range(topology.nranks)))
    assert len(found) == rings
    if GBps:
        busiest = max(sum(link.bandwidth_GBps for link in topology.links if link.src == gpu) for gpu in topology.gpus)
        assert busiest == GBps


def test_rings_between_hosts_take_a_nic_each():
    cluster = Topology.load("dgx-h100", hosts=2)
    rings = find_rings(cluster, tuple(range(16)))
    assert len(rings) == 8
    for ring in rings:
        assert sum((a < 8) != (b < 8) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)) == 2
    out = {next(a for a, b in zip(ring, ring[1:] + ring[:1], strict=True) if a < 8 <= b) for ring in rings}
    assert out == set(range(8))


@hypothesis_settings(max_examples=40, deadline=None)
@given(machines(most=7), st.data())
def test_a_ring_meets_everyone_once(topology, data):
    ranks = list(range(topology.nranks))
    members = tuple(sorted(data.draw(st.sets(st.sampled_from(ranks), min_size=2))))
    for ring in find_rings(topology, members):
        assert sorted(ring) == list(members)


# -- any machine -----------------------------------------------------------------------------------------------------


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    machines(most=7), st.sampled_from(ONE_HOST), st.sampled_from([0.0, 1e3, 1e6]), st.integers(1, 4), st.integers(0, 6)
)
def test_any_machine_is_served(topology, served, size, nchunks, root):
    name, collective = served
    schedule = baseline(topology, name, collective, size, nchunks, root % topology.nranks)
    assert schedule.finish_us >= lower_bound_us(topology, schedule.demand) * (1 - 1e-9)


@pytest.mark.parametrize(("name", "collective"), SERVED)
def test_the_program_moves_the_data(name, collective):
    topology = Topology.load("a100x4x2" if name == "hierarchical" else "line-5")
    schedule = baseline(topology, name, collective, 1e5, 2, root=1)
    require_right(lower(schedule), schedule, slots=(2,))


# -- as a method -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "collective"), ONE_HOST)
@pytest.mark.parametrize("size", [0, 1, 1e6, 1e15])
def test_a_method_for_every_size(name, collective, size):
    result = run(Topology.load("star-4"), collective, size, method=name, time_limit=0.2)
    assert result.method == name
    assert result.solver is None
    result.schedule.validate()
    assert result.gap >= 0


def test_large_messages_are_pipelined_and_small_ones_are_not():
    ring = one_way_ring(8, 25.0, 0.7)
    small, large = (run(ring, "broadcast", size, method="ring").schedule for size in (100, 1e9))
    assert small.demand.nchunks < 8 < large.demand.nchunks
    assert large.finish_us < 1.2 * 1e9 / 25e3


def test_chunks_as_asked():
    assert run(Topology.load("ring-4"), "allgather", 1e6, method="ring", nchunks=5).schedule.demand.nchunks == 5


def test_what_a_method_does_not_do_is_said():
    ring = Topology.load("ring-4")
    for name, collective, said in (
        ("bruck", "broadcast", "bruck does not do broadcast; it does allgather, .*; for broadcast use auto or ring"),
        ("ring", "alltoall", "for alltoall use auto or bruck, direct"),
        ("hierarchical", "allgather", "several hosts with as many GPUs each; ring-4 has 4"),
        ("tee", "allreduce", "unknown method 'tee'; did you mean tree"),
    ):
        with pytest.raises(InputError, match=said):
            run(ring, collective, 1e6, method=name)


def test_other_names():
    assert {method_named(name) for name in ALIASES} <= set(BASELINES)
    assert method_named("Recursive_Doubling") == method_named("rhd") == "recursive-doubling"


@pytest.mark.parametrize(
    ("name", "collective"), [("line-4", "allreduce"), ("full-5", "broadcast"), ("star-4", "alltoall")]
)
def test_what_is_found_is_not_slower_than_the_field(name, collective):
    problem = Problem(Topology.load(name), collective, 1e8)
    incumbent = Incumbent(problem, 60, lambda progress: None)
    offer_baselines(incumbent, Settings())
    assert incumbent.best is not None
    for method, baseline in BASELINES.items():
        if collective in baseline.serves and method != "hierarchical":
            theirs = portfolio.run(problem, Settings(nchunks=8), method=method).schedule
            assert incumbent.best.finish_us <= theirs.finish_us * 1.02


def test_the_heavier_tenant_goes_first():
    problem = ask(Topology.load("line-2"), "broadcast", 1e6, groups=["0,1:1", "0,1:3"])
    schedule = portfolio.run(problem, Settings(nchunks=4), method="direct").schedule
    assert [group_finish_us(schedule, number) for number in (0, 1)] == pytest.approx([40.5, 20.5])


def test_a_baseline_that_needs_many_chunks_is_not_given_up_early():
    """A broadcast of 100 MB round a ring takes many chunks to be fast, and is far behind with few."""
    topology = Topology.load("ring-6")
    theirs = run(topology, "broadcast", 1e8, method="ring").schedule.finish_us
    incumbent = Incumbent(Problem(topology, "broadcast", 1e8), 60.0, lambda progress: None)
    search_greedily(incumbent, Settings(nchunks=24))
    assert theirs < incumbent.best.finish_us
    few = baseline_schedule(topology, incumbent.problem.demand(2), BASELINES["ring"])
    assert few.finish_us > 1.5 * incumbent.best.finish_us
    offer_baselines(incumbent, Settings())
    assert incumbent.best.finish_us <= theirs * (1 + 1e-9)
