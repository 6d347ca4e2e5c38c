"""Trees: spanning, packed to the closed forms, in time without collisions, and improved without getting worse."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import product
from math import inf

import numpy as np
import pytest
from asked import run
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import machine, machines, seeded_machine

from teccl_msccl.collective.demand import Demand, demand_for
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.synthesis.routes import Router, Routes
from teccl_msccl.synthesis.settings import Settings
from teccl_msccl.synthesis.trees import Field, tournament
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.without import without


def busiest_us(router: Router, routes: Routes) -> Fraction:
    """The longest time for which a link is occupied, in exact fractions."""
    load: dict[int, Fraction] = defaultdict(Fraction)
    for chunk, way in zip(routes.chunk.tolist(), routes.way.tolist(), strict=True):
        for link in router.paths[way]:
            nbytes = Fraction(router.demand.chunks[chunk].bytes)
            load[link] += nbytes / Fraction(router.topology.link_by_id[link].bandwidth_GBps) / 1000
    return max(load.values())


def check_spanning(router: Router, routes: Routes) -> None:
    """Every copied chunk goes once to each GPU that is no origin, from one that has it by then."""
    topology = router.topology
    holders = {chunk.id: {chunk.origin[0]: 0.0} for chunk in router.demand.chunks}
    for chunk, way, start, arrival in zip(*routes.lists(), strict=True):
        path = router.paths[way]
        source = topology.rank_of[topology.link_by_id[path[0]].src]
        target = topology.rank_of[topology.link_by_id[path[-1]].dst]
        assert holders[chunk][source] <= start + 1e-9 and target not in holders[chunk]
        holders[chunk][target] = arrival
    for chunk in router.demand.chunks:
        assert set(chunk.want) <= holders[chunk.id].keys()


@settings(max_examples=60, deadline=None)
@given(machines(), st.sampled_from(["allgather", "broadcast"]), st.integers(1, 4), st.sampled_from([0.0, 0.1, 5.0]))
def test_packed_trees_span_and_their_load_is_what_is_said(topology, collective, count, depth_weight):
    router = Router(topology, demand_for(collective, topology.nranks, 1e6, count))
    trees, said = router.packed(depth_weight, 3, 0.0, 0)
    check_spanning(router, trees)
    assert said == pytest.approx(float(busiest_us(router, trees)), rel=1e-9)
    again, _ = router.packed(depth_weight, 3, 0.0, 0)
    assert trees.lists() == again.lists()


@pytest.mark.parametrize(
    "name, collective, count, rate",
    [  # rate: GB/s that a GPU takes in, or for allreduce size / time
        ("ring-8", "allgather", 2, 100),
        ("full-8", "allgather", 1, 350),
        ("star-8", "allgather", 1, 50),
        ("hypercube-8", "allgather", 3, 150),
        ("torus-4x4", "allgather", 4, 200),
        ("mesh-4x4", "allgather", 2, 100),
        ("teccl-dgx1", "allgather", 6, 150),
        ("star-8", "allreduce", 8, 50 * 8 / 14),
        ("ring-8", "allreduce", 16, 100 * 8 / 14),
    ],
)
def test_packing_reaches_the_closed_forms(name, collective, count, rate):
    """A GPU takes in (N−1)/N of an allgather; an allreduce makes 2 (N−1)/N of it cross every GPU's border."""
    topology = Topology.load(name)
    nbytes = 1e9 * ((topology.nranks - 1) / topology.nranks if collective == "allgather" else 1)
    router = Router(topology, demand_for(collective, topology.nranks, 1e9, count))
    best = min(busiest_us(router, router.packed(0.0, 60, 0.0, seed)[0]) for seed in range(3))
    assert float(best) == pytest.approx(nbytes / rate / 1e3, rel=1e-9)


def every_tree(router: Router, root: int) -> list[list[int]]:
    """All spanning out-trees of a small topology, as path numbers."""
    topology = router.topology
    ends = [
        (topology.rank_of[topology.link_by_id[p[0]].src], topology.rank_of[topology.link_by_id[p[-1]].dst])
        for p in router.paths
    ]
    into = [[i for i, (_, target) in enumerate(ends) if target == v] for v in range(topology.nranks) if v != root]
    trees = []
    for choice in product(*into):
        reached, todo = {root}, set(choice)
        while todo:
            step = {i for i in todo if ends[i][0] in reached}
            if not step:
                break
            reached |= {ends[i][1] for i in step}
            todo -= step
        if not todo:
            trees.append(list(choice))
    return trees


