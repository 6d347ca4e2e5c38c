"""`run` and `synthesize`: every collective, every size, every way to stop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from asked import run
from strategies import machine

from teccl_msccl import synthesize
from teccl_msccl.collective.demand import COLLECTIVES, ROOTED, demand_for
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis import portfolio
from teccl_msccl.synthesis.baselines.search import BASELINES
from teccl_msccl.synthesis.bounds import lower_bound_us
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.hierarchy import Hierarchy
from teccl_msccl.synthesis.incumbent import Incumbent
from teccl_msccl.synthesis.portfolio import part_solver
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.synthesis.settings import Settings
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.without import without


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", ["teccl-dgx1", "star-5", "mesh-2x3", "teccl-ndv2x2"])
def test_every_collective_is_proved_and_what_was_asked_for(name, collective):
    topology = Topology.load(name)
    root = topology.nranks - 1
    result = run(topology, collective, "1MB", root=root, method="greedy", time_limit=0.3)
    schedule = result.schedule
    schedule.validate()
    assert schedule.topology == topology
    assert schedule.demand == demand_for(collective, topology.nranks, 1e6, schedule.demand.nchunks, root)
    assert schedule.demand.root == (root if collective in ROOTED else None)
    assert result.gap >= 0
    assert result.bound_us == pytest.approx(lower_bound_us(topology, schedule.demand))
    assert schedule.finish_us == pytest.approx(result.bound_us * (1 + result.gap))
    assert (result.method, result.solver, result.milp, result.interrupted) == ("greedy", None, (), False)


def test_auto_uses_the_milp_where_it_helps():
    result = run(Topology.load("teccl-dgx1"), "allgather", "1MB", nchunks=2, time_limit=20)
    assert (result.method, result.solver) == ("milp", "cbc")
    assert result.schedule.finish_us == pytest.approx(6.95)
    best = next(report for report in result.milp if report.finish_us == result.schedule.finish_us)
    assert (best.nchunks, best.outcome.status, best.epochs) == (2, "optimal", best.epochs_bound)
    assert best.start_us > best.finish_us


def test_allreduce_by_the_milp_is_made_of_its_two_halves():
    result = run(Topology.load("ring-4"), "allreduce", "1MB", nchunks=1, method="milp", time_limit=10)
    result.schedule.validate()
    assert result.schedule.demand.nchunks == 4
    assert result.schedule.finish_us == pytest.approx(2 * 2 * (0.5 + 5))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_no_time_gives_the_first_schedule(collective):
    topology = Topology.load("torus-3x3")
    for method in ("auto", "greedy", "milp"):
        result = run(topology, collective, "64MB", method=method, time_limit=0)
        result.schedule.validate()
        assert not result.milp


@pytest.mark.parametrize("size", [0, 1, 17, 1e15])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_extreme_sizes(collective, size):
    for topology in (Topology.load("ring-4"), machine("ggsg", [(0, 2, 25, 0), (1, 2, 50, 0), (2, 3, 25, 0)])):
        result = run(topology, collective, size, time_limit=0.5)
        result.schedule.validate()
        assert result.schedule.demand.size_bytes == size
        assert result.gap >= 0
        if size == 17:
            assert result.schedule.demand.chunks_per_size <= topology.nranks  # not in pieces of a byte


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_two_gpus(collective):
    schedule = synthesize(Topology.load("line-2"), collective, 1e6, time_limit=1)
    schedule.validate()
    share = {"broadcast": 1, "reduce": 1, "allreduce": 1}.get(collective, 0.5)
    assert schedule.finish_us == pytest.approx(share * 20 + (1.0 if collective == "allreduce" else 0.5), rel=0.03)


@pytest.mark.parametrize("method", ["greedy", "auto"])
def test_the_same_seed_gives_the_same_schedule(method):
    def one(seed: int) -> Schedule:
        return run(Topology.load("star-4"), "allgather", "1MB", nchunks=2, method=method, seed=seed, jobs=2).schedule

    assert one(5) == one(5)
    if method == "greedy":  # among others, a baseline is optimal here, whatever the seed
        assert len({one(seed).sends for seed in (0, 10**5, 10**6)}) > 1


@pytest.mark.parametrize(
    ("method", "collective"),
    [("trees", "allgather"), ("bfb", "allgather"), ("milp", "allgather"), ("astar", "broadcast"), ("lp", "alltoall")]
    + [(name, "allreduce") for name in BASELINES if "allreduce" in BASELINES[name].serves and name != "hierarchical"],
)
def test_every_method_is_deterministic_where_the_time_does_not_bind(method, collective):
    """The MILP and A* prove their optima, the trees stop when nothing gains."""

    def one(seed: int) -> Schedule:
        topology = Topology.load("mesh-2x3")
        return run(topology, collective, 1e5, nchunks=1, method=method, seed=seed, time_limit=60).schedule

    assert one(3) == one(3)


# -- a start -------------------------------------------------------------------------------------------------------


def poor_start(topology: Topology, collective: str, nchunks: int, root: int = 0) -> Schedule:
    demand = demand_for(collective, topology.nranks, 1e6, nchunks, root)
    return max(GreedySearch(topology).trials(demand, range(40)), key=lambda schedule: schedule.finish_us)


@pytest.mark.parametrize("method", ["greedy", "milp"])
def test_a_start_is_improved_or_kept(method):
    topology = Topology.load("teccl-dgx1")
    good = run(topology, "allgather", "1MB", nchunks=6, method="greedy").schedule
    for start, count in ((poor_start(topology, "allgather", 2), 2), (good, 1), (good, None), (good, 2)):
        result = run(topology, "allgather", "1MB", start=start, nchunks=count, method=method, time_limit=1.5)
        result.schedule.validate()
        assert result.schedule.finish_us <= start.finish_us * (1 + 1e-12)
    assert result.method == "start"


def test_a_start_with_more_chunks_is_not_given_up_for_fewer_that_are_a_bit_slower():
    """Fewer chunks win near ties of the search's own, but nobody's start gets slower."""
    pair = machine("gg", [(0, 1, 50, 0.001)])
    one = run(pair, "broadcast", 1e6, nchunks=1, method="greedy").schedule
    quick = replace(pair, links=tuple(replace(link, alpha_us=0.0) for link in pair.links))
    assert one.finish_us == pytest.approx(20.001)
    three = machine("ggg", [(0, 1, 50, 0.0), (1, 2, 50000, 0.0)])
    split = run(three, "broadcast", 1e6, nchunks=8, method="greedy").schedule
    whole = run(three, "broadcast", 1e6, nchunks=1, method="greedy").schedule
    assert split.finish_us < whole.finish_us < split.finish_us * 1.002
    kept = run(three, "broadcast", 1e6, nchunks=1, start=split, method="greedy").schedule
    assert kept.finish_us == split.finish_us
    assert run(three, "broadcast", 1e6, nchunks=1, start=whole, method="greedy").schedule.demand.nchunks == 1
    assert quick != pair


@pytest.mark.parametrize("collective", ["reduce_scatter", "allreduce", "reduce"])
def test_a_start_for_a_reduction(collective):
    topology = Topology.load("mesh-2x3")
    start = run(topology, collective, "1MB", nchunks=1, method="greedy", root=2).schedule
    again = run(topology, collective, "1MB", start=start, nchunks=3, method="auto", time_limit=1, root=2)
    again.schedule.validate()
    assert again.schedule.finish_us <= start.finish_us
    slow = replace(start, sends=tuple(s._replace(start_us=2 * s.start_us) for s in start.sends), finish_us=1e4)
    slow.validate()
    once_more = run(topology, collective, "1MB", start=slow, time_limit=0, nchunks=1, root=2).schedule
    assert once_more.finish_us <= start.finish_us * (1 + 1e-9)


def test_a_start_for_something_else_is_refused():
    ring = Topology.load("ring-4")
    start = run(ring, "broadcast", "1MB", root=1, nchunks=2, time_limit=0).schedule
    ask = {"start": start, "time_limit": 0, "root": 1}
    assert run(ring, "broadcast", "1MB", **ask).schedule.finish_us <= start.finish_us
    for what, topology, collective, size, more in (
        ("another topology", Topology.load("full-4"), "broadcast", "1MB", {}),
        ("collective", ring, "scatter", "1MB", {}),
        ("use its size", ring, "broadcast", "2MB", {}),
        ("another root", ring, "broadcast", "1MB", {"root": 0}),
    ):
        with pytest.raises(InputError, match=what):
            run(topology, collective, size, **(ask | more))


def test_a_start_that_cheats_is_refused():
    ring = Topology.load("ring-4")
    start = run(ring, "broadcast", "1MB", nchunks=1, time_limit=0).schedule
    early = replace(start, sends=tuple(send._replace(start_us=0.0) for send in start.sends))
    with pytest.raises(Refused, match="does not hold"):
        run(ring, "broadcast", "1MB", start=early, time_limit=0)
    unwanted = replace(start.demand, chunks=tuple(replace(chunk, want=(0,)) for chunk in start.demand.chunks))
    with pytest.raises(InputError, match="other chunks"):
        run(ring, "broadcast", "1MB", start=Schedule(ring, unwanted, (), 0.0), time_limit=0)


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
def test_an_interruption_returns_the_best_so_far(collective):
    seen = []

    def report(progress):
        seen.append(progress)
        if progress.incumbent_us is not None:
            raise KeyboardInterrupt

    result = run(Topology.load("mesh-3x3"), collective, "1MB", nchunks=3, report=report)
    assert result.interrupted
    result.schedule.validate()
    assert result.schedule.finish_us == pytest.approx(seen[-1].incumbent_us, rel=3e-3)


def test_an_interruption_in_the_milp_keeps_what_was_found_before():
    def report(progress):
        if progress.phase == "milp":
            raise KeyboardInterrupt

    result = run(Topology.load("teccl-dgx1"), "allgather", "1MB", nchunks=2, report=report)
    assert result.interrupted
    assert result.method in ("greedy", "symmetry", "trees")
    assert 6.9 < result.schedule.finish_us <= 8.2  # 6.95 is what the MILP proves best on its grid


def test_an_interruption_before_there_is_anything():
    def report(progress):
        raise KeyboardInterrupt

    ring = Topology.load("ring-4")
    with pytest.raises(KeyboardInterrupt):
        run(ring, "allgather", "1MB", report=report)
    start = run(ring, "allgather", "1MB", time_limit=0).schedule
    assert run(ring, "alltoall", "1MB", time_limit=0).schedule.finish_us > 0
    again = run(ring, "allgather", "1MB", start=start, report=report)
    assert again.interrupted
    assert again.schedule.finish_us == start.finish_us


def test_progress_only_gets_better():
    seen = []
    result = run(Topology.load("teccl-dgx1"), "allgather", "1MB", report=seen.append, time_limit=5)
    ends = [progress.incumbent_us for progress in seen if progress.incumbent_us is not None]
    assert ends == sorted(ends, reverse=True)
    assert seen[0].incumbent_us is None
    assert seen[0].gap is None
    assert {progress.bound_us for progress in seen} == {result.bound_us}
    assert result.schedule.finish_us == pytest.approx(6 + 8 / 15)
    assert result.gap == 0
    assert result.seconds < 5  # optimal: nothing more to wait for


# -- bad arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"collective": "gossip"}, "unknown collective"),
        ({"size": "many"}, "size 'many'"),
        ({"size": -1}, "size"),
        ({"size": math.nan}, "size"),
        ({"root": 4}, "root 4"),
        ({"root": -1}, "root -1"),
        ({"nchunks": 0}, "0 chunks"),
        ({"nchunks": 10**5}, "too many for any file"),
        ({"nchunks": 10**9}, "too many"),
        ({"method": "magic"}, "use auto, trees, greedy, bfb, lp, milp"),
        ({"solver": "gurobi"}, "use cbc, highs"),
        ({"epochs": "fine"}, "use fast, slow, auto"),
        ({"time_limit": -1}, "time_limit"),
        ({"time_limit": math.nan}, "time_limit"),
        ({"jobs": 0}, "jobs"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_bad_arguments(change, said):
    arguments = {"collective": "allgather", "size": 1e6, "time_limit": 0.1} | change
    with pytest.raises(InputError, match=said) as refused:
        run(Topology.load("ring-4"), **arguments)
    assert "\n" not in str(refused.value)


def test_one_gpu_has_nobody_to_talk_to():
    with pytest.raises(InputError, match="at least two"):
        run(machine("g", []), "allgather", "1MB")


def test_endless_time_ends_when_the_work_is_done():
    result = run(Topology.load("ring-3"), "alltoall", "1MB", nchunks=1, time_limit=math.inf, seed=2**63 - 1)
    result.schedule.validate()


def test_a_cluster_s_hosts_are_solved_alike_every_time():
    """Sub-problems end after so much work, not after so much time."""
    topology = Topology.load("dgx-h100", hosts=2)
    problem = Problem(topology, "allgather", 1e6)
    found = []
    for _ in range(2):
        hierarchy = Hierarchy.of(topology, part_solver(Settings(), Incumbent(problem, 600, lambda progress: None)))
        found.append(hierarchy.schedule(problem.demand(1)))
    found[0].validate()
    assert found[0] == found[1]


@pytest.mark.parametrize(("lost", "first"), [([], "search_symmetrically"), (["nic:0.0", "nic:1.3"], "search_trees")])
def test_where_hosts_are_unlike_trees_come_before_symmetry(monkeypatch, lost, first):
    """What is left of one host may look like the other's: trees on short paths do better there."""
    order: list[str] = []
    for name in ("search_symmetrically", "search_trees"):
        monkeypatch.setattr(portfolio, name, lambda incumbent, settings, name=name: order.append(name))
    topology = without(Topology.load("dgx-h100", hosts=2), lost).topology
    portfolio.run(Problem(topology, "allgather", 1e9), Settings(nchunks=1), time_limit=0)
    assert order[0] == first
