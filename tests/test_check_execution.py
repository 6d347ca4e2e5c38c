"""The checker against execution over threads: random programs, right ones and broken ones, with 1, 2 and 8 slots.

What passes computes the right data in every order that was tried; what is said to hang with so many slots stalls with
them and with no more; and what is said to end with wrong data does. (A race may go well.)
"""

from __future__ import annotations

from random import Random

from correct_programs import edit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import execute
from schedules_by_hand import alltoall_on_a_line, ring, tree_allreduce
from strategies_lower import wild_schedules

from teccl_msccl.program.check import check
from teccl_msccl.program.lower import Lowering
from teccl_msccl.program.placement import MODES
from teccl_msccl.program.program import BUFFERS, Program, Step
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.program.tune import Choice
from teccl_msccl.runtime.world import Stall
from teccl_msccl.schedule.schedule import Schedule

#: Findings that execution may show: it hangs, or its data are wrong. Of a race it may be right, or not.
SHOWN = {"deadlock", "credits", "output", "uninitialised", "overlap"}


def broken(program: Program, random: Random) -> Program:
    """One step of the program changed: moved, of another place, without its wait, or with another."""
    places = [(rank, tb) for rank, gpu in enumerate(program.gpus) for tb, block in enumerate(gpu.threadblocks)
              if block.steps]  # fmt: skip
    rank, tb = random.choice(places)

    def change(steps: list[Step]) -> None:
        at = random.randrange(len(steps))
        match random.choice(("swap", "source", "target", "buffer", "wait", "later")):
            case "swap" if at:
                steps[at - 1 : at + 1] = reversed(steps[at - 1 : at + 1])
            case "source":
                steps[at] = steps[at]._replace(srcoff=max(0, steps[at].srcoff + random.choice((-1, 1))))
            case "target":
                steps[at] = steps[at]._replace(dstoff=max(0, steps[at].dstoff + random.choice((-1, 1))))
            case "buffer":
                steps[at] = steps[at]._replace(srcbuf=random.choice(BUFFERS))
            case "wait" if steps[at].type != "nop" and not (at and steps[at - 1].type == "nop"):
                steps[at] = steps[at]._replace(depid=-1, deps=-1)

            case "later" if steps[at].type != "nop" and flagged:
                other, number = random.choice(flagged)
                steps[at] = steps[at]._replace(depid=other, deps=number)

    blocks = program.gpus[rank].threadblocks
    flagged = [(other, number) for other, block in enumerate(blocks) for number, step in enumerate(block.steps)
               if step.hasdep and other != tb]  # fmt: skip
    return edit(program, rank, tb, change)


def stalls(program: Program, root: int | None, slots: int, seed: int) -> tuple[bool, int]:
    """Whether the execution stalls; and else how many elements are wrong."""
    try:
        rows = execute(program, root, slots=slots, seed=seed, workers=1 + seed % 3, timeout=0.25)
    except Stall:
        return True, 0
    return False, sum(row.wrong + row.out_of_bounds for row in rows)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    schedule=wild_schedules(),
    mode=st.sampled_from(MODES),
    choice=st.builds(Choice, st.just("LL"), merged=st.booleans(), fused=st.booleans()),
    faults=st.integers(0, 2),
    seed=st.integers(0, 2**16),
)
def test_verdicts_come_true(schedule: Schedule, mode: str, choice: Choice, faults: int, seed: int) -> None:
    lowering = Lowering(schedule, TARGETS["executor"], frozenset({mode}), "wild", merged=choice.merged)
    program, random = lowering.program(choice), Random(seed)
    for _ in range(faults):
        program = broken(program, random)
    root = schedule.demand.root
    verdict = check(program, root=root)
    errors = {finding.code for finding in verdict.findings if finding.level == "error"}
    if not errors <= SHOWN:
        return
    for slots in (1, 2, 8):
        hangs = verdict.min_credits is None or verdict.min_credits > slots
        stalled, wrong = stalls(program, root, slots, seed + slots)
        assert stalled == hangs, (slots, verdict)
        if not hangs and not errors & {"deadlock", "credits"}:
            assert wrong or "output" not in errors, (slots, verdict)
            assert not wrong or errors, (slots, wrong)


def test_random_faults_are_of_every_kind() -> None:
    seen = set()
    for make in (ring, alltoall_on_a_line, tree_allreduce):
        program = Lowering(make(), TARGETS["executor"], frozenset({"outofplace"}), "x").program(Choice("LL"))
        for number in range(150):
            verdict = check(broken(program, Random(number)))
            seen |= {finding.code for finding in verdict.findings if finding.level == "error"}
    assert seen >= {"deadlock", "race", "output", "uninitialised"}
