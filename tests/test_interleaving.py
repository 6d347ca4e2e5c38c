"""Threadblocks that send and receive: each step at its moment, and no deadlock with one credit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from lowered import greedy, require_right
from schedules_by_hand import alltoall_on_a_line, by_hand, everyone_exchanges, ring
from strategies_lower import wild_schedules

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.errors import Refused
from teccl_msccl.program.channels import most_threadblocks
from teccl_msccl.program.lower import Lowering
from teccl_msccl.program.pacing import PACES
from teccl_msccl.program.simulate import simulate
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.program.tune import Choice
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load


def crowded(schedule: Schedule, merged: bool = False) -> Lowering:
    """For a target that has a threadblock too few for sends and receives to be apart."""
    limits, modes = TARGETS["executor"], frozenset({"outofplace"})
    fitter = Lowering(schedule, limits, modes, "apart", merged).fitter
    ones = {transfer.connection: 1 for transfer in fitter.transfers}
    apart = most_threadblocks(ones, paired=False) + fitter.locals
    return Lowering(schedule, replace(limits, max_threadblocks=apart - 1), modes, "crowded", merged)


@pytest.mark.parametrize("collective", ["alltoall", "reduce_scatter", "allgather"])
def test_all_pairs_exchange_at_once(collective: str) -> None:
    """A latency each: were a receive to come before a send, it would take two."""
    schedule = greedy(Problem(load("full-8").topology, collective, 1e3))
    program = crowded(schedule).program(Choice("Simple"))
    assert all(tb.send == tb.recv for gpu in program.gpus for tb in gpu.threadblocks)
    timing = simulate(program, schedule.topology, 1e3, neutral=True)
    assert timing.finish_us <= schedule.finish_us * 1.01
    require_right(program, schedule, slots=(1,))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(wild_schedules(), st.sampled_from(PACES), st.booleans())
def test_any_schedule_with_one_credit(schedule: Schedule, pace: str, merged: bool) -> None:
    try:
        program = crowded(schedule, merged).program(Choice("Simple", pace=pace, merged=merged))
    except Refused:  # nobody has a peer both ways
        reject()
    require_right(program, schedule, slots=(1,))


@pytest.mark.parametrize("schedule", [everyone_exchanges(5), alltoall_on_a_line(6), ring(6)])
def test_by_hand(schedule: Schedule) -> None:
    require_right(crowded(schedule).program(Choice("LL")), schedule, slots=(1,))


def test_steps_of_several_chunks_do_not_wait_for_each_other() -> None:
    """Three chunks each way in a step: one that is sent first does not end before they are received."""
    hops = [(3, 1, 0), (0, 0, 1), (5, 1, 0), (2, 0, 1), (1, 0, 1), (4, 1, 0)]
    schedule = by_hand(load("full-2").topology, demand_for("allgather", 2, 1.0, 3), hops)
    program = crowded(schedule, merged=True).program(Choice("Simple", merged=True))
    assert {step.cnt for _, _, _, step in program.steps()} == {3}
    require_right(program, schedule, slots=(1,))
