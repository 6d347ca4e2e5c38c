"""Fused steps: what becomes one, that it is right with the credits that the protocol has, and that it costs no time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import execute, greedy, require_right
from schedules_by_hand import HAND_MADE, by_hand
from strategies_lower import wild_schedules

from teccl_msccl.collective.demand import Chunk, Demand, demand_for
from teccl_msccl.program.check import check
from teccl_msccl.program.lower import Lowering, lower
from teccl_msccl.program.placement import MODES
from teccl_msccl.program.program import Program
from teccl_msccl.program.simulate import simulate
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.program.tune import Choice
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load

FUSED = {"rcs", "rrs", "rrcs"}


def one_way_ring(collective: str, n: int) -> Schedule:
    """The textbook's rings: each chunk goes round, reduced on the first way where it is."""
    reductions = [(c, (c + hop) % n, (c + hop + 1) % n) for hop in range(n - 1) for c in range(n)]
    demand = demand_for(collective, n, 1e6, n if collective == "allreduce" else 1)
    topology = load(f"ring-{n}").topology
    match collective:
        case "allgather":
            return by_hand(topology, demand, reductions)
        case "reduce_scatter":  # chunk c ends at rank c
            return by_hand(topology, demand, [(c, (a + 1) % n, (b + 1) % n) for c, a, b in reductions])
    copies = [(c, (a - 1) % n, (b - 1) % n) for c, a, b in reductions]  # from where chunk c is complete
    return by_hand(topology, demand, reductions + copies, copies=len(copies))


def types(program: Program) -> Counter[str]:
    return Counter(step.type for _, _, _, step in program.steps())


@pytest.mark.parametrize("n", [3, 5, 8])
def test_rings_become_the_textbooks(n: int) -> None:
    """n − 2 steps pass on what comes, between the first send and the last receive; in one threadblock, without
    waits."""
    expected = {
        "allgather": {"s": n, "rcs": n * (n - 2), "r": n},
        "reduce_scatter": {"s": n, "rrs": n * (n - 2), "rrc": n},
        "allreduce": {"s": n, "rrs": n * (n - 2), "rrcs": n, "rcs": n * (n - 2), "r": n},
    }
    for collective, steps in expected.items():
        schedule = one_way_ring(collective, n)
        for target in ("executor", "msccl"):
            program = lower(schedule, target, mode="inplace", protocol="Simple", spread=1, instances=1)
            assert types(program) == Counter(steps)
            assert all(len(gpu.threadblocks) == 1 for gpu in program.gpus)
            assert not any(step.depid >= 0 for _, _, _, step in program.steps())
            assert not any(gpu.scratch_chunks for gpu in program.gpus) or collective == "reduce_scatter"
            require_right(program, schedule, slots=(2, 8))
        assert not FUSED & set(types(lower(schedule, "rccl")))
        assert not FUSED & set(types(lower(schedule, fuse=False)))


@pytest.mark.parametrize("name", HAND_MADE)
def test_no_time_is_lost(name: str) -> None:
    schedule = HAND_MADE[name]()
    fused, plain = lower(schedule), lower(schedule, fuse=False)
    for neutral in (False, True):
        times = [simulate(p, schedule.topology, schedule.demand.size_bytes, neutral=neutral).finish_us
                 for p in (fused, plain)]  # fmt: skip
        assert times[0] <= times[1] * (1 + 1e-9)
    require_right(fused, schedule)


def test_a_fused_program_that_hangs_is_not_taken() -> None:
    """Two chunks of everyone's, forwarded in order: with both in flight at once, a ring of rcs needs three credits,
    and Simple has two."""
    schedule = greedy(Problem(load("ring-8").topology, "allgather", 1e8), 2)
    forced = Lowering(schedule, TARGETS["executor"], frozenset(MODES), "forced").program(Choice("Simple", fused=True))
    verdict = check(forced)
    assert not verdict.ok and (verdict.min_credits or 3) > 2 and types(forced)["rcs"]
    require_right(lower(schedule, protocol="Simple", spread=1, instances=1), schedule, slots=(2,))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(wild_schedules(), st.sampled_from(["both", *MODES]), st.sampled_from([1, 2]))
def test_any_schedule_fused_by_force(schedule: Schedule, mode: str, spread: int) -> None:
    """Whatever fusing makes of it, only credits may be too few: nothing races, and the data are right."""
    modes = frozenset(MODES if mode == "both" else (mode,))
    program = Lowering(schedule, TARGETS["executor"], modes, "forced").program(Choice("LL", spread=spread, fused=True))
    verdict = check(program, root=schedule.demand.root)
    assert {found.code for found in verdict.findings} <= {"deadlock", "credits", "co-resident"}, verdict.findings
    if verdict.ok:
        assert verdict.min_credits is not None
        rows = execute(program, schedule.demand.root, slots=verdict.min_credits)
        assert sum(row.wrong + row.out_of_bounds for row in rows) == 0


def test_a_sum_that_others_read_is_kept() -> None:
    """Rank 1 adds its share, passes the sum on to rank 2, and rank 2's sum comes back to all."""
    schedule = HAND_MADE["tree allreduce"]()
    program = Lowering(schedule, TARGETS["executor"], frozenset(MODES), "tree").program(Choice("LL", fused=True))
    kinds = types(program)
    assert kinds["rrs"] and kinds["rrcs"] and kinds["rcs"]
    broken = replace(program, gpus=tuple(replace(g, threadblocks=tuple(
        replace(tb, steps=tuple(s._replace(type="rrs") if s.type == "rrcs" else s for s in tb.steps))
        for tb in g.threadblocks)) for g in program.gpus))  # fmt: skip
    assert check(program).ok and not check(broken).ok


def test_a_sum_that_goes_two_ways_is_kept() -> None:
    """It is complete at rank 1, which does not want it: one send is fused, and the other reads what is kept."""
    demand = Demand("allreduce", 4, (Chunk(0, (0, 1), (2, 3), 1e5, reduce=True),), 1, 1e5)
    schedule = by_hand(load("full-4").topology, demand, [(0, 0, 1), (0, 1, 2), (0, 1, 3)], copies=2)
    program = Lowering(schedule, TARGETS["executor"], frozenset(MODES), "two").program(Choice("LL", fused=True))
    assert types(program) == {"s": 2, "rrcs": 1, "r": 2}
