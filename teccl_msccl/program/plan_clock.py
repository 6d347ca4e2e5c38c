"""Who knows what in the abstract execution of a plan: threadblocks with vector clocks (Fidge, Mattern)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .plan_file import Op

Clock = npt.NDArray[np.int32]


class Event(NamedTuple):
    """Something that a threadblock did, or had a port channel do: by whose clock, when, and where in the file."""

    clock: int
    tick: int
    rank: int
    tb: int
    op: int
    port: bool = False


#: A use of a place that is over: the event, and the place (see `plan_memory.Place`).
Done = tuple[Event, tuple[int, str, int]]


class Port:
    """A port channel at its sender: a clock of its own, since it works on its own. What it has done is known to who
    gets a signal through it, and to who flushes it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.told = 0

    def event(self, block: Block) -> Event:
        return Event(self.number, self.told + 1, block.rank, block.tb, block.position, True)

    def tell(self, clock: Clock) -> None:
        self.told += 1
        clock[self.number] = max(self.told, clock[self.number])


class Block:
    """A threadblock as it runs.

    Threads meet at a `nop` only: `known` is what all of them know of all threadblocks' clocks, `heard` what some do.
    A relaxed signal tells that a launch has begun, and orders no data: only the `weak` clocks take all of it. So does
    a packet; what it is made of has been read, though, which `heard_done` and `known_done` keep, place by place.
    """

    def __init__(self, number: int, rank: int, tb: int, clocks: int, ops: tuple[Op, ...]) -> None:
        self.number, self.rank, self.tb, self.ops = number, rank, tb, ops
        self.at = 0
        self.tick = 1
        self.known = np.zeros(clocks, dtype=np.int32)
        self.known[number] = 1  # its launch
        self.heard = self.known.copy()
        self.weak_known, self.weak_heard = self.known.copy(), self.known.copy()
        self.heard_done: set[Done] = set()
        self.known_done: set[Done] = set()
        self.taken = 0  # channels or semaphores of the operation at hand that need no more waiting

    @property
    def position(self) -> int:
        """Where the operation at hand stands in the file."""
        return self.ops[self.at].position

    def event(self) -> Event:
        self.tick += 1
        self.heard[self.number] = self.weak_heard[self.number] = self.tick
        return Event(self.number, self.tick, self.rank, self.tb, self.position)

    def meet(self) -> None:
        """All threads know what any did."""
        np.maximum(self.known, self.heard, out=self.known)
        np.maximum(self.weak_known, self.weak_heard, out=self.weak_known)
        self.known_done |= self.heard_done

    def knows(self, event: Event) -> bool:
        return bool(self.known[event.clock] >= event.tick)
