"""The choice between a schedule's programs: near the schedule's time, the time from the call decides."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from lowered import greedy

from teccl_msccl.program import tune
from teccl_msccl.program.check import check
from teccl_msccl.program.lower import lower
from teccl_msccl.program.program import Program
from teccl_msccl.program.simulate import simulate
from teccl_msccl.program.tune import Choice, Tuning
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load


@pytest.mark.parametrize(("collective", "most"), [("allgather", 5.2), ("alltoall", 5.2)])
def test_programs_are_chosen_by_the_time_from_the_call(collective: str, most: float) -> None:
    """Parts small enough for LL's slots have its latency: chosen by the schedule's links alone, 6.6 and 7.5."""
    schedule = greedy(Problem(load("a100x4").topology, collective, 5e5))
    program = lower(schedule)
    timing = simulate(program, schedule.topology, 5e5)
    assert timing.launch_us + timing.finish_us <= most * schedule.finish_us
    assert check(program).ok


@pytest.mark.parametrize(
    ("plain", "paced", "chosen"),
    [
        ((1.02, 9.0), (1.00, 10.0), "none"),  # both keep the schedule's time: the faster from the call
        ((1.02, 10.0), (1.03, 9.0), "links"),
        ((1.20, 9.8), (1.06, 10.0), "links"),  # much of the schedule's time for little from the call
        ((1.06, 20.0), (1.10, 10.0), "links"),  # a little of it for much
    ],
)
def test_near_the_schedule_the_time_from_the_call_decides(
    plain: tuple[float, float], paced: tuple[float, float], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two programs with the times (the schedule's links', from the call) as shares of the schedule's."""
    schedule = greedy(Problem(load("star-4").topology, "allgather", 1e6))
    programs = {
        pace: lower(schedule, "executor", protocol="LL", spread=1, instances=1, name=pace) for pace in ("none", "links")
    }
    shares = {"none": plain, "links": paced}

    def build(choice: Choice) -> Program:
        return programs[choice.pace]

    def simulated(program: Program, schedule: Schedule, neutral: bool) -> SimpleNamespace:
        return SimpleNamespace(finish_us=shares[program.name][not neutral] * schedule.finish_us, launch_us=0.0)

    monkeypatch.setattr(tune, "_simulated", simulated)
    monkeypatch.setattr(tune, "_steps", lambda program: 0)
    program = Tuning(schedule, build).run(("LL",), ("none", "links"), 1, 1, fuse=False, unroll=False)
    assert program.name == chosen


@pytest.mark.parametrize(("size", "tried"), [(4e3, {"Simple", "LL"}), (1e6, {"Simple"})])
def test_a_protocol_that_comes_to_nothing_costs_no_tries(
    size: float, tried: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LL's lines carry half as much: at 1 MB the busiest link alone takes longer than the whole program under Simple,
    though an eighth of a chunk fits LL's slots."""
    schedule = greedy(Problem(load("star-4").topology, "allgather", size))
    protocols = set()
    build = Tuning._try

    def counting(self: Tuning, choice: Choice) -> object:
        protocols.add(choice.protocol)
        return build(self, choice)

    monkeypatch.setattr(Tuning, "_try", counting)
    lower(schedule)
    assert protocols == tried
