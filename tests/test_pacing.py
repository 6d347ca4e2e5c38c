"""Turns at shared links and instances: what they are for, that they are needed, and that they break nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from lowered import greedy, require_right
from schedules_by_hand import HAND_MADE, everyone_exchanges, ring
from strategies import machine
from strategies_lower import wild_schedules

from teccl_msccl.cli import main
from teccl_msccl.collective.demand import demand_for
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program import xml
from teccl_msccl.program.actions import plan_actions
from teccl_msccl.program.check import check
from teccl_msccl.program.instances import gathered, replicated, unrolled
from teccl_msccl.program.lower import Lowering, lower
from teccl_msccl.program.pacing import PACES, paced, slow_links
from teccl_msccl.program.placement import MODES
from teccl_msccl.program.program import Program
from teccl_msccl.program.simulate import simulate
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.program.tune import Choice
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.schedule.simulate import play
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.model import Link, Node, Topology

COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "alltoall")


def slowdown(program: Program, schedule: Schedule) -> float:
    """The program's time over the schedule's."""
    return simulate(program, schedule.topology, schedule.demand.size_bytes, neutral=True).finish_us / schedule.finish_us


def played(schedule: Schedule) -> Schedule:
    """The sends in the order of their starts, each as early as it can."""
    sends = sorted(schedule.sends, key=lambda send: send.start_us)
    starts, arrivals = play(schedule.topology, schedule.demand, sends)
    timed = tuple(send._replace(start_us=start) for send, start in zip(sends, starts, strict=True))
    return replace(schedule, sends=timed, finish_us=max(arrivals))


def through_a_switch(collective: str, size: float = 1e6) -> Schedule:
    return greedy(Problem(load("star-8").topology, collective, size))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_programs_keep_the_time_of_schedules_through_a_switch(collective: str) -> None:
    schedule = through_a_switch(collective)
    assert slowdown(lower(schedule), schedule) <= 1.01


def test_without_turns_they_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teccl_msccl.program.lower.PACES", ("none",))
    schedules = [through_a_switch(collective) for collective in COLLECTIVES]
    assert max(slowdown(lower(schedule), schedule) for schedule in schedules) > 1.2


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_chunks_of_several_slots_keep_it_too(collective: str) -> None:
    """64 MB among 8 ranks: chunks of four slots, which a runtime would loop over."""
    schedule = through_a_switch(collective, 6.4e7)
    program = lower(schedule)
    assert slowdown(program, schedule) <= 1.05
    if program.nchunks > schedule.demand.chunks_per_size:
        assert simulate(program, schedule.topology, 6.4e7).iterations == 1


def test_links_of_one_connection_need_no_turns() -> None:
    """Direct links: a threadblock's own order is the link's."""
    schedule = ring()
    assert lower(schedule, protocol="Simple", instances=1, spread=1) == lower(schedule, protocol="Simple", instances=1)


@pytest.mark.parametrize("pace", PACES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(schedule=wild_schedules(), at_once=st.integers(1, 3))
def test_waits_are_for_earlier_turns(schedule: Schedule, at_once: int, pace: str) -> None:
    for plan in plan_actions(schedule, frozenset({"outofplace"})):
        links = {link.id: at_once for link in schedule.topology.links}
        assert all(before.turn <= after.turn for before, after in pairwise(plan.actions))
        for action, waits in paced(plan.actions, pace, links, frozenset(links)).items():
            assert all(earlier.turn < action.turn for earlier in waits)


@pytest.mark.parametrize("target", ["executor", "rccl"])
def test_sends_over_slow_links_wait_for_what_arrives_before_them(target: str) -> None:
    """Sums over NVLink and the network: its sends, and none else, wait for arrivals, or for what has become
    of them, that precede them."""
    schedule = greedy(Problem(load("dgx-a100x2").topology, "reduce_scatter", 1e6))
    slow = slow_links(schedule)
    links = schedule.topology.link_by_id
    assert {links[link].kind for link in slow}.isdisjoint({"nvlink"}) and slow
    waited = set()
    for plan in plan_actions(schedule, frozenset({"outofplace"}), fused=TARGETS[target].fused_receives):
        for send, waits in paced(plan.actions, "slow", {}, slow).items():
            for earlier in waits:
                assert not slow.isdisjoint(send.links) and earlier.arrival_us <= send.start_us + 1e-3
                waited.add(earlier.type)
    assert waited == ({"rrc"} if target == "executor" else {"re"})


@pytest.mark.parametrize("name", HAND_MADE)
@pytest.mark.parametrize("pace", PACES[1:])
def test_paced_programs_are_right(name: str, pace: str) -> None:
    """Every schedule by hand, whether waiting pays or not."""
    schedule = HAND_MADE[name]()
    lowering = Lowering(schedule, TARGETS["executor"], frozenset(MODES), name)
    require_right(lowering.program(Choice("LL", pace=pace)), schedule, slots=(1,))


# -- instances -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instances", [1, 2, 5])
@pytest.mark.parametrize("name", HAND_MADE)
def test_instances_are_the_same_schedule_in_parts(name: str, instances: int) -> None:
    schedule = HAND_MADE[name]()
    parts = replicated(schedule, instances)
    played(parts).validate()
    assert len(parts.sends) == instances * len(schedule.sends)
    assert parts.demand.nchunks == instances * schedule.demand.nchunks
    assert parts.demand.size_bytes == schedule.demand.size_bytes
    for chunk in parts.demand.chunks:
        whole = schedule.demand.chunks[chunk.id // instances]
        assert (chunk.origin, chunk.want) == (whole.origin, whole.want)
        assert chunk.bytes * instances == pytest.approx(whole.bytes)


@pytest.mark.parametrize("staggered", [False, True])
@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize("name", HAND_MADE)
def test_rounds_are_the_same_schedule_over_and_over(name: str, rounds: int, staggered: bool) -> None:
    schedule = HAND_MADE[name]()
    again = unrolled(schedule, rounds, staggered)
    played(again).validate()
    assert again.demand == replicated(schedule, rounds).demand
    for part in range(rounds):
        sends = [send for send in again.sends if send.chunk % rounds == part]
        assert [(send.chunk // rounds, send.path, send.reduce) for send in sends] == [
            (send.chunk, send.path, send.reduce) for send in schedule.sends
        ]


def test_staggered_hops_are_a_round_apart() -> None:
    """A chunk goes down a line of four: its third hop has its turn together with the first of two rounds later."""
    topology = load("line-4").topology
    broadcast = greedy(Problem(topology, "broadcast", 1e6))
    hops = sorted(broadcast.sends, key=lambda send: send.start_us)
    assert [broadcast.ends(send) for send in hops] == [(0, 1), (1, 2), (2, 3)]
    again = unrolled(broadcast, 4, staggered=True)
    late = {(send.chunk, send.path): send.start_us for send in again.sends}
    for hop, send in enumerate(hops):
        for part in range(4):
            turn_us = (part + hop) * broadcast.finish_us / 4
            assert late[part, send.path] == pytest.approx(turn_us + send.start_us / 4)


def test_staggered_rounds_leave_links_less_idle() -> None:
    """Sums over three switched hops, in as many rounds."""
    schedule = greedy(Problem(load("dgx-a100x2").topology, "reduce_scatter", 6.4e8))

    def slowdown_in_rounds(staggered: bool) -> float:
        parts = unrolled(schedule, 4, staggered)
        program = Lowering(parts, TARGETS["executor"], frozenset(MODES), "rounds").program(Choice("Simple"))
        assert check(program).ok
        return slowdown(program, schedule)

    assert slowdown_in_rounds(True) < 0.75 * slowdown_in_rounds(False)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_staggered_rounds_are_right(collective: str, pace: str) -> None:
    parts = unrolled(through_a_switch(collective), 2, staggered=True)
    program = Lowering(parts, TARGETS["executor"], frozenset(MODES), "rounds").program(Choice("Simple", pace, spread=2))
    require_right(program, parts, slots=(1,))


@pytest.mark.parametrize("together", [1, 2, 4])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_larger_chunks_go_the_same_ways(collective: str, together: int) -> None:
    schedule = replicated(greedy(Problem(load("ring-4").topology, collective, 1e6), 3), 4)
    larger = gathered(schedule, together)
    played(larger).validate()
    assert larger.demand == demand_for(collective, 4, 1e6, schedule.demand.nchunks // together)
    sent = Counter((send.path, send.reduce) for send in schedule.sends)
    assert Counter({way: together * n for way, n in Counter((s.path, s.reduce) for s in larger.sends).items()}) == sent
    with pytest.raises(Refused, match="5 at a time"):
        gathered(schedule, 5)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(wild_schedules(), st.integers(2, 3))
def test_larger_chunks_of_any_schedule(schedule: Schedule, together: int) -> None:
    """Whatever ways chunks that are alike go, larger ones go those of some."""
    try:
        larger = gathered(schedule, together)
    except Refused:
        reject()
    played(larger).validate()
    assert larger.demand.nchunks * together == schedule.demand.nchunks


@pytest.mark.parametrize("instances", [2, 3])
def test_parts_of_larger_chunks_come_after_what_they_are_sums_of(instances: int) -> None:
    """A slow link into the root and fast ones out of it: larger chunks that kept the starts of the small ones would be
    sent on, part by part, before they have arrived."""
    slow_in = machine("ggg", [(2, 0, 5, 0), (1, 0, 50, 0), (0, 1, 50, 0), (0, 2, 50, 0)], one_way=True)
    parts = replicated(gathered(greedy(Problem(slow_in, "allreduce", 1e9), 4), 4), instances)
    parts.retimed().validate()
    program = Lowering(parts, TARGETS["executor"], frozenset(MODES), "parts").program(Choice("Simple"))
    require_right(program, parts, slots=(1,))


def test_larger_chunks_make_up_for_few_credits() -> None:
    """128 chunks to a neighbour take hardly longer than a latency; 32 channels have 64 of them under way."""
    schedule = greedy(Problem(load("full-2").topology, "alltoall", 1e3), 128)
    assert slowdown(lower(schedule, protocol="Simple", instances=1), schedule) > 1.9
    program = lower(schedule, protocol="Simple")
    assert slowdown(program, schedule) <= 1.05
    assert program.nchunks < schedule.demand.chunks_per_size
    require_right(program, schedule, slots=(1,))


def test_instances_as_told() -> None:
    schedule = everyone_exchanges()
    for instances in (1, 2, 3):
        program = lower(schedule, instances=instances)
        assert program.nchunks == instances * schedule.demand.chunks_per_size
        require_right(program, schedule, slots=(1,))
    with pytest.raises(InputError, match="instances 0"):
        lower(schedule, instances=0)


def half_as_fast(name: str, nchunks: int) -> Schedule:
    """An allgather over direct links that two threadblocks fill."""
    topology = load(name).topology
    topology = replace(topology, threadblock_GBps=max(link.bandwidth_GBps for link in topology.links) / 2)
    return greedy(Problem(topology, "allgather", 3.2e7), nchunks)


@pytest.mark.parametrize(("name", "nchunks", "most"), [("ring-4", 4, 1.06), ("full-4", 8, 1.1)])
def test_more_channels_and_parts_make_up_for_slow_threadblocks(name: str, nchunks: int, most: float) -> None:
    schedule = half_as_fast(name, nchunks)
    assert slowdown(lower(schedule, instances=1, spread=1), schedule) > 1.2
    assert slowdown(lower(schedule), schedule) <= most


def test_copies_that_nobody_waits_for_are_shared_out() -> None:
    """Out of place the output's own share is copied while all else goes on: by one, four times as long."""
    schedule = half_as_fast("full-4", 4)
    assert slowdown(lower(schedule, mode="outofplace"), schedule) <= 1.05
    program = lower(schedule, mode="outofplace", instances=1, spread=1)
    copies = [step for _, _, _, step in program.steps() if step.type == "cpy"]
    assert len(copies) > program.nranks and sum(step.cnt for step in copies) == 4 * program.nranks
    require_right(program, schedule, slots=(1,))


