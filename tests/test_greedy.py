"""The greedy search: valid everywhere, deterministic, without waste, and optimal where it is known to be."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import machine, machines, seeded_machine

from teccl_msccl import _core
from teccl_msccl.collective.demand import Chunk, Demand, demand_for
from teccl_msccl.errors import Refused
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.schedule.simulate import core_demand, core_network
from teccl_msccl.synthesis.bounds import lower_bound_us
from teccl_msccl.synthesis.greedy import GreedySearch, search_chunk_counts
from teccl_msccl.topology.model import Topology

COPYING = ("allgather", "alltoall", "broadcast", "gather", "scatter")


def test_valid_on_every_machine_and_reaching_everyone():
    """A thousand trials of mixed latencies behind one switch or two; shared links are met at different delays."""
    for number in range(250):
        topology = seeded_machine(number)
        demand = demand_for(COPYING[number % 5], topology.nranks, 10.0 ** (number % 7), 1 + number % 3, number % 2)
        for trial in GreedySearch(topology).trials(demand, range(number, number + 4), jobs=1):
            trial.validate()


@settings(max_examples=60, deadline=None)
@given(machines(), st.sampled_from(COPYING), st.sampled_from([0, 1e-9, 1, 1e6, 1e15]), st.integers(0, 2**63 - 1))
def test_valid_for_any_size_and_seed(topology, collective, size, seed):
    demand = demand_for(collective, topology.nranks, size, 2, topology.nranks - 1)
    one = GreedySearch(topology).trial(demand, seed)
    one.validate()
    assert one == GreedySearch(topology).trial(demand, seed)
    assert one.retimed().finish_us == pytest.approx(one.finish_us, rel=1e-9, abs=1e-9)
    receipts = [(send.chunk, one.ends(send)[1]) for send in one.sends]
    assert len(receipts) == len(set(receipts))


@settings(max_examples=40, deadline=None)
@given(machines(most=5), st.sampled_from(COPYING), st.integers(0, 1000))
def test_no_send_is_wasted(topology, collective, seed):
    """Without any one send somebody goes without."""
    schedule = GreedySearch(topology).trial(demand_for(collective, topology.nranks, 1e6, 2), seed)
    for i in range(len(schedule.sends)):
        with pytest.raises(Refused):
            replace(schedule, sends=schedule.sends[:i] + schedule.sends[i + 1 :]).validate()


def test_chunks_of_different_sizes():
    star = Topology.load("star-4")
    chunks = tuple(Chunk(i, (i % 4,), (0, 1, 2, 3), 10.0 ** (3 + i % 4)) for i in range(12))
    for seed in range(20):
        GreedySearch(star).trial(Demand("mixed", 4, chunks, 1, 1e6), seed).validate()


def test_the_order_of_trials_is_that_of_the_seeds_however_many_threads():
    mesh = Topology.load("mesh-3x3")
    demand = demand_for("allgather", 9, 1e6, 2)
    one = list(GreedySearch(mesh).trials(demand, range(7, 30), jobs=1))
    three = list(GreedySearch(mesh).trials(demand, range(7, 30), jobs=3))
    assert one == three
    assert one == [GreedySearch(mesh).trial(demand, seed) for seed in range(7, 30)]
    assert len({schedule.sends for schedule in one}) > 1


def test_a_gpu_that_no_path_reaches_is_refused():
    """A topology cannot be built so; the core, asked directly, says no instead of waiting."""
    line = machine("ggg", [(0, 1, 50, 0.5), (1, 2, 50, 0.5)])
    demand = core_demand(demand_for("broadcast", 3, 8))
    with pytest.raises(ValueError, match="GPU 2 cannot be reached by chunk 0"):
        _core.greedy(core_network(line, [(0,), (1,)]), demand, 0, 0.0, inf)
    lonely = Demand("two", 3, (Chunk(0, (2,), (0,), 8.0),), 1, 8.0)
    with pytest.raises(ValueError, match="GPU 0 cannot be reached by chunk 0"):
        _core.greedy(core_network(line, [(0,), (2,)]), core_demand(lonely), 0, 0.0, inf)


def test_the_refusal_names_the_topology(monkeypatch):
    monkeypatch.setattr("teccl_msccl.synthesis.greedy.direct_paths", lambda topology: ())
    with pytest.raises(Refused, match="line-3: GPU 1 cannot be reached by chunk 0"):
        GreedySearch(Topology.load("line-3")).trial(demand_for("broadcast", 3, 8), 0)


@pytest.mark.parametrize(
    ("name", "nchunks", "seeds"),
    [("ring-8", 2, 8), ("star-8", 1, 200), ("full-8", 1, 1), ("full-8", 2, 1), ("teccl-dgx1", 6, 200)],
)
def test_allgather_attains_the_bound(name, nchunks, seeds):
    topology = Topology.load(name)
    demand = demand_for("allgather", topology.nranks, 1e6, nchunks)
    best = min(GreedySearch(topology).trials(demand, range(seeds)), key=lambda schedule: schedule.finish_us)
    best.validate()
    assert best.finish_us == pytest.approx(lower_bound_us(topology, demand))


def test_halving_tries_the_same_whatever_the_machine_and_stops_when_told():
    ring = Topology.load("ring-5")
    demands = [demand_for("allgather", 5, 1e6, count) for count in (1, 2, 3)]

    def search(enough: int = 10**9) -> list[Schedule]:
        found: list[Schedule] = []
        search_chunk_counts(
            GreedySearch(ring),
            demands,
            floor_us=lower_bound_us(ring, demands[0]),
            seed=3,
            jobs=2,
            effort=3e4,
            improved=found.append,
            done=lambda: len(found) >= enough,
        )
        return found

    found = search()
    assert found == search()
    assert found[:2] == search(enough=2)
    for count in (1, 2, 3):
        ends = [schedule.finish_us for schedule in found if schedule.demand.nchunks == count]
        assert ends
        assert ends == sorted(set(ends), reverse=True)
