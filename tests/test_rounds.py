"""Rounds of grouped messages, executed by hand: every place that is read must hold what the collective needs there."""

from __future__ import annotations

from dataclasses import replace

import hand_made
import pytest

from teccl_msccl import Topology, lower, synthesize
from teccl_msccl.errors import Refused
from teccl_msccl.program import rounds as module
from teccl_msccl.program.program import Program
from teccl_msccl.program.rounds import SHARED_INPUT, Place, Rounds, rounds_of

BEING_WRITTEN = "being written"
ROOT = 1


def one_place(program: Program, rank: int, place: Place, parts: int, in_place: bool) -> Place:
    """Where a place lies in memory: in place, input and output share it as NCCL says."""
    if not in_place or place.buffer == "s":
        return place
    match program.collective, place.buffer:
        case (("allgather" | "gather"), "i"):
            return Place("o", rank * parts + place.position)
        case (("reduce_scatter" | "scatter"), "o"):
            return Place("i", rank * parts + place.position)
        case (("allreduce" | "broadcast" | "reduce"), "i"):
            return Place("o", place.position)
    return place


def executed(program: Program, rounds: Rounds, in_place: bool) -> list[dict[Place, tuple]]:
    """Every rank's memory in the end. Messages of a round are moved when all landings are half written."""
    parts = rounds.parts
    inputs = parts * (program.nranks if program.collective in SHARED_INPUT else 1)

    def find(rank: int, place: Place, offset: int = 0) -> Place:
        return one_place(program, rank, place._replace(position=place.position + offset), parts, in_place)

    memory = [{find(r, Place("i", p)): ((r, p),) for p in range(inputs)} for r in range(program.nranks)]
    for number in range(max(len(rank.rounds) for rank in rounds.ranks)):
        wires: dict[tuple[int, int], list] = {}
        arriving = []
        for rank, mine in enumerate(rounds.ranks):
            local, messages = mine.rounds[number] if number < len(mine.rounds) else ((), ())
            held = memory[rank]
            for act in local:
                for k in range(act.length):
                    value = held[find(rank, act.source, k)]
                    if act.kind == "reduce":
                        value = tuple(sorted(value + held[find(rank, act.other, k)]))
                    held[find(rank, act.at, k)] = value
            for act in messages:
                if act.kind == "send":
                    wires.setdefault((rank, act.peer), []).append(act)
                else:
                    arriving.append((rank, act))
        for rank, act in arriving:
            for k in range(act.length):
                memory[rank][find(rank, act.at, k)] = BEING_WRITTEN
        for rank, act in arriving:
            send = wires[act.peer, rank].pop(0)
            assert (send.part, send.length) == (act.part, act.length)
            for k in range(act.length):
                memory[rank][find(rank, act.at, k)] = memory[act.peer][find(act.peer, send.source, k)]
        assert not any(wires.values())
    return [
        {place: held[find(rank, place)] for place in outputs(program, rank, parts)} for rank, held in enumerate(memory)
    ]


def outputs(program: Program, rank: int, parts: int) -> dict[Place, tuple]:
    """What a rank's output must hold; what one rank put in is ((rank, its position),)."""
    n = program.nranks
    ranks = range(n)
    match program.collective:
        case "allgather" | "gather":
            values = [((r, p),) for r in ranks for p in range(parts)]
        case "alltoall":
            values = [((r, rank * parts + p),) for r in ranks for p in range(parts)]
        case "reduce_scatter":
            values = [tuple((r, rank * parts + p) for r in ranks) for p in range(parts)]
        case "scatter":
            values = [((ROOT, rank * parts + p),) for p in range(parts)]
        case "broadcast":
            values = [((ROOT, p),) for p in range(parts)]
        case _:
            values = [tuple((r, p) for r in ranks) for p in range(parts)]
    if program.collective in ("gather", "reduce") and rank != ROOT:
        return {}
    return {Place("o", position): value for position, value in enumerate(values)}


def is_right(program: Program, in_place: bool) -> bool:
    rounds = rounds_of(program)
    got = executed(program, rounds, in_place)
    return got == [outputs(program, rank, rounds.parts) for rank in range(program.nranks)]


def by_hand(collective: str, k: int) -> list[Program]:
    root = {"root": ROOT} if collective in hand_made.ROOTED else {}
    programs = [hand_made.direct(collective, 4, k, **root)]
    if collective in ("allgather", "reduce_scatter", "allreduce"):
        programs.append(hand_made.ring(collective, 5, k))
    if collective == "reduce":
        programs.append(hand_made.staged_reduce(4, k, **root))
    return programs


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", hand_made.COLLECTIVES)
def test_rounds_compute_the_collective(collective, in_place) -> None:
    for k in (1, 3):
        for program in by_hand(collective, k):
            assert is_right(program, in_place), program.name


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce", "alltoall", "broadcast"])
def test_rounds_of_what_is_synthesized(collective) -> None:
    schedule = synthesize(Topology.load("mesh-2x3"), collective, size="1MB", method="greedy", root=ROOT, time_limit=0.2)
    program = lower(schedule, target="executor")
    assert is_right(program, False)
    assert is_right(program, True) or not program.inplace


def test_everything_that_can_be_is_in_one_round() -> None:
    assert {len(rank.rounds) for rank in rounds_of(hand_made.direct("allgather", 4)).ranks} == {1}
    ring = rounds_of(hand_made.ring("allgather", 5))
    assert all(sum(1 for _, messages in rank.rounds if messages) == 4 for rank in ring.ranks)


def test_neighbours_are_one_message() -> None:
    (round_,) = rounds_of(hand_made.direct("allgather", 4, 6)).ranks[0].rounds
    assert [act.length for act in round_[1]] == [6] * 6


def test_temporary_places_are_used_again() -> None:
    """A ring's sums pass through a rank one after the other: two places, however many hops."""
    assert {rank.scratch for rank in rounds_of(hand_made.ring("reduce_scatter", 9)).ranks} == {2}


def test_the_oracle_sees_rounds_that_are_too_early(monkeypatch) -> None:
    monkeypatch.setattr(module, "_round_after", lambda moment: moment // 2)
    with pytest.raises((TypeError, KeyError, AssertionError)):
        assert is_right(hand_made.ring("allreduce", 4), False)


def test_what_has_no_rounds_is_refused() -> None:
    with pytest.raises(Refused, match="hangs at gpu"):
        rounds_of(hand_made.both_receive_first())
    with pytest.raises(Refused, match="in place only"):
        rounds_of(replace(hand_made.ring("allgather", 4), outofplace=False))
    narrow = tuple(replace(gpu, scratch_chunks=1) for gpu in hand_made.direct("alltoall", 4).gpus)
    with pytest.raises(Refused, match="outside its buffer"):
        rounds_of(replace(hand_made.direct("alltoall", 4), gpus=narrow))