def test_a_root_copies_all_its_data_in_the_time_of_its_sends() -> None:
    """Which takes more threadblocks the slower they are: with eight it took twice as long on an A100."""
    machine = replace(load("ring-4").topology, threadblock_GBps=8.0)
    schedule = greedy(Problem(machine, "broadcast", 64e6), 16)
    program = lower(schedule)
    assert slowdown(program, schedule) <= 1.1
    copying = [tb for tb in program.gpus[0].threadblocks if any(step.type == "cpy" for step in tb.steps)]
    assert len(copying) >= 64e6 / (8e3 / 2 * schedule.finish_us)
    require_right(program, schedule, slots=(1,))


def test_input_set_aside_in_place_is_copied_by_as_many_as_it_takes() -> None:
    """In place an alltoall's arrivals overwrite what is yet to be sent: those copies are as much work as any."""
    machine = replace(load("full-4").topology, threadblock_GBps=8.0)
    schedule = greedy(Problem(machine, "alltoall", 64e6))
    program = Lowering(schedule, TARGETS["executor"], frozenset({"inplace"}), "aside").program(Choice("Simple"))
    copying = [tb for tb in program.gpus[0].threadblocks if any(step.type == "cpy" for step in tb.steps)]
    copies = sum(step.cnt for tb in copying for step in tb.steps)
    assert copies and len(copying) == copies


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("spread", [1, 2, None])
def test_sends_go_the_way_that_the_schedule_has_them(way: int, spread: int | None) -> None:
    """Of two paths that tie a runtime's channels take turns at both: all of a connection's must be those of its own."""
    nodes = (Node(0, "gpu", 0), Node(1, "gpu", 1), Node(2, "switch"), Node(3, "switch"))
    ends = [(gpu, switch) for switch in (2, 3) for gpu in (0, 1)]
    links = tuple(Link(i, *pair, 10.0, 1.0) for i, pair in enumerate([*ends, *(pair[::-1] for pair in ends)]))
    topology = Topology("two-ways", nodes, links, threadblock_GBps=5.0)
    there, back = ((0, 5), (1, 4)) if way == 0 else ((2, 7), (3, 6))
    chunks = Problem(topology, "allgather", 1e6).demand(4)
    sends = tuple(Send(chunk.id, there if 0 in chunk.origin else back, 0.0) for chunk in chunks.chunks)
    schedule = Schedule(topology, chunks, sends, 0.0).retimed()
    program = lower(schedule, spread=spread, instances=1)
    used = {link.link for link in simulate(program, topology, 1e6).links}
    assert used == {*there, *back}


def test_instances_carry_what_one_threadblock_cannot() -> None:
    """A chunk to each neighbour, over links three times as fast as a threadblock."""
    topology = replace(load("ring-4").topology, threadblock_GBps=50 / 3)
    schedule = greedy(Problem(topology, "allgather", 8e6))
    alone, several = lower(schedule, instances=1, spread=1), lower(schedule)
    assert slowdown(alone, schedule) > 2 > 1.4 > slowdown(several, schedule)
    assert several.nchunks > alone.nchunks


@pytest.mark.parametrize(("option", "factor"), [("2", 2), ("1", 1)])
def test_command(option: str, factor: int, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    schedule = ring(4)
    schedule.write(tmp_path / "schedule.json")
    arguments = ["lower", str(tmp_path / "schedule.json"), "-o", str(tmp_path / "a.xml")]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--instances", option])
    assert stop.value.code == 0
    assert xml.read(tmp_path / "a.xml").nchunks == factor * schedule.demand.chunks_per_size
    for wrong in ("0", "many"):
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--instances", wrong])
        assert stop.value.code == 2 and "instances" in capsys.readouterr().err
