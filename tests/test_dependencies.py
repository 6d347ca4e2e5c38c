"""The waits of a lowered program are the least that order it: none follows from the others, and each is needed."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from correct_programs import edit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedules_by_hand import HAND_MADE
from strategies_lower import wild_schedules

from teccl_msccl.errors import Refused
from teccl_msccl.program.check import check
from teccl_msccl.program.lower import Lowering
from teccl_msccl.program.pacing import PACES
from teccl_msccl.program.placement import MODES
from teccl_msccl.program.program import Program, Step, Threadblock
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.program.tune import Choice
from teccl_msccl.schedule.schedule import Schedule

At = tuple[int, int]  # threadblock, step


def waits_of(blocks: tuple[Threadblock, ...]) -> list[tuple[At, At]]:
    """(step that is waited for, step that waits); a nop's wait is that of the step after it."""
    found = []
    for tb, block in enumerate(blocks):
        for at, step in enumerate(block.steps):
            if step.depid >= 0:
                real = next(i for i in range(at, len(block.steps)) if block.steps[i].type != "nop")
                found.append(((step.depid, step.deps), (tb, real)))
    return found


def implied(blocks: tuple[Threadblock, ...], waits: list[tuple[At, At]]) -> list[tuple[At, At]]:
    """The waits that the threadblocks' order and the other waits imply, by searching all ways."""
    follow: dict[At, set[At]] = defaultdict(set)
    for tb, block in enumerate(blocks):
        real = [at for at, step in enumerate(block.steps) if step.type != "nop"]
        for earlier, later in pairwise(real):
            follow[tb, earlier].add((tb, later))
    for earlier, later in waits:
        follow[earlier].add(later)

    def reaches(start: At, goal: At) -> bool:
        seen, frontier = {start}, [each for each in follow[start] if each != goal]
        while frontier:
            here = frontier.pop()
            if here == goal:
                return True
            if here not in seen:
                seen.add(here)
                frontier += follow[here]
        return False

    return [wait for wait in waits if waits.count(wait) > 1 or reaches(*wait)]


def lowered(schedule: Schedule, target: str, choice: Choice) -> Program | None:
    limits = TARGETS[target]
    if schedule.demand.collective not in limits.collectives:
        return None
    modes = frozenset(MODES if limits.both_modes else ("outofplace",))
    try:
        return Lowering(schedule, limits, modes, "program").program(choice)
    except Refused:
        return None


CHOICES = st.builds(
    Choice, st.sampled_from(["Simple", "LL"]), st.sampled_from(PACES), st.just(1), st.just(1), st.sampled_from([1, 2]),
    st.booleans(),
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(wild_schedules(), st.sampled_from(list(TARGETS)), CHOICES)
def test_no_wait_follows_from_others(schedule: Schedule, target: str, choice: Choice) -> None:
    program = lowered(schedule, target, choice)
    for gpu in program.gpus if program else ():
        assert not implied(gpu.threadblocks, waits_of(gpu.threadblocks))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", HAND_MADE)
def test_without_any_wait_the_order_is_lost(name: str, fused: bool) -> None:
    """Where nothing but hazards asks for waits, the checker finds a race when one is left out (or an order that only
    messages through other ranks keep)."""
    program = lowered(HAND_MADE[name](), "executor", Choice("LL", fused=fused))
    assert program is not None
    root = check(program).root
    for rank, gpu in enumerate(program.gpus):
        for tb, block in enumerate(gpu.threadblocks):
            for at, step in enumerate(block.steps):
                if step.depid >= 0:
                    codes = {found.code for found in check(without(program, rank, tb, at), root=root).findings}
                    assert codes & {"race", "remote-order"}, (rank, tb, at)


def without(program: Program, rank: int, tb: int, at: int) -> Program:
    """The program without the wait of one step. Of a step behind nops it takes the last nop's, as loaders want."""

    def change(steps: list[Step]) -> None:
        if steps[at].type == "nop":
            steps[at] = steps[at - 1]._replace(hasdep=False) if at and steps[at - 1].type == "nop" else steps[at + 1]
            if steps[at].type != "nop":  # the only nop: it waits for what the next step waits for too
                steps[at] = Step("nop", depid=steps[at + 1].depid, deps=steps[at + 1].deps)
        elif at and steps[at - 1].type == "nop":
            steps[at] = steps[at]._replace(depid=steps[at - 1].depid, deps=steps[at - 1].deps)
        else:
            steps[at] = steps[at]._replace(depid=-1, deps=-1)

    return edit(program, rank, tb, change)
