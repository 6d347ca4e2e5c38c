"""Lowering for every target: proved by its own rules, executed, and refused with what would fit."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import greedy, require_right
from schedules_by_hand import HAND_MADE, alltoall_on_a_line, by_hand, everyone_exchanges, ring, tree_allreduce
from strategies_lower import wild_schedules

from teccl_msccl.cli import main
from teccl_msccl.collective.demand import COLLECTIVES, demand_for
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program.check import check
from teccl_msccl.program.lower import lower
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load

OTHERS = ("msccl", "rccl")

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def takes(target: str, collective: str, mode: str | None = None) -> bool:
    limits = TARGETS[target]
    return collective in limits.collectives and not (mode == "inplace" and collective in limits.inplace_refused)


@pytest.mark.parametrize("target", OTHERS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_any_machine(collective: str, target: str) -> None:
    for topology in ("ring-4", "star-5"):
        schedule = greedy(Problem(load(topology).topology, collective, 1e6, root=1), nchunks=2)
        for mode in (None, "inplace"):
            if takes(target, collective, mode):
                program = lower(schedule, target, mode=mode)
                assert program.target == target
                require_right(program, schedule, slots=(1,))
            else:
                with pytest.raises(Refused, match=r"does not take|never runs"):
                    lower(schedule, target, mode=mode)


@pytest.mark.parametrize("target", OTHERS)
@pytest.mark.parametrize("name", HAND_MADE)
def test_by_hand(name: str, target: str) -> None:
    schedule = HAND_MADE[name]()
    if takes(target, schedule.demand.collective):
        require_right(lower(schedule, target), schedule)


@settings(unhurried, max_examples=40)
@given(wild_schedules(), st.sampled_from(OTHERS), st.sampled_from([None, "inplace"]), st.integers(1, 2))
def test_any_schedule(schedule: Schedule, target: str, mode: str | None, instances: int) -> None:
    if takes(target, schedule.demand.collective, mode):
        require_right(lower(schedule, target, mode=mode, instances=instances), schedule, slots=(1,))


def test_msccls_modes() -> None:
    schedule = everyone_exchanges()
    assert (lower(schedule, "msccl").inplace, lower(schedule, "msccl").outofplace) == (False, True)
    with pytest.raises(InputError, match="target msccl has a file for each mode; use mode inplace or outofplace"):
        lower(schedule, "msccl", mode="both")
    with pytest.raises(Refused, match="msccl never runs alltoall in place; use mode outofplace"):
        lower(schedule, "msccl", mode="inplace")


def test_msccl_broadcasts_across_hosts_with_ll() -> None:
    across, within = (
        greedy(Problem(load("dgx-a100", hosts=hosts).topology, "broadcast", 1e8), nchunks=2) for hosts in (2, 1)
    )
    assert (lower(across, "msccl").protocol, lower(across, "executor").protocol) == ("LL", "Simple")
    assert lower(within, "msccl").protocol == "Simple"
    assert lower(across, "msccl", protocol="Simple").protocol == "Simple"  # as told


def test_msccls_scratch_bounds_max_bytes() -> None:
    relayed, direct = lower(alltoall_on_a_line(), "msccl"), lower(everyone_exchanges(), "msccl")
    scratch = max(gpu.scratch_chunks for gpu in relayed.gpus)
    assert 0 < relayed.max_bytes * scratch / relayed.nchunks <= 1.001 * 2**30
    assert direct.max_bytes == 2**40 + 1  # below it: 2^40 is taken
    large = by_hand(load("line-3").topology, demand_for("gather", 3, 1e10), [(2, 2, 1), (2, 1, 0), (1, 1, 0)])
    assert lower(replace(large, demand=replace(large.demand, collective="gather")), "executor").max_bytes == 2**40


def test_rccl_reduces_in_one_threadblock_per_chunk() -> None:
    """No sum is handed from threadblock to threadblock before it is complete, or goes on its way."""
    program = lower(tree_allreduce(), "rccl")
    for gpu in program.gpus:
        home: dict[tuple[str, int], int] = {}
        for tb, threadblock in enumerate(gpu.threadblocks):
            for step in threadblock.steps:
                if step.type == "re":
                    assert home.setdefault((step.dstbuf, step.dstoff), tb) == tb
    assert not any(step.type == "rrc" for _, _, _, step in program.steps())


def test_rccl_hands_nothing_over_in_ll_scratch() -> None:
    assert lower(alltoall_on_a_line(), "rccl").protocol == "Simple"
    with pytest.raises(Refused, match=r"does not fence .* scratch under LL, .* use protocol Simple"):
        lower(alltoall_on_a_line(), "rccl", protocol="LL")
    assert lower(ring(), "rccl", protocol="LL").protocol == "LL"  # through the output only


def test_sends_and_receives_share_threadblocks_where_there_are_too_many() -> None:
    """40 peers, and rccl takes 64 threadblocks: those that send to a peer receive from it too."""
    schedule = greedy(Problem(load("full-40").topology, "alltoall", 1e6))
    program = lower(schedule, "rccl", protocol="Simple")
    for gpu in program.gpus:
        assert len(gpu.threadblocks) <= 64
        assert Counter((tb.send >= 0, tb.recv >= 0) for tb in gpu.threadblocks)[True, True] == 39
    require_right(program, schedule, slots=(1,))


def test_what_fits_no_threadblocks_is_refused() -> None:
    schedule = greedy(Problem(load("full-66").topology, "alltoall", 1e6))
    with pytest.raises(Refused, match="threadblocks and target rccl takes 64"):
        lower(schedule, "rccl", protocol="Simple")
    assert check(lower(schedule, "msccl", protocol="Simple", spread=1)).ok


@pytest.mark.parametrize("target", [*TARGETS, None])
def test_command(target: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ring(4).write(tmp_path / "schedule.json")
    option = ["--target", target] if target else []
    with pytest.raises(SystemExit) as stop:
        main(["lower", str(tmp_path / "schedule.json"), "-o", str(tmp_path / "a.xml"), *option, "--json"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["target"] == (target or "executor")
    with pytest.raises(SystemExit) as stop:
        main(["check", str(tmp_path / "a.xml"), *option])
    assert stop.value.code == 0