def best_packing_us(router: Router) -> Fraction:
    """The least load of the busiest link over all ways to choose a tree per chunk, one by one."""
    loads = {
        chunk.id: {
            tuple(sorted(Counter(link for way in tree for link in router.paths[way]).items()))
            for tree in every_tree(router, chunk.origin[0])
        }
        for chunk in router.demand.chunks
    }
    speed = {link.id: 1000 * Fraction(link.bandwidth_GBps) for link in router.topology.links}
    nbytes = Fraction(router.demand.chunks[0].bytes)
    best = min(
        max((n / speed[link] for link, n in sum(map(Counter, map(dict, choice)), Counter()).items()))
        for choice in product(*loads.values())
    )
    return best * nbytes


def test_packing_is_as_good_as_brute_force_on_small_machines():
    compared = 0
    for seed in range(60):
        topology = seeded_machine(seed, most=3, switches=1)
        router = Router(topology, demand_for("allgather", topology.nranks, 1e6, 1))
        if np.prod([len(every_tree(router, r)) for r in range(topology.nranks)]) > 3000:
            continue
        found = min(busiest_us(router, router.packed(0.0, 30, 0.0, s)[0]) for s in range(2))
        assert found == best_packing_us(router), seed
        compared += 1
    assert compared >= 40


@settings(max_examples=40, deadline=None)
@given(machines(), st.sampled_from(["allgather", "broadcast", "allreduce"]), st.integers(1, 3), st.integers(0, 99))
def test_played_trees_are_valid_and_only_get_better(topology, collective, count, seed):
    router = Router(topology, demand_for(collective, topology.nranks, 1e6, count))
    trees, busy = router.packed(0.1, 3, 0.0, seed)
    played = router.justified(trees, shared=True, rounds=-1)
    better = router.justified(played, rounds=2, noise=0.05, seed=seed)
    best = router.rerouted(better, 0.0, 40, seed)
    assert busy * (1 - 1e-9) <= better.finish_us <= played.finish_us  # on the same paths
    assert best.finish_us <= better.finish_us
    for routes in (played, better, best):
        schedule = router.schedule(routes)
        schedule.validate()
        assert schedule.finish_us <= routes.finish_us * (1 + 1e-9)
    assert best.lists() == router.rerouted(better, 0.0, 40, seed).lists()


def line_with_a_wrong_order() -> tuple[Router, Routes]:
    """0 → 1 → 2, α 0: GPU 0 sends first the chunk that 1 alone wants, then the one that has to go on to 2."""
    topology = machine("ggg", [(0, 1, 1, 0.0), (1, 2, 1, 0.0)])
    chunks = demand_for("broadcast", 3, 2e3, 2).chunks
    near = chunks[0].__class__(0, (0,), (1,), 1e3)
    far = chunks[0].__class__(1, (0,), (2,), 1e3)
    router = Router(topology, Demand("line", 3, (near, far), 2, 2e3))
    ways = {path: i for i, path in enumerate(router.paths)}
    first = next(i for p, i in ways.items() if (topology.link_by_id[p[0]].src, topology.link_by_id[p[0]].dst) == (0, 1))
    second = next(
        i for p, i in ways.items() if (topology.link_by_id[p[0]].src, topology.link_by_id[p[0]].dst) == (1, 2)
    )
    return router, Routes(
        np.array([0, 1, 1]), np.array([first, first, second]), np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])
    )


def test_justification_puts_first_what_has_farthest_to_go():
    router, routes = line_with_a_wrong_order()
    assert router.justified(routes).finish_us == pytest.approx(2.0)


@settings(max_examples=40, deadline=None)
@given(
    machines(),
    st.sampled_from(["allgather", "broadcast", "allreduce"]),
    st.integers(1, 3),
    st.sampled_from([0.0, 1.0, 1000.0]),
    st.integers(0, 99),
)
def test_dispatched_trees_are_the_same_sends_in_a_valid_schedule(topology, collective, count, load_weight, seed):
    router = Router(topology, demand_for(collective, topology.nranks, 1e6, count))
    trees, busy = router.packed(0.1, 3, 0.0, seed)
    played = router.dispatched(trees, load_weight=load_weight, noise=0.5, seed=seed)
    assert Counter(zip(played.chunk, played.way, strict=True)) == Counter(zip(trees.chunk, trees.way, strict=True))
    schedule = router.schedule(played)
    schedule.validate()
    assert busy * (1 - 1e-9) <= schedule.finish_us <= played.finish_us * (1 + 1e-9)
    assert played.lists() == router.dispatched(trees, load_weight=load_weight, noise=0.5, seed=seed).lists()


