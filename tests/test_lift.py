"""From a program back to its schedule: round trips, programs by hand, and what no schedule can say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import hand_made
import pytest
from correct_programs import (
    CORRECT,
    all_pairs_allreduce,
    block,
    fused_ring_allreduce,
    receive,
    recursive_doubling_allgather,
    send,
    with_step,
)
from correct_programs import program as build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import require_right
from schedules_by_hand import HAND_MADE
from strategies_lower import wild_schedules

from teccl_msccl.cli import main
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program import xml
from teccl_msccl.program.check import check
from teccl_msccl.program.lift import lift
from teccl_msccl.program.lower import Lowering, lower
from teccl_msccl.program.placement import MODES
from teccl_msccl.program.program import Gpu, Step
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.program.tune import Choice
from teccl_msccl.schedule.read import read_schedule
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.topology.catalog import load


def moves(schedule: Schedule) -> list[tuple[int, int, int]]:
    return sorted((send.chunk, *schedule.ends(send)) for send in schedule.sends)


@pytest.mark.parametrize("name", CORRECT)
def test_programs_by_hand(name: str) -> None:
    program = CORRECT[name]()
    topology = load(f"full-{program.nranks}").topology
    schedule = lift(program, name).schedule(topology, 1e6)
    schedule.validate()
    assert schedule.demand.collective == program.collective
    assert schedule.demand.root == check(program).root
    require_right(lower(schedule, protocol="LL", spread=1), schedule, slots=(1,))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(set(HAND_MADE) - {"own demand"}))
def test_by_hand_and_back(name: str, mode: str) -> None:
    """What a schedule's program sends is what the schedule does."""
    schedule = HAND_MADE[name]()
    program = Lowering(schedule, TARGETS["executor"], frozenset({mode}), name).program(Choice("LL"))
    again = lift(program, name).schedule(schedule.topology, schedule.demand.size_bytes)
    again.validate()
    if name not in ("twice", "there and back"):  # where some sends are needless
        assert moves(again) == moves(schedule)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(wild_schedules(), st.sampled_from(list(TARGETS)), st.booleans(), st.booleans())
def test_any_schedule_and_back(schedule: Schedule, target: str, fused: bool, merged: bool) -> None:
    """XML → Program → Schedule → Program → XML: the same sends; and the text reads back as it was."""
    limits = TARGETS[target]
    if schedule.demand.collective not in limits.collectives:
        return
    lowering = Lowering(schedule, limits, frozenset({"outofplace"}), "wild", merged)
    program = lowering.program(Choice("Simple", fused=fused and limits.fused_receives, merged=merged))
    text = xml.to_text(program)
    assert xml.to_text(xml.parse(text.encode(), target=target)) == text
    if not check(program, root=schedule.demand.root).ok:  # fused by force
        return
    try:
        again = lift(program, "wild").schedule(schedule.topology, schedule.demand.size_bytes)
    except Refused as error:
        assert "root" in str(error)  # which the data flow does not tell
        return
    assert set(moves(again)) <= set(moves(schedule))
    second = Lowering(again, limits, frozenset({"outofplace"}), "again").program(Choice("Simple"))
    require_right(second, again, slots=(1,))


def test_sums_are_reductions() -> None:
    ring = lift(fused_ring_allreduce(4), "ring")
    assert sum(hop.reduce for hop in ring.hops) == 12 and len(ring.hops) == 24
    assert not any(hop.reduce for hop in lift(recursive_doubling_allgather(8, "LL"), "doubling").hops)
    assert lift(hand_made.direct("gather", 3, 2, root=1), "gather").known == ("gather", 1, 2)
    assert sum(hop.reduce for hop in lift(all_pairs_allreduce(), "pairs").hops) == 12


def test_sums_at_several_gpus_are_no_schedule() -> None:
    """A schedule adds up a chunk on its way to one GPU; these two send each other theirs, and both do."""
    exchange = [block([send("i", 0), Step("rrc", "i", 0, "o", 0)], send=peer, recv=peer) for peer in (1, 0)]
    both = build("allreduce", 1, [Gpu(1, 1, 0, (each,)) for each in exchange], mode="outofplace")
    assert check(both).ok
    with pytest.raises(Refused, match="this MSCCL schedule is not right"):
        lift(both, "exchange").schedule(load("full-2").topology, 1e6)


def test_what_is_no_schedule(tmp_path: Path) -> None:
    program = fused_ring_allreduce(3)
    with pytest.raises(Refused, match="this program is not right: "):
        lift(with_step(program, 0, 0, 0, srcoff=1), "broken")
    with pytest.raises(Refused, match="no schedule is known for coll 'custom'"):
        lift(replace(program, collective="custom", target="msccl"), "custom")
    program.write(tmp_path / "ring.xml")
    with pytest.raises(InputError, match="name the --topology"):
        read_schedule(tmp_path / "ring.xml")
    with pytest.raises(InputError, match="is for 3 GPUs, but ring-4 has 4"):
        read_schedule(tmp_path / "ring.xml", load("ring-4").topology)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another's file as the start of a search, and lowered anew for another runtime."""
    fused_ring_allreduce(4).write(tmp_path / "ring.xml")
    for words in (
        ["lower", str(tmp_path / "ring.xml"), "--topology", "ring-4", "--size", "1MB", "--target", "rccl"],
        ["synth", "ring-4", "allreduce", "--size", "1MB", "--start", str(tmp_path / "ring.xml"), "--time-limit", "0"],
    ):
        with pytest.raises(SystemExit) as stop:
            main([*words, "-o", str(tmp_path / "out.xml"), "--json"])
        answer = json.loads(capsys.readouterr().out)
        assert stop.value.code == 0 and answer["finish_us"] > 0
        assert check(xml.read(tmp_path / "out.xml", answer["target"])).ok


def test_the_mode_is_the_one_in_which_the_target_runs_the_file() -> None:
    """msccl takes a file that claims neither mode out of place; in place, what rank 1 receives would be sent back."""
    first = block([send("i", 1), receive("o", 1)], send=1, recv=1)
    then = block([receive("o", 0), send("i", 0)], send=0, recv=0)
    own = [block([Step("cpy", "i", rank, "o", rank)]) for rank in range(2)]
    gpus = [Gpu(2, 2, 0, (exchange, copy)) for exchange, copy in zip((first, then), own, strict=True)]
    unsaid = replace(build("alltoall", 2, gpus), target="msccl", inplace=False, outofplace=False, max_bytes=2**30)
    assert sorted((hop.chunk, hop.src, hop.dst) for hop in lift(unsaid, "p").hops) == [(1, 0, 1), (2, 1, 0)]
