"""Merged steps: neighbouring chunks that go together are one, whatever order they came in, and no time is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import require_right
from schedules_by_hand import HAND_MADE, by_hand
from strategies_lower import wild_schedules

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.errors import Refused
from teccl_msccl.program.check import check
from teccl_msccl.program.lower import Lowering, lower
from teccl_msccl.program.placement import MODES
from teccl_msccl.program.program import Program
from teccl_msccl.program.simulate import simulate
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.program.tune import Choice
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.topology.catalog import load


def direct(collective: str, n: int, nchunks: int) -> Schedule:
    """Every share goes straight to whoever wants it, its chunks in any order."""
    demand = demand_for(collective, n, 1e6, nchunks)
    hops = [(c.id, c.origin[0], rank) for c in demand.chunks for rank in c.want if rank != c.origin[0]]
    Random(nchunks).shuffle(hops)
    return by_hand(load(f"full-{n}").topology, demand, hops)


def counts(program: Program) -> Counter[int]:
    """Chunks that steps between ranks move."""
    return Counter(s.cnt for g in program.gpus for tb in g.threadblocks for s in tb.steps if s.type in ("s", "r"))


@pytest.mark.parametrize(
    ("nchunks", "count"), [(1, 1), (4, 4), (71, 71), (73, 1), (75, 25), (142, 71)]
)  # fmt: skip
def test_shares_go_in_as_few_steps_as_counts_allow(nchunks: int, count: int) -> None:
    """A step moves 71 chunks at most, and all steps of a threadblock equally many."""
    for collective in ("allgather", "alltoall", "scatter"):
        schedule = direct(collective, 3, nchunks)
        program = lower(schedule, mode="outofplace", protocol="Simple", spread=1)
        pairs = 2 if collective == "scatter" else 6
        assert counts(program) == {count: 2 * pairs * nchunks // count}
        require_right(program, schedule, slots=(1,))


def test_what_is_passed_on_chunk_by_chunk_is_not_merged() -> None:
    """A step ends when all its chunks are there: whoever passes on the first would have to wait for the last."""
    demand = demand_for("broadcast", 3, 1e6, 4)
    schedule = by_hand(load("line-3").topology, demand, [(c, hop, hop + 1) for c in range(4) for hop in (0, 1)])
    forced = Lowering(schedule, TARGETS["executor"], frozenset(MODES), "line", merged=True).program(Choice("LL"))
    assert set(counts(forced)) == {1}


@pytest.mark.parametrize("name", HAND_MADE)
def test_no_time_is_lost(name: str) -> None:
    schedule = HAND_MADE[name]()
    limits, modes = TARGETS["executor"], frozenset(MODES)
    plain = Lowering(schedule, limits, modes, name).program(Choice("Simple"))
    merged = Lowering(schedule, limits, modes, name, merged=True).program(Choice("Simple", merged=True))
    require_right(merged, schedule)
    size = schedule.demand.size_bytes
    chosen = lower(schedule, protocol="Simple", spread=1, instances=1)
    finish = [simulate(p, schedule.topology, size, neutral=True).finish_us for p in (chosen, plain, merged)]
    assert finish[0] <= min(finish[1:]) * (1 + 1e-9) or finish[0] <= schedule.finish_us * 1.01


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(wild_schedules(), st.sampled_from(list(TARGETS)), st.sampled_from([*MODES]), st.booleans(), st.integers(1, 2))
def test_any_schedule_merged_by_force(schedule: Schedule, target: str, mode: str, fused: bool, spread: int) -> None:
    limits = TARGETS[target]
    if schedule.demand.collective not in limits.collectives:
        return
    try:
        lowering = Lowering(schedule, limits, frozenset({mode}), "merged", merged=True)
        program = lowering.program(Choice("LL", merged=True, fused=fused and limits.fused_receives, spread=spread))
    except Refused:  # rccl's scratch under LL
        return
    program = replace(program, inplace=mode == "inplace", outofplace=mode == "outofplace")
    if not fused or check(program, root=schedule.demand.root).ok:  # fused by force, it may need more credits
        require_right(program, schedule, slots=(1, 8))


def test_what_is_too_long_chunk_by_chunk_fits_merged() -> None:
    """4,200 sends are more than a rank's view of a file holds."""
    demand = demand_for("scatter", 4, 1e6, 1400)
    hops = [(c, 0, c // 1400) for c in range(1400, 4 * 1400)]
    schedule = by_hand(load("full-4").topology, demand, hops)
    program = lower(schedule, protocol="Simple", spread=1)
    assert counts(program) == {70: 2 * 3 * 20}
    require_right(program, schedule, slots=(1,))
