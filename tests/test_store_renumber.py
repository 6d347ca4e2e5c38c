"""Renumbered programs compute the same collective, with their ranks called otherwise."""

from __future__ import annotations

import hand_made
import pytest
from lowered import execute

from teccl_msccl.errors import Refused
from teccl_msccl.program.check import check
from teccl_msccl.program.renumber import renumbered

PERMUTATION = (2, 0, 3, 1)


@pytest.mark.parametrize("collective", [name for name in hand_made.COLLECTIVES if name != "alltoall"])
def test_direct_programs(collective) -> None:
    program = renumbered(hand_made.direct(collective, 4, root=2), PERMUTATION)
    root = PERMUTATION.index(2) if collective in hand_made.ROOTED else None
    verdict = check(program, root=root)
    assert verdict.ok, verdict.findings
    assert sum(row.wrong + row.out_of_bounds for row in execute(program, root)) == 0


def test_back_again() -> None:
    program = hand_made.ring("allgather", 4)
    moved = renumbered(program, PERMUTATION)
    assert moved != program
    assert renumbered(moved, [PERMUTATION.index(rank) for rank in range(4)]) == program


def test_shares_copied_all_at_once_are_refused() -> None:
    with pytest.raises(Refused, match="shares of ranks 0 to 3 at once"):
        renumbered(hand_made.direct("alltoall", 4), PERMUTATION)


def test_shares_that_are_no_neighbours_any_more_are_refused() -> None:
    plan = hand_made.Plan(4)
    for rank in range(4):
        plan.add(rank, "cpy", ("s", 0), ("o", 0), 4)
    program = plan.program("allgather", 4, scratch=4)
    with pytest.raises(Refused, match="shares of ranks"):
        renumbered(program, PERMUTATION)
    with pytest.raises(Refused, match="does not number"):
        renumbered(program, (0, 0, 1, 2))
