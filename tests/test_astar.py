"""A*: what a round leaves in flight or on a link is the next one's; the schedule holds on the grid as it is."""

import time
from collections import Counter
from dataclasses import replace

import pytest
from asked import run
from strategies import machine, seeded_machine

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.synthesis.astar import schedule_by_rounds
from teccl_msccl.synthesis.epochs import EpochGrid, slow_epoch_us
from teccl_msccl.topology.model import Topology


def by_rounds(topology, demand, seconds=20.0):
    grid = EpochGrid(topology, demand, slow_epoch_us(topology, demand))
    return grid, schedule_by_rounds(grid, solver="cbc", seed=0, deadline=time.monotonic() + seconds)


@pytest.mark.parametrize(
    ("name", "collective", "nchunks"),
    [("ring-6", "allgather", 1), ("ring-6", "alltoall", 1), ("line-5", "broadcast", 3), ("star-4", "allgather", 2)],
)
def test_several_rounds_make_a_schedule_that_holds_on_the_grid(name, collective, nchunks):
    topology = Topology.load(name)
    grid, schedule = by_rounds(topology, demand_for(collective, topology.nranks, 1e6, nchunks))
    check_on_the_grid(grid, schedule)
    schedule.retimed().validate()
    length = max(grid.arrival) + 1
    assert schedule.finish_us > length * grid.tau_us or name == "star-4"  # more than one round
    assert len({(send.chunk, schedule.ends(send)[1]) for send in schedule.sends}) == len(schedule.sends)
    assert schedule.retimed().finish_us <= schedule.finish_us * (1 + 1e-9)


def check_on_the_grid(grid, schedule):
    """Counted by hand: who has what in which epoch, and how many sends occupy a link at once."""
    number = {path.links: p for p, path in enumerate(grid.paths)}
    since = {(chunk.id, v): 0 for chunk in grid.demand.chunks for v in chunk.origin}
    occupied = Counter()
    for send in sorted(schedule.sends, key=lambda send: send.start_us):
        epoch, p = round(send.start_us / grid.tau_us), number[send.path]
        assert since[send.chunk, grid.paths[p].src_rank] <= epoch
        assert since.setdefault((send.chunk, grid.paths[p].dst_rank), epoch + grid.arrival[p]) > epoch
        occupied.update((link, e) for link in send.path for e in range(epoch, epoch + grid.span[link]))
    assert all((chunk.id, w) in since for chunk in grid.demand.chunks for w in chunk.want)
    assert all(count <= grid.capacity[link] for (link, _), count in occupied.items())


def test_random_machines():
    for seed in range(12):
        topology = seeded_machine(seed, 2, 4, 1)
        grid, schedule = by_rounds(topology, demand_for("allgather", topology.nranks, 1e5))
        check_on_the_grid(grid, schedule)
        schedule.retimed().validate()


def test_a_slow_link_is_still_taken_in_the_next_round():
    """Epochs of the fast links: the slow one is occupied over the end of a round."""
    topology = machine("ggg", [(0, 1, 100, 0.0), (1, 2, 20, 0.0)])
    demand = demand_for("alltoall", 3, 3e5, 2)
    grid = EpochGrid(topology, demand, 0.5)
    schedule = schedule_by_rounds(grid, solver="cbc", seed=0, deadline=time.monotonic() + 20)
    check_on_the_grid(grid, schedule)
    early = replace(schedule, sends=tuple(send._replace(start_us=0.0) for send in schedule.sends))
    with pytest.raises(AssertionError):
        check_on_the_grid(grid, early)


def test_no_time_no_schedule():
    assert by_rounds(Topology.load("ring-4"), demand_for("allgather", 4, 1e6), seconds=0.0)[1] is None


def test_as_a_method():
    result = run(Topology.load("ring-6"), "reduce_scatter", "1MB", method="astar", time_limit=10)
    result.schedule.validate()
    assert result.gap < 0.6


@pytest.mark.parametrize("size", [0, 1e3])
def test_where_alpha_is_all_a_round_is_a_few_hops_not_hundreds_of_epochs(size):
    result = run(Topology.load("dgx1"), "allgather", size, method="astar", nchunks=1, time_limit=30)
    assert result.method == "astar"
    assert result.gap < 0.7


def test_a_round_that_would_not_be_built_in_time_is_not_begun():
    topology = Topology.load("dgx1")
    grid = EpochGrid(topology, demand_for("allgather", 8, 1e3), 1e-4)
    began = time.process_time()
    assert schedule_by_rounds(grid, solver="cbc", seed=0, deadline=time.monotonic() + 5) is None
    assert time.process_time() - began < 2
