"""The choice between schedules: the program's time counts, not the schedule's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lowered import greedy

from teccl_msccl.errors import Refused
from teccl_msccl.program.check import check
from teccl_msccl.program.fastest import fastest
from teccl_msccl.program.lower import lower
from teccl_msccl.program.program import Program
from teccl_msccl.program.simulate import simulate
from teccl_msccl.program.tune import Tuning
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis import incumbent as incumbent_module
from teccl_msccl.synthesis.incumbent import NEARBY, Incumbent
from teccl_msccl.synthesis.portfolio import run
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load


def narrow(schedule: Schedule) -> Program:
    return lower(schedule, instances=1, spread=1)


def finish_us(program: Program, schedule: Schedule) -> float:
    return simulate(program, schedule.topology, schedule.demand.size_bytes).finish_us


@pytest.fixture(scope="module")
def deceptive() -> tuple[Schedule, Schedule]:
    """A schedule that claims to be fast, of whole chunks on threadblocks slower than the links, and one of small
    chunks that claims less and keeps it better."""
    topology = replace(load("ring-4").topology, threadblock_GBps=25.0)
    problem = Problem(topology, "allgather", 8e6)
    coarse, fine = greedy(problem, 1), greedy(problem, 8)
    return replace(coarse, finish_us=0.99 * fine.finish_us), fine


def test_the_program_decides(deceptive: tuple[Schedule, Schedule]) -> None:
    coarse, fine = deceptive
    assert coarse.finish_us < fine.finish_us
    assert finish_us(narrow(coarse), coarse) > finish_us(narrow(fine), fine)
    schedule, program = fastest((coarse, fine), narrow)
    assert schedule is fine and program == narrow(fine)


def test_the_order_does_not_matter(deceptive: tuple[Schedule, Schedule]) -> None:
    assert fastest(deceptive[::-1], narrow)[0] is deceptive[1]


def test_out_of_time_there_is_one_program(deceptive: tuple[Schedule, Schedule]) -> None:
    built: list[Schedule] = []
    fastest(deceptive, lambda schedule: built.append(schedule) or narrow(schedule), seconds=0)
    assert built == [deceptive[0]]


def test_a_schedule_slower_than_the_best_program_is_not_lowered(deceptive: tuple[Schedule, Schedule]) -> None:
    coarse, fine = deceptive
    hopeless = replace(fine, finish_us=1e6)
    assert fastest((coarse, hopeless), narrow)[0] is coarse


def test_an_interruption_keeps_the_best_program(
    deceptive: tuple[Schedule, Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of the tuning of the first schedule, of the second, and before there is anything."""
    coarse, fine = deceptive

    def interrupt(*anything: object) -> None:
        raise KeyboardInterrupt

    def second(schedule: Schedule) -> Program:
        if schedule is fine:
            raise KeyboardInterrupt
        return narrow(schedule)

    assert fastest(deceptive, second)[0] is coarse
    with pytest.raises(KeyboardInterrupt):
        fastest((fine,), second)
    monkeypatch.setattr(Tuning, "_multiply", interrupt)
    built: list[Schedule] = []
    schedule, program = fastest(deceptive, lambda each: built.append(each) or lower(each))
    assert schedule is coarse and built == [coarse]
    assert check(program).ok


def test_what_does_not_fit_is_passed_over(deceptive: tuple[Schedule, Schedule]) -> None:
    coarse, fine = deceptive

    def refuse(schedule: Schedule) -> Program:
        if schedule is fine:
            raise Refused("too large")
        return narrow(schedule)

    assert fastest(deceptive, refuse)[0] is coarse
    with pytest.raises(Refused, match="too large"):
        fastest((fine,), refuse)


def test_candidates_are_the_best_of_their_chunks() -> None:
    """The chosen schedule comes first; what is much slower, or slower with as many chunks, is no candidate."""
    problem = Problem(load("ring-4").topology, "allgather", 3.2e7)
    incumbent = Incumbent(problem, 0.0, lambda progress: None)
    found = [greedy(problem, chunks) for chunks in (1, 2, 4)]
    best_us = min(schedule.finish_us for schedule in found)
    for factor, schedule in zip((1 + NEARBY / 2, 1.0, 1 + 2 * NEARBY), found, strict=True):
        incumbent.offer_whole(replace(schedule, finish_us=best_us * factor))
    incumbent.offer_whole(replace(found[1], finish_us=best_us * 1.01))
    (_, first), *others = incumbent.candidates()
    assert first == incumbent.chosen()[1] and first.demand.nchunks == 2 and first.finish_us == best_us
    assert [schedule.demand.nchunks for _, schedule in others] == [1]


def test_of_each_octave_of_chunk_counts_there_is_one_candidate() -> None:
    """Where fine schedules are the fastest, coarse ones that files may hold are still among them."""
    problem = Problem(load("ring-4").topology, "allgather", 3.2e7)
    incumbent = Incumbent(problem, 0.0, lambda progress: None)
    counts = (48, 32, 24, 16, 12, 8, 6)
    found = [greedy(problem, chunks) for chunks in counts]
    for later, schedule in enumerate(found):
        incumbent.offer_whole(replace(schedule, finish_us=100.0 * (1 + 0.005 * later)))
    assert [schedule.demand.nchunks for _, schedule in incumbent.candidates()] == [48, 24, 12, 6]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_where_peers_are_many_the_last_candidate_has_few(order: tuple[int, int], monkeypatch) -> None:
    problem = Problem(load("star-6").topology, "allgather", 1e3)
    schedules = [run(problem, method=method, time_limit=1).schedule for method in ("direct", "ring")]
    monkeypatch.setattr(incumbent_module, "MOST_PEERS", 4)
    incumbent = Incumbent(problem, 60, lambda progress: None)
    for which in order:
        incumbent.offer(0, schedules[which])
    assert [schedule for _, schedule in incumbent.candidates()] == schedules
    assert schedules[1].finish_us > (1 + NEARBY) * schedules[0].finish_us