@pytest.mark.parametrize("nranks, count", [(2, 3), (4, 5), (6, 16)])
def test_chunks_go_down_a_line_without_a_pause(nranks, count):
    """And back up it, when they are reduced: every hop of the last chunk but its first is one more."""
    topology = machine("g" * nranks, [(i, i + 1, 10, 0.5) for i in range(nranks - 1)])
    slot, hops = 1e6 / count / 1e4, nranks - 1
    for collective, machine_of, root in (("broadcast", topology, 0), ("reduce", topology, nranks - 1)):
        router = Router(machine_of, demand_for(collective, nranks, 1e6, count, root))
        trees, _ = router.packed(0.1, 1, 0.0, 0)
        played = router.dispatched(trees, load_weight=0.0, noise=0.0, seed=0)
        assert played.finish_us == pytest.approx((count + hops - 1) * slot + hops * 0.5)


def test_what_goes_on_farther_leaves_first_and_chunks_begin_in_turn():
    router, routes = line_with_a_wrong_order()
    for begins, finish in ((0.0, 2.0), (5.0, 3.0)):  # of the chunk that has to go on
        unshared = routes.delayed(np.array([0.0, begins - 1.0]))
        played = router.dispatched(unshared, load_weight=0.0, noise=0.0, seed=0)
        assert played.finish_us == pytest.approx(finish)


@pytest.mark.parametrize("load_weight, slots", [(0.0, 3), (1.0, 2)])
def test_links_with_much_to_carry_go_first(load_weight, slots):
    """0 → 2, 3; 1 → 2 and 4 → 3 over a switch: where the two that ask for one thing each go first, GPU 0 waits."""
    topology = machine("gggggs", [(i, 5, 1, 0.0) for i in (0, 1, 4)] + [(5, i, 1, 0.0) for i in (2, 3)])
    ends = [(1, 2), (4, 3), (0, 2), (0, 3)]
    chunk = demand_for("broadcast", 5, 1e3, 1).chunks[0].__class__
    chunks = tuple(chunk(i, (source,), (target,), 1e3) for i, (source, target) in enumerate(ends))
    router = Router(topology, Demand("pairs", 5, chunks, 1, 4e3))
    way = {(topology.link_by_id[p[0]].src, topology.link_by_id[p[-1]].dst): i for i, p in enumerate(router.paths)}
    routes = Routes(np.arange(4), np.array([way[pair] for pair in ends]), np.zeros(4), np.ones(4))
    assert router.dispatched(routes, load_weight=load_weight, noise=0.0, seed=0).finish_us == pytest.approx(slots)


def test_rerouting_repairs_a_poor_start():
    """A ring of 4 in which everything goes one way round takes 3/2 of what both ways take."""
    topology = Topology.load("ring-4")
    router = Router(topology, demand_for("allgather", 4, 8e6, 2))
    forward = {}
    for i, path in enumerate(router.paths):
        link = topology.link_by_id[path[0]]
        if (topology.rank_of[link.dst] - topology.rank_of[link.src]) % 4 == 1:
            forward[topology.rank_of[link.src]] = path
            assert len(path) == 1, i
    sends = tuple(
        Send(chunk.id, forward[(chunk.origin[0] + step) % 4], 100.0 * step + chunk.id % 2 * 50)
        for chunk in router.demand.chunks
        for step in range(3)
    )
    poor = Schedule(topology, router.demand, sends, 1e4).retimed()
    poor.validate()
    routes = router.routes(poor)
    for seed in range(6):
        routes = router.justified(router.rerouted(routes, 0.0, 300, seed))
    router.schedule(routes).validate()
    assert poor.finish_us > 120 and routes.finish_us < 62


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall"])
def test_method_trees_gives_a_valid_schedule_for_every_kind_of_collective(collective):
    topology = machine("gggsg", [(0, 3, 50, 0.5), (1, 3, 25, 0.5), (2, 3, 50, 0.2), (2, 4, 25, 0.7), (4, 0, 12.5, 1.0)])
    results = [
        run(topology, collective, "1MB", root=1, nchunks=1, method="trees", time_limit=60, seed=5) for _ in range(2)
    ]
    results[0].schedule.validate()
    assert results[0].schedule.demand == demand_for(collective, 4, 1e6, results[0].schedule.demand.nchunks, 1)
    assert results[0].schedule == results[1].schedule
    assert results[0].gap >= 0


