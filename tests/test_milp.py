"""The MILP: its optimum is the grid's, whatever start it is given."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import replace

import pytest
from asked import run
from exhaustive import GridSearch, all_paths
from strategies import machine, seeded_machine

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.errors import InputError
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.synthesis.bounds import whole_chunks_us
from teccl_msccl.synthesis.epochs import EpochGrid, epochs_of, fast_epoch_us, slow_epoch_us
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.milp import Milp
from teccl_msccl.synthesis.solver import new_model
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.paths import direct_paths


def started(topology, demand, tau, seed=0):
    return Milp(EpochGrid(topology, demand, tau), GreedySearch(topology).trial(demand, seed), "cbc")


def small_grids(seeds):
    """(seed, topology, demand, τ): fine, coarse and odd epochs."""
    for seed in seeds:
        rng = random.Random(seed)
        topology = seeded_machine(seed, 2, 4, 1)
        if len(all_paths(topology)) > 9:
            continue
        count = rng.choice([1, 2]) if topology.nranks < 4 else 1
        collective = rng.choice(["allgather", "alltoall", "broadcast", "scatter", "gather"])
        demand = demand_for(collective, topology.nranks, rng.choice([1e5, 1e6]), count, rng.randrange(topology.nranks))
        fine, coarse = fast_epoch_us(topology, demand), slow_epoch_us(topology, demand)
        yield seed, topology, demand, rng.choice([fine, coarse, coarse, 0.7 * coarse, 2 * coarse, 3.1 * fine])


def test_the_optimum_is_the_grids():
    """Against a search of its own over the same grid; the bound on epochs is the optimum too."""
    decided = improved = 0
    for seed, topology, demand, tau in small_grids(range(170)):
        model = started(topology, demand, tau)
        if model.columns(401) > 400:
            continue
        usual = [path.links for path in direct_paths(topology)]
        search = GridSearch(topology, demand, tau, usual)
        result = model.improve(seconds=20)
        assert result.outcome.status == "optimal", seed
        assert result.epochs == result.epochs_bound, seed
        assert result.epochs <= model.horizon
        result.schedule.validate()
        less, enough = search.meets(result.epochs - 1, 600), search.meets(result.epochs, 3000)
        assert not less, f"seed {seed}: {result.epochs - 1} epochs do"
        assert enough is not False, f"seed {seed}: {result.epochs} epochs do not do"
        decided += less is not None and enough is not None
        improved += result.epochs < model.horizon
    assert decided > 60
    assert improved > 3


@pytest.mark.parametrize(("nchunks", "epochs", "start_us", "finish_us"), [(1, 5, 10.7, 10.7), (2, 6, 8.2, 6.95)])
def test_dgx1_allgather_is_proved_optimal(nchunks, epochs, start_us, finish_us):
    dgx1 = Topology.load("teccl-dgx1")
    demand = demand_for("allgather", 8, 1e6, nchunks)
    start = min(GreedySearch(dgx1).trials(demand, range(60)), key=lambda schedule: schedule.finish_us)
    assert start.finish_us == pytest.approx(start_us)
    result = Milp(EpochGrid(dgx1, demand, fast_epoch_us(dgx1, demand)), start, "cbc").improve(seconds=60)
    assert (result.outcome.status, result.epochs, result.epochs_bound) == ("optimal", epochs, epochs)
    result.schedule.validate()
    assert result.schedule.finish_us == pytest.approx(finish_us)
    least_us = whole_chunks_us(dgx1, demand)  # of any schedule of so many whole chunks, on no grid
    assert least_us == pytest.approx(finish_us) if nchunks == 2 else least_us < finish_us


@pytest.mark.parametrize(
    ("alpha_us", "asked", "epochs"),
    [
        (0.1, "fast", {"fast": 1.0}),
        (0.1, "slow", {"slow": 4.0}),
        (0.1, "auto", {"fast": 1.0, "slow": 4.0}),
        (400.0, "fast", {"fast": 2.0}),  # α is more than 200 epochs
        (1e4, "auto", {"fast": 50.0}),  # and both are alike
    ],
)
def test_epochs_are_a_chunk_on_the_fastest_or_the_slowest_link(alpha_us, asked, epochs):
    line = machine("ggg", [(0, 1, 50, 0.1), (1, 2, 12.5, alpha_us)])
    assert epochs_of(line, demand_for("allgather", 3, 3 * 5e4, 1), asked) == pytest.approx(epochs)


def test_a_start_that_cannot_be_improved_is_proved_optimal():
    """An allgather of one chunk on DGX-1 takes the greedy schedule's epochs and no fewer; the model says so."""
    result = run(Topology.load("teccl-dgx1"), "allgather", 1e6, method="milp", nchunks=1, epochs="fast", time_limit=60)
    (report,) = result.milp
    assert (report.outcome.status, report.epochs, report.epochs_bound) == ("optimal", 5, 5)
    assert report.outcome.columns > 0
    assert report.outcome.rows > 0
    assert report.finish_us is None
    assert report.outcome.dual_bound == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("method", ["milp", "astar"])
