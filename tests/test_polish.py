"""Polishing: what is freed improves, what is held fast stays, and the time is kept."""

import time

import pytest

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.synthesis.choices import Free
from teccl_msccl.synthesis.epochs import EpochGrid
from teccl_msccl.synthesis.greedy import GreedySearch
from teccl_msccl.synthesis.milp import Milp
from teccl_msccl.synthesis.polish import polished_schedule
from teccl_msccl.topology.model import Topology


def poor_schedule(nchunks: int = 3) -> Schedule:
    """A broadcast from GPU to GPU on a full mesh, one chunk after the other."""
    full = Topology.load("full-4")
    link = {(x.src, x.dst): x.id for x in full.links}
    sends = [Send(c, (link[g, g + 1],), 100.0 * g + c) for g in range(3) for c in range(nchunks)]
    return Schedule(full, demand_for("broadcast", 4, nchunks * 5e4, nchunks), tuple(sends), 400.0).retimed()


def test_a_poor_schedule_is_polished():
    poor = poor_schedule()
    better = polished_schedule(poor, solver="cbc", seed=0, deadline=time.monotonic() + 8)
    better.validate()
    assert better.finish_us < poor.finish_us * 0.8


def test_the_same_seed_polishes_alike():
    far = time.monotonic() + 60
    one, other = (polished_schedule(poor_schedule(2), solver="cbc", seed=1, deadline=far) for _ in range(2))
    assert one == other
    assert one.finish_us == pytest.approx(2.5)  # the optimum


def test_what_is_not_freed_stays():
    poor = poor_schedule()
    grid = EpochGrid(poor.topology, poor.demand, 1.0)
    result = Milp(grid, poor, "cbc", free=Free(chunks=frozenset({2}))).improve(seconds=5)
    result.schedule.validate()
    kept = [[send.path for send in s.sends if send.chunk != 2] for s in (poor, result.schedule)]
    assert sorted(kept[0]) == sorted(kept[1])
    assert [s.path for s in poor.sends if s.chunk == 2] != [s.path for s in result.schedule.sends if s.chunk == 2]
    assert result.epochs_bound <= result.epochs


def test_a_window_of_time_is_freed():
    poor = poor_schedule()
    grid = EpochGrid(poor.topology, poor.demand, 1.0)
    model = Milp(grid, poor, "cbc", free=Free(epochs=range(2, 20)))
    result = model.improve(seconds=5)
    result.schedule.validate()
    early = [key for key in model.placed if key[2] < 2]
    assert early
    paths = [grid.paths[p].links for _, p, _ in early]
    assert all(any(send.path == path for send in result.schedule.sends) for path in paths)
    assert result.schedule.finish_us <= poor.finish_us


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_the_time_is_kept_and_nothing_gets_worse(seconds):
    topology = Topology.load("mesh-3x3")
    start = GreedySearch(topology).trial(demand_for("allgather", 9, 1e6, 4), 0)
    began = time.monotonic()
    found = polished_schedule(start, solver="cbc", seed=0, deadline=began + seconds)
    assert time.monotonic() - began < seconds + 2
    found.validate()
    assert found.finish_us <= start.finish_us
