"""Refusals name what fits, and it does."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace

import pytest
from lowered import greedy, require_right
from schedules_by_hand import alltoall_on_a_line, by_hand

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.errors import Refused
from teccl_msccl.program import nearest, targets
from teccl_msccl.program.lower import lower
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load

lower_module = importlib.import_module("teccl_msccl.program.lower")


@pytest.fixture(autouse=True)
def narrow_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets whose limits are reached soon."""
    executor = replace(TARGETS["executor"], max_steps=8, max_channels=4)
    rccl = replace(TARGETS["rccl"], max_threadblocks=8)
    small = dict(TARGETS) | {"executor": executor, "rccl": rccl}
    for module in (targets, lower_module, nearest):
        monkeypatch.setattr(module, "TARGETS", small)


def refusal(schedule: Schedule, **asked: object) -> str:
    with pytest.raises(Refused) as refused:
        lower(schedule, **asked)
    return str(refused.value)


def down_a_line(nchunks: int) -> Schedule:
    """Every chunk is passed on, so none go together."""
    hops = [(chunk, hop, hop + 1) for chunk in range(nchunks) for hop in (0, 1)]
    return by_hand(load("line-3").topology, demand_for("broadcast", 3, 1e6, nchunks), hops)


def test_fewer_instances() -> None:
    """4 channels of 8 steps hold 32 parts."""
    schedule = down_a_line(7)
    text = refusal(schedule, instances=8, protocol="LL", spread=1)
    assert re.search(r"; it fits with --instances 4$", text), text
    require_right(lower(schedule, instances=4, protocol="LL", spread=1), schedule, slots=(1,))


def test_another_protocol() -> None:
    text = refusal(alltoall_on_a_line(), target="rccl", protocol="LL")
    assert text.endswith("; it fits with --protocol auto")
    assert lower(alltoall_on_a_line(), "rccl").protocol == "Simple"


def test_another_target() -> None:
    schedule = greedy(Problem(load("full-10").topology, "alltoall", 1e6))
    text = refusal(schedule, target="rccl", protocol="Simple", spread=1, instances=1)
    assert re.search(r"takes 8; .*; it fits with --target executor$", text), text


def test_fewer_chunks_by_proportion() -> None:
    schedule = down_a_line(40)
    assert nearest.chunks_that_fit(schedule, "executor") == 32
    text = refusal(schedule, spread=1, instances=1, protocol="LL")
    assert text.endswith("; it fits with --target msccl or by proportion with --chunks 32"), text
    assert nearest.chunks_that_fit(down_a_line(32), "executor") is None
    assert nearest.chunks_that_fit(down_a_line(2100), "msccl") == 2045  # rank 1 sends and receives each
