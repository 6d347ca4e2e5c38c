"""MSCCL++ plans from the command line, and their way into MSCCL++'s Python API."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from teccl_msccl.cli import main
from teccl_msccl.errors import InputError
from teccl_msccl.program import lower_plan
from teccl_msccl.program.check_plan import check_plan
from teccl_msccl.program.mscclpp import execution_plan
from teccl_msccl.program.targets import MSCCLPP
from teccl_msccl.runtime.mscclpp import register
from teccl_msccl.synthesis.portfolio import synthesize
from teccl_msccl.topology.model import Topology


def run(*argv: Any) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in argv])
    return int(stop.value.code or 0)


QUICK = ("--method", "greedy", "--time-limit", 0, "--target", "mscclpp")


def test_a_plan_is_written_proved_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("synth", "a100x4x2", "allgather", "--size", "8MB", *QUICK, "--schedule", "s.json", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["target"], answer["file"], answer["min_credits"]) == ("mscclpp", "allgather.json", None)
    plan = json.loads(Path("allgather.json").read_text())
    assert {c["channel_type"] for gpu in plan["gpus"] for c in gpu["channels"]} == {"memory", "port"}
    assert answer["steps_max"] == max(len(tb["ops"]) for gpu in plan["gpus"] for tb in gpu["threadblocks"]) <= 64
    assert run("check", "allgather.json", "--json") == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["ok"] and verdict["target"] == "mscclpp"
    assert verdict["proofs"] == dict.fromkeys(("limits", "progress", "data", "races"), "proved")
    assert run("lower", "s.json", "-o", "in.json", "--target", "mscclpp", "--mode", "inplace") == 0
    assert json.loads(Path("in.json").read_text())["inplace"] is True
    capsys.readouterr()
    plan["gpus"][0]["threadblocks"][0]["ops"].pop(0)
    Path("bad.json").write_text(json.dumps(plan))
    assert run("check", "bad.json") == 1
    assert "NOT OK for mscclpp" in capsys.readouterr().out.replace("\n", " ")
    assert run("check", "allgather.json", "--target", "rccl") == 2
    assert run("lower", "s.json", "-o", "x.json", "--target", "mscclpp", "--mode", "both") == 2
    assert run("lower", "s.json", "-o", "x.json", "--target", "mscclpp", "--protocol", "LL128") == 1
    assert run("lower", "s.json", "-o", "x.json", "--target", "mscclpp", "--protocol", "LL") == 0
    assert json.loads(Path("x.json").read_text())["protocol"] == "LL" and run("check", "x.json") == 0
    assert run("synth", "ring-4", "gather", "--size", "8MB", *QUICK) == 0
    assert run("check", "gather.json") == 0
    assert run("synth", "ring-4", "gather", "--size", "8MB", *QUICK, "--mode", "inplace") == 0
    assert run("check", "gather.json") == 0
    assert run("check", "s.json") == 2
    assert "s.json: is a schedule, not a program" in capsys.readouterr().err


def test_more_chunks_than_a_plan_holds_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(MSCCLPP, max_threadblocks=4)
    monkeypatch.setattr(lower_plan, "execution_plan", partial(execution_plan, limits=few))
    schedule = synthesize(Topology.load("full-3"), "allreduce", 64e3, method="greedy", nchunks=24, time_limit=0)
    _, plan = lower_plan.lower_plan(schedule, protocol="Simple")
    assert plan.threadblocks_max <= 4 and check_plan(plan.value).ok
    assert all(gpu["input_chunks"] <= 3 * 24 // 2 for gpu in plan.value["gpus"])


def test_the_time_told_is_the_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not that of the program that it is made of, which has slots and another latency."""
    schedule, plan = tmp_path / "s.json", tmp_path / "plan.json"
    synth = ("synth", "ring-4", "allgather", "--size", "8MB", *QUICK, "-o", plan, "--schedule", schedule)
    for command in (synth, ("lower", schedule, "-o", plan, "--target", "mscclpp")):
        assert run(*command, "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert run("simulate", plan, "--topology", "ring-4", "--size", "8MB", "--json") == 0
        simulated = json.loads(capsys.readouterr().out)
        assert told["program_finish_us"] == pytest.approx(simulated["finish_us"])
        assert told["launch_us"] == simulated["launch_us"]


def test_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in of the few names that MSCCL++ has for it."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"name": "mine", "collective": "allgather", "gpus": [{}, {}]}))
    monkeypatch.setitem(sys.modules, "mscclpp", None)
    with pytest.raises(InputError, match="is not here"):
        register([path], rank=0, world_size=2, ranks_per_node=2)
    added: list[Any] = []
    fake, core = ModuleType("mscclpp"), ModuleType("mscclpp._mscclpp")

    class Algorithm(SimpleNamespace):
        Constraint = SimpleNamespace

    fake.Algorithm = Algorithm  # type: ignore[attr-defined]
    fake.AlgorithmCollectionBuilder = lambda: SimpleNamespace(add_algorithm_builder=added.append)  # type: ignore[attr-defined]
    core.CppExecutionPlan = lambda file, rank: (file, rank)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mscclpp", fake)
    monkeypatch.setitem(sys.modules, "mscclpp._mscclpp", core)
    kept = register([path], rank=1, world_size=2, ranks_per_node=1, tags={"default": 1})
    assert kept == added and vars(kept[0]) == {
        "id": "mine:plan.json", "execution_plan": (str(path), 1),
        "constraint": SimpleNamespace(world_size=2, n_ranks_per_node=1), "tags": {"default": 1},
    }  # fmt: skip
    with pytest.raises(InputError, match="for 2 ranks, not 4"):
        register([path], rank=0, world_size=4, ranks_per_node=4)
    path.write_text("[]")
    with pytest.raises(InputError, match="no MSCCL"):
        register([path], rank=0, world_size=2, ranks_per_node=2)


def test_what_a_file_is_its_content_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    synth = ("synth", "ring-4", "allgather", "--size", "1MB", *QUICK)
    assert run(*synth, "-o", "plan.txt", "--schedule", "schedule.txt") == 0
    assert run("check", "plan.txt") == 0
    simulate = ("simulate", "--topology", "ring-4", "--size", "1MB")
    assert run(*simulate, "plan.txt") == 0
    assert run("report", "plan.txt", "--topology", "ring-4", "--quick") == 0
    capsys.readouterr()
    assert run("run", "plan.txt") == 2
    assert "plan.txt: run executes MSCCL XML" in capsys.readouterr().err
    for command in (("check",), simulate, ("run",)):
        assert run(*command, "schedule.txt") == 2
        assert "schedule.txt: is a schedule, not a program" in capsys.readouterr().err
    Path("null.json").write_text("null")
    assert run("check", "null.json") == 2
    assert "null.json: a plan is an object" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["executor", "mscclpp"])
def test_errors_name_the_file(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("synth", "ring-4", "allgather", "--size", "1MB", *QUICK, "--target", target, "-o", "mine") == 0
    capsys.readouterr()
    for command in (("simulate", "--size", "1MB"), ("report", "--quick")):
        assert run(*command, "mine", "--topology", "ring-3") == 2
        assert "error: mine: is for 4 ranks, but ring-3 has 3 GPUs" in capsys.readouterr().err
