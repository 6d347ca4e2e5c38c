"""The way of a chunk through a program, and faults that are injected on it."""

from __future__ import annotations

import hand_made
import pytest
from executed import RINGS, execute, with_step, wrong

from teccl_msccl.errors import InputError
from teccl_msccl.program.program import Program
from teccl_msccl.runtime.buffers import Layout
from teccl_msccl.runtime.path import path_to
from teccl_msccl.runtime.world import FAULTS, Stall, faults_named


def path(program: Program, rank: int, chunk: int, in_place: bool = False) -> list[str]:
    return [str(hop) for hop in path_to(program, rank, "o", chunk, in_place, Layout.of(program, "p"))]


def test_the_path_of_a_chunk_through_a_ring() -> None:
    assert path(hand_made.ring("allgather", 3), 2, 0) == [
        "rank 0 tb 1 step 0 (s): reads i[0], sends to rank 1",
        "rank 1 tb 1 step 1 (rcs): receives from rank 0, writes o[0], sends to rank 2",
        "rank 2 tb 1 step 2 (r): receives from rank 1, writes o[0]",
    ]


@pytest.mark.parametrize("in_place", [False, True])
def test_the_path_of_a_reduced_chunk_has_every_contribution(in_place: bool) -> None:
    hops = path(hand_made.direct("allreduce", 3), 1, 0, in_place)
    assert hops[-1] == "rank 1 tb 6 step 0 (r): receives from rank 0, writes o[0]"
    assert sum("(rrc)" in hop for hop in hops) == 2
    assert {hop.split()[1] for hop in hops} == {"0", "1", "2"}


def test_the_path_in_place_runs_through_the_shared_buffer() -> None:
    """Rank 1's chunk of an in-place alltoall was kept in scratch before it was sent."""
    hops = path(hand_made.direct("alltoall", 2), 0, 1, in_place=True)
    assert [hop.split("(")[1].split(")")[0] for hop in hops] == ["cpy", "s", "r"]
    assert hops[0].endswith("reads i[0], writes s[0]")


# -- injected faults ---------------------------------------------------------------------------------------------


def without_dependency(program: Program, rank: int, type: str) -> Program:
    """`program` whose `rank` does not wait before its steps of a type."""
    for r, tb, position, step in program.steps():
        if r == rank and step.type == type and step.depid >= 0:
            program = with_step(program, r, tb, position, depid=-1, deps=-1)
    return program


def overtaken() -> Program:
    """A broadcast in which rank 2 takes a wrong chunk first and the right one over it, in no stated order."""
    plan = hand_made.Plan(3)
    plan.add(0, "cpy")
    plan.add(0, "s", send=1)
    plan.add(1, "r", recv=0)
    plan.add(1, "s", send=2)
    plan.add(0, "s", send=2)
    plan.add(2, "r", recv=1)
    plan.add(2, "r", recv=0)
    return plan.program("broadcast", 1)


RACY = {
    "alltoall overwrites what it has not kept yet": without_dependency(hand_made.direct("alltoall", 3), 1, "r"),
    "reduce adds before the first summand is there": without_dependency(hand_made.staged_reduce(3), 0, "nop"),
}


@pytest.mark.parametrize("fault", ["shuffle", "delay", "adversarial"])
@pytest.mark.parametrize("name", RACY)
def test_a_race_shows_under_some_seed(name: str, fault: str) -> None:
    assert wrong(execute(RACY[name], (1200,), root=0, workers=1)) == 0  # in order it goes well
    found = [
        seed
        for seed in range(30)
        if wrong(execute(RACY[name], (1200,), root=0, workers=1, seed=seed, inject=frozenset({fault})))
    ]
    assert found


def test_connections_overtake_one_another() -> None:
    assert wrong(execute(overtaken(), (1200,), root=0, workers=1)) == 0
    inject = frozenset({"reorder"})
    assert any(wrong(execute(overtaken(), (1200,), root=0, workers=1, seed=seed, inject=inject)) for seed in range(30))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("collective", hand_made.COLLECTIVES)
def test_right_programs_survive_every_fault(collective: str, seed: int) -> None:
    direct = execute(hand_made.direct(collective, 3, k=2), (3000,), seed=seed, inject=frozenset(FAULTS), slot_bytes=300)
    assert wrong(direct) == 0
    if collective in RINGS:
        ring = execute(hand_made.ring(collective, 4), (3000,), seed=seed, inject=faults_named("all"), slot_bytes=300)
        assert wrong(ring) == 0


def test_faults_by_name() -> None:
    assert faults_named("all") == FAULTS.keys() - {"one-slot"} and faults_named("") == frozenset()
    with pytest.raises(InputError, match="unknown fault 'rain'; use shuffle, "):
        faults_named("delay,rain")
    with pytest.raises(Stall, match=r"\(rrs\) waits for a free slot to rank 1 on channel 0 \(1 in flight\)"):
        execute(hand_made.ring("allreduce", 3), timeout=0.3, inject=faults_named("one-slot"))
