"""One part's flow stands for all: the same optimum as of the whole program, and routes that keep all links as busy."""

from collections import Counter

import pytest

from teccl_msccl import Topology
from teccl_msccl.collective.demand import demand_for
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.even import EvenPart
from teccl_msccl.synthesis.flow import bytes_between, concurrent_flow, price_bound_us
from teccl_msccl.synthesis.lp import FlowRouting

MACHINES = (
    ("ring-6", {}, 6),
    ("torus-3x4", {}, 12),
    ("mesh-3x3", {}, None),
    ("mesh-4x4", {}, 4),
    ("teccl-ndv2", {"hosts": 2}, 2),
    ("dgx-a100", {"hosts": 2}, 16),
)


@pytest.mark.parametrize(("name", "hosts", "parts"), MACHINES)
def test_the_flow_of_a_part_takes_as_long_as_everybodys(name, hosts, parts):
    topology = Topology.load(name, **hosts)
    wanted = bytes_between(demand_for("alltoall", topology.nranks, 1e6))
    part, whole = EvenPart.of(topology, wanted), EvenPart(topology, None)
    assert parts is None or part.count == parts
    one, all_of_it = (concurrent_flow(topology, wanted, part=which) for which in (part, whole))
    assert {source for source, _ in one.flow} == part.ranks
    bound_us = price_bound_us(topology, wanted, all_of_it.prices)
    assert price_bound_us(topology, wanted, one.prices) == pytest.approx(bound_us, rel=1e-6)
    assert price_bound_us(topology, wanted, one.prices, part=part) == pytest.approx(bound_us, rel=1e-6)
    busy = Counter()
    for (source, link), nbytes in one.flow.items():
        position = sorted(part.ranks).index(source)
        assert len({move[source] for move in part.moves}) == part.count, position
        for (moved,) in part.lifted((link,)):
            busy[moved] += nbytes
    slowest = max(nbytes / topology.link_by_id[link].bandwidth_GBps for link, nbytes in busy.items())
    assert slowest * 1e-3 == pytest.approx(bound_us, rel=1e-6)


def test_nobody_stands_for_others_who_want_more():
    topology = Topology.load("ring-6")
    wanted = bytes_between(demand_for("alltoall", 6, 1e6))
    assert EvenPart.of(topology, {**wanted, (0, 1): 5e6}).count == 1
    assert EvenPart.of(topology, {**wanted, **{(rank, (rank + 3) % 6): 5e6 for rank in range(6)}}).count == 6
    assert EvenPart.of(topology, {**wanted, **{(rank, (rank + 1) % 6): 5e6 for rank in (0, 2, 4)}}).count == 3


@pytest.mark.parametrize(("name", "chunks"), [("torus-4x4", 1), ("torus-2x3x4", 2), ("hypercube-16", 1)])
def test_an_alltoall_routed_alike_for_all_fills_every_link_to_the_end(name, chunks):
    topology = Topology.load(name)
    demand = demand_for("alltoall", topology.nranks, 1e9, chunks)
    wanted = bytes_between(demand)
    routing = FlowRouting(topology, wanted)
    found = min(routing.schedules(demand, seed=0), key=lambda schedule: schedule.finish_us)
    found.validate()
    assert found.finish_us <= 1.02 * price_bound_us(topology, wanted, routing.flow.prices)


def test_without_symmetry_nothing_changes():
    """A chord breaks it: the part is the whole, and what is found is valid."""
    ring = Topology.load("ring-5")
    link = ring.links[0]
    chord = Topology("chord", ring.nodes, (*ring.links, type(link)(99, link.src, ring.gpus[2], 10, 0.5)))
    demand = demand_for("alltoall", 5, 1e6, 2)
    routing = FlowRouting(chord, bytes_between(demand))
    assert routing.part.count == 1
    for schedule in routing.schedules(demand, seed=0):
        assert isinstance(schedule, Schedule)
        schedule.validate()
