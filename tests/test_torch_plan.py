"""Plans, executed by hand: messages that are taken as early or as late as the rules of point-to-point allow."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import hand_made
import pytest

from teccl_msccl.errors import Refused
from teccl_msccl.torch.plan import Plan, plans_of

NRANKS = 4


class Run:
    """All ranks' plans in turns, one event at a time; data are sets of (rank, part) that were summed, tagged by share.

    A message moves when both sides are there: at once (`eager`), or only when someone waits for it, so that whoever
    overwrites what is sent, or reads what has not landed, computes nonsense."""

    def __init__(self, plans: list[Plan], inputs, in_place: bool, eager: bool) -> None:
        self.plans, self.eager = plans, eager
        self.memory = [{("o" if in_place else "i", k): v for k, v in enumerate(given)} for given in inputs]
        self.sends: dict[tuple[int, int, int], deque] = {}
        self.posts: dict[tuple[int, int, int], deque] = {}
        self.where: dict[tuple[int, str, int], tuple[int, int, int]] = {}
        self.open: set[tuple[int, str, int]] = set()

    def move(self, wire, until=None) -> None:
        sends, posts = self.sends.setdefault(wire, deque()), self.posts.setdefault(wire, deque())
        while sends and posts:
            (src, source, send), (dst, landing, receive) = sends[0], posts[0]
            self.memory[dst][landing] = self.memory[src][source]
            sends.popleft(), posts.popleft()
            self.open -= {(src, "send", send), (dst, "post", receive)}
            if until in ((src, "send", send), (dst, "post", receive)):
                return

    def done(self, rank: int, kind: str, number: int) -> bool:
        key = (rank, kind, number)
        if key in self.open:
            self.move(self.where[key], key)
        return key not in self.open

    def step(self, rank: int, event) -> bool:
        memory = self.memory[rank]
        match event.kind:
            case "post" | "send":
                wire = (event.peer, rank, event.channel) if event.kind == "post" else (rank, event.peer, event.channel)
                queue = (self.posts if event.kind == "post" else self.sends).setdefault(wire, deque())
                queue.append((rank, event.at[:2], event.number))
                self.where[rank, event.kind, event.number] = wire
                self.open.add((rank, event.kind, event.number))
                if event.kind == "post":
                    memory[event.at[:2]] = "being written"
                if self.eager:
                    self.move(wire)
            case "wait":
                return self.done(rank, "post", event.number)
            case "drain":
                return self.done(rank, "send", event.number)
            case "copy":
                memory[event.at[:2]] = memory[event.source[:2]]
            case "reduce":
                memory[event.at[:2]] = tuple(
                    sorted(x for place in (event.source, *event.others) for x in memory[place[:2]])
                )
        return True

    def run(self, order: list[int]) -> None:
        at = [0] * len(self.plans)
        while any(at[r] < len(plan.events) for r, plan in enumerate(self.plans)):
            moved = False
            for rank in order:
                while at[rank] < len(self.plans[rank].events) and self.step(rank, self.plans[rank].events[at[rank]]):
                    at[rank] += 1
                    moved = True
            assert moved, "deadlock"
        for wire in list(self.sends):
            self.move(wire)
        assert not self.open


def expected(collective: str, rank: int, parts: int) -> list[tuple]:
    """What every place of the output must hold; an input's place holds ((its rank, its position),)."""
    ranks = range(NRANKS)
    match collective:
        case "allgather":
            return [((r, part),) for r in ranks for part in range(parts)]
        case "alltoall":
            return [((r, rank * parts + part),) for r in ranks for part in range(parts)]
        case "reduce_scatter":
            return [tuple((r, rank * parts + part) for r in ranks) for part in range(parts)]
        case "allreduce":
            return [tuple((r, part) for r in ranks) for part in range(parts)]
        case _:
            return [((1, part),) for part in range(parts)]


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize(
    ("make", "collective"),
    [
        *((hand_made.direct, name) for name in ("allgather", "alltoall", "reduce_scatter", "allreduce", "broadcast")),
        *((hand_made.ring, name) for name in ("allgather", "reduce_scatter", "allreduce")),
    ],
)
def test_every_order_computes_the_collective(make, collective, slices) -> None:
    k = 2
    program = make(collective, NRANKS, k, root=1) if make is hand_made.direct else make(collective, NRANKS, k)
    for in_place in (False, True) if collective in ("allreduce", "broadcast") else (False,):
        plans = plans_of(program, in_place, slices)
        parts = plans[0].parts
        sizes = plans[0].input_shares * parts
        inputs = [[((rank, position),) for position in range(sizes)] for rank in range(NRANKS)]
        for eager in (False, True):
            for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
                run = Run(plans, inputs, in_place, eager)
                run.run(order)
                for rank in range(NRANKS):
                    output = [run.memory[rank]["o", position] for position in range(plans[0].output_shares * parts)]
                    assert output == expected(collective, rank, parts), (rank, eager, order)


def test_the_oracle_sees_a_send_that_is_overwritten() -> None:
    """Without the drains, an allreduce in place overwrites what it still has to send."""
    plans = plans_of(hand_made.direct("allreduce", NRANKS), True)
    hasty = [replace(plan, events=tuple(e for e in plan.events if e.kind != "drain")) for plan in plans]
    assert computes_an_allreduce(plans)
    assert not computes_an_allreduce(hasty)


def computes_an_allreduce(plans: list[Plan]) -> bool:
    parts = plans[0].parts
    run = Run(plans, [[((rank, part),) for part in range(parts)] for rank in range(NRANKS)], True, False)
    try:
        run.run([0, 1, 2, 3])
    except TypeError:  # a reduction of what was being written
        return False
    return all(run.memory[r]["o", i] == expected("allreduce", r, parts)[i] for r in range(NRANKS) for i in range(parts))


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(Refused, match="hangs at gpu"):
        plans_of(hand_made.both_receive_first(), False)
    with pytest.raises(Refused, match="out of place"):
        plans_of(hand_made.ring("allgather", 4), True)
