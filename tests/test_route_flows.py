"""From schedules to flows: phases are a ring's steps and a tree's levels, bytes are what hosts exchange."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction as F

import pytest

from teccl_msccl import Topology, synthesize
from teccl_msccl.cli import main
from teccl_msccl.collective.demand import demand_for
from teccl_msccl.errors import InputError
from teccl_msccl.routing.fabric import Clos
from teccl_msccl.routing.metric import rates
from teccl_msccl.routing.routers import optimize
from teccl_msccl.routing.schedule_flows import Placement, flows_of, phases
from teccl_msccl.schedule.schedule import Schedule, Send


def ring_allgather(n, size=8e6):
    """Rank r's chunk goes round the ring; step by step, with a start time for each step."""
    topology = Topology.load(f"ring-{n}")
    link = {(link.src, link.dst): link.id for link in topology.links}
    node = {rank: node for node, rank in topology.rank_of.items()}
    sends = [
        Send(chunk, (link[node[(chunk + step) % n], node[(chunk + step + 1) % n]],), step * 1000.0)
        for step in range(n - 1)
        for chunk in range(n)
    ]
    return Schedule(topology, demand_for("allgather", n, size, 1, 0), tuple(sends), 1e6).retimed()


def test_the_phases_of_a_ring_are_its_steps():
    schedule = ring_allgather(4)
    schedule.validate()
    assert [Counter(send.chunk for send in phase) for phase in phases(schedule)] == [Counter(range(4))] * 3
    traffic = flows_of(schedule, Placement(Clos(4, 2, 2), (0, 2, 4, 6), "J"))
    assert traffic.phases == (0, 1, 2)
    for number in range(3):
        found = [(f.src, f.dst, f.weight) for f in traffic.flows if f.phase == number]
        assert found == [(0, 2, F(2_000_000)), (2, 4, F(2_000_000)), (4, 6, F(2_000_000)), (6, 0, F(2_000_000))]
        assert {f.collective for f in traffic.flows if f.phase == number} == {f"J/allgather.{number}"}


def test_what_stays_in_a_host_is_left_out():
    traffic = flows_of(ring_allgather(4), Placement(Clos(2, 2, 2), (0, 0, 2, 2), ""))
    assert {(f.src, f.dst) for f in traffic.flows} == {(0, 2), (2, 0)}
    assert {f.extra for f in traffic.flows} == {(("rank", 1), ("peer", 2)), (("rank", 3), ("peer", 0))}


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall", "broadcast", "reduce"])
def test_bytes_are_those_of_the_sends_and_phases_follow_the_data(collective):
    schedule = synthesize(Topology.load("dgx-a100", hosts=2), collective, "1MB", method="greedy", time_limit=0.3)
    nranks = schedule.topology.nranks
    traffic = flows_of(schedule, Placement(Clos(nranks, 4, 1), tuple(range(nranks)), "J"))
    due = Counter()
    for send in schedule.sends:
        due[schedule.ends(send)] += F(schedule.demand.chunks[send.chunk].bytes)
    carried = Counter()
    for flow in traffic.flows:
        carried[flow.src, flow.dst] += flow.weight
    assert carried == due
    number = {send: k for k, phase in enumerate(phases(schedule)) for send in phase}
    assert len(number) == len(schedule.sends)
    for send in schedule.sends:
        source, _ = schedule.ends(send)
        brought = [
            number[other]
            for other in schedule.sends
            if other.chunk == send.chunk
            and schedule.ends(other)[1] == source
            and schedule.arrival_us(other) <= send.start_us * (1 + 1e-9)
        ]
        assert number[send] == max(brought, default=-1) + 1


def test_phases_are_routed_apart():
    """Two flows leave ToR 0 in each phase: over 2 spines all of them run at full rate."""
    traffic = flows_of(ring_allgather(4), Placement(Clos(2, 2, 2), (0, 2, 1, 3), "J"))
    assert len(traffic.flows) == 12
    found = rates(traffic, optimize(traffic, "auto").routes)
    assert set(found.flows) == {1}


def test_the_command_writes_what_the_others_read(tmp_path, capsys):
    schedule, placement, out = tmp_path / "s.json", tmp_path / "p.json", tmp_path / "traffic.json"
    ring_allgather(4).write(schedule)
    placement.write_text(json.dumps({"fabric": {"tors": 2, "spines": 2, "hosts_per_tor": 2}, "hosts": [0, 2, 1, 3]}))

    def route(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["route", *map(str, arguments)])
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    code, text, _ = route("flows", schedule, "--placement", placement, "-o", out)
    assert code == 0
    assert "12 flows in 3 phases" in text
    code, text, _ = route("flows", schedule, "--placement", placement)
    assert json.loads(text) == json.loads(out.read_text())
    code, text, _ = route("optimize", out, "--json")
    assert code == 0
    assert set(json.loads(text)["flow_rates"]) == {"1"}

    placement.write_text(json.dumps({"fabric": {"tors": 2, "spines": 2, "hosts_per_tor": 2}, "hosts": [0, 2, 1]}))
    code, _, err = route("flows", schedule, "--placement", placement)
    assert code == 2
    assert f"{placement}: the placement has 3 hosts, and the schedule 4 ranks" in err
    placement.write_text(json.dumps({"fabric": {"tors": 2, "spines": 2, "hosts_per_tor": 2}, "hosts": [0, 2, 1, 9]}))
    code, _, err = route("flows", schedule, "--placement", placement)
    assert code == 2
    assert "hosts[3]: no host 9" in err


def test_a_placement_is_an_object_with_hosts(tmp_path):
    path = tmp_path / "p.json"
    path.write_text('{"fabric": {"tors": 2, "spines": 2, "hosts_per_tor": 2}, "hosts": 3}')
    with pytest.raises(InputError, match="'hosts' must be a list"):
        Placement.read(path)