def test_an_allreduce_with_free_roots_beats_equal_shares():
    """On a mesh the corners are poor roots: with equal shares 1 GB takes 18.75 ms, with free roots 12.5 ms."""
    topology = Topology.load("mesh-3x3")
    router = Router(topology, demand_for("allreduce", 9, 1e9, 72))
    free = float(busiest_us(router, router.packed(0.0, 30, 0.0, 0)[0]))
    shares = Router(topology, demand_for("allgather", 9, 1e9, 8))
    equal = 2 * float(busiest_us(shares, shares.packed(0.0, 30, 0.0, 0)[0]))
    assert free < 0.8 * equal


@pytest.mark.parametrize(("seconds", "packs"), [(inf, True), (1e-6, False)])
def test_trees_that_would_not_be_packed_in_time_are_not_begun(seconds, packs):
    """A packing cannot be interrupted, so this holds for the first one too."""
    topology, packed, told = Topology.load("ring-4"), [], []

    class Watched(Router):
        def packed(self, *how):
            packed.append(how)
            return super().packed(*how)

    field = Field(
        demands=(demand_for("allgather", 4, 1e6, 1, 0),),
        router=lambda demand: Watched(topology, demand),
        known={},
        floor_us=0.0,
        improved=told.append,
        done=lambda: False,
        seconds_left=lambda: seconds,
    )
    tournament(field, Settings(rounds=1))
    assert bool(packed) == bool(told) == packs


def degraded() -> Topology:
    return without(Topology.load("dgx-h100", hosts=2, network="rail"), ["nic:0.0"]).topology


def test_trees_of_hosts_are_packed_on_short_paths_too():
    """An allreduce of 1 GB by two hosts, one of which has lost a NIC, in 4.48 ms at best: where any path is taken, many
    of which cross sockets and other GPUs' NICs at once, list scheduling takes 6 ms, whatever depth counts."""
    told: list[Schedule] = []
    field = Field(
        demands=(demand_for("allreduce", 16, 1e9, 64),),
        router=lambda demand: Router(degraded(), demand),
        known={},
        floor_us=4477.5,
        improved=told.append,
        done=lambda: False,
        seconds_left=lambda: inf,
    )
    tournament(field, Settings(rounds=0))
    told[-1].validate()
    assert told[-1].finish_us <= 1.15 * 4477.5


def test_narrower_networks_join_all_and_leave_short_paths():
    router = Router(degraded(), demand_for("allgather", 16, 1e9))
    assert router.detours == (1, 2, None)
    widths = [len(router.within(detour).paths) for detour in (1, 2, None)]
    assert widths == sorted(widths)
    check_spanning(router.within(1), router.within(1).packed(0.1, 3, 0.0, 0)[0])
    plain = Router(Topology.load("star-8"), demand_for("allgather", 8, 1e9))
    assert (plain.detours, plain.easings) == ((None,), (1.0,))


def test_links_of_long_paths_get_time_to_spare():
    router = Router(degraded(), demand_for("allgather", 16, 1e9, 8))

    def busiest(kind: str, eased: float) -> float:
        trees, _ = router.packed(0.01, 16, 0.0, 0, eased)
        load: dict[int, float] = defaultdict(float)
        for chunk, way in zip(trees.chunk.tolist(), trees.way.tolist(), strict=True):
            for id in router.paths[way]:
                load[id] += router.topology.link_by_id[id].beta_us(router.demand.chunks[chunk].bytes)
        return max(us for id, us in load.items() if router.topology.link_by_id[id].kind == kind)

    assert busiest("network", 1.0) == pytest.approx(busiest("nvlink", 1.0), rel=0.1)
    assert busiest("network", 0.7) < 0.8 * busiest("nvlink", 0.7)


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_link_far_slower_than_the_others_is_priced_like_any_other(slow):
    """Its first load is a thousand times the average: prices once were infinite there, and its far end out of reach."""
    line = machine("gggg", [(i, i + 1, 1 if i == slow else 1e4, 1.0) for i in range(3)])
    trees, busiest_us = Router(line, demand_for("alltoall", 4, 1e6)).packed(0.1, 4, 0.0, 0)
    assert len(trees.chunk) == sum(abs(a - b) for a in range(4) for b in range(4))
    assert busiest_us == pytest.approx(1e6 / 4 / 1e3 * (slow + 1) * (3 - slow))