@pytest.mark.parametrize("epochs", ["fast", "slow", "auto"])
def test_epochs_may_be_chosen(method, epochs):
    line = machine("ggg", [(0, 1, 50, 0.5), (1, 2, 25, 0.5)])
    result = run(line, "allgather", 3e5, method=method, epochs=epochs, nchunks=1, time_limit=5)
    result.schedule.validate()
    assert result.schedule.finish_us == pytest.approx(8.5)  # two chunks over the slow link
    assert {report.grid for report in result.milp} <= ({"fast", "slow"} if epochs == "auto" else {epochs})


def chain_broadcast(n: int, nchunks: int = 1) -> Schedule:
    """On a full mesh, from GPU to GPU: the slowest way there is."""
    full = Topology.load(f"full-{n}")
    link = {(link.src, link.dst): link.id for link in full.links}
    sends = [Send(c, (link[g, g + 1],), 100.0 * g + c) for g in range(n - 1) for c in range(nchunks)]
    return Schedule(full, demand_for("broadcast", n, nchunks * 5e4, nchunks), tuple(sends), 100.0 * n)


@pytest.mark.parametrize(("n", "nchunks", "optimum_us"), [(4, 1, 1.5), (4, 2, 2.5), (5, 2, 2.5)])
def test_a_poor_start_is_repaired(n, nchunks, optimum_us):
    poor = chain_broadcast(n, nchunks)
    poor.validate()
    result = Milp(EpochGrid(poor.topology, poor.demand, 0.5), poor, "cbc").improve(seconds=20)
    result.schedule.validate()
    assert result.schedule.finish_us == pytest.approx(optimum_us)


def test_a_model_with_a_start_is_never_infeasible():
    """The start fits the horizon that it gives, at once and in another order of its ties, in odd epochs too."""
    for seed, topology, demand, tau in small_grids(range(500, 560)):
        start = GreedySearch(topology).trial(demand, seed)
        grid = EpochGrid(topology, demand, tau)
        turned = sorted(start.sends, key=lambda send: (send.start_us, -send.chunk, send.path))
        for given in (start, replace(start, sends=tuple(turned))):
            model = Milp(grid, given, "cbc")
            assert model.first_late <= model.horizon
            assert set(model.placed) <= set(model._choices.sends().triples()), seed
            if model.columns(301) <= 300:
                assert model.improve(seconds=5).outcome.status in ("optimal", "feasible"), seed


def test_no_bytes_fit_any_link_any_number_of_times():
    line = machine("ggg", [(0, 1, 50, 0.5), (1, 2, 25, 0.5)])
    model = started(line, demand_for("allgather", 3, 0, 2), 0.5)
    assert model.improve(seconds=5).schedule.finish_us == pytest.approx(1.0)


def test_links_a_million_times_slower_than_others_take_no_time_to_place():
    """Epochs are counted in the fastest link's chunks."""
    topology = machine("ggggg", [(0, 1, 300, 0.5), (1, 2, 300, 0.5), (2, 3, 3e-4, 5), (3, 4, 300, 5)])
    model = started(
        topology, demand_for("alltoall", 5, 1e6, 4), fast_epoch_us(topology, demand_for("alltoall", 5, 1e6, 4))
    )
    assert model.horizon > 1e6
    assert model.columns(1000) == 1000


@pytest.mark.parametrize("time_limit", [0, 0.05, 0.5])
def test_no_time_still_leaves_a_schedule(time_limit):
    result = run(Topology.load("mesh-3x3"), "alltoall", "1MB", method="milp", time_limit=time_limit)
    result.schedule.validate()
    assert result.seconds < time_limit + 2


@pytest.mark.skipif(importlib.util.find_spec("highsbox") is None, reason="highsbox is not installed")
def test_highs_proves_the_same():
    poor = chain_broadcast(4)
    assert Milp(EpochGrid(poor.topology, poor.demand, 0.5), poor, "highs").improve(seconds=20).epochs_bound == 3


@pytest.mark.skipif(importlib.util.find_spec("highsbox") is not None, reason="highsbox is installed")
def test_highs_where_it_is_absent_is_refused_with_the_remedy():
    with pytest.raises(InputError, match="install highsbox or use --solver cbc") as refused:
        run(Topology.load("ring-4"), "allgather", "1MB", method="milp", nchunks=1, solver="highs", time_limit=5)
    assert "\n" not in str(refused.value)


def test_an_unknown_solver_is_refused():
    with pytest.raises(InputError, match="use cbc, highs"):
        new_model("gurobi")
