"""A second opinion on programs: a machine that takes one small event at a time, in any order the runtimes allow.

Every transfer of a step begins (it takes what arrived and reads its sources) and later ends (it writes and passes
on). Random walks execute data; exhaustive search finds every state that can be reached.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

from teccl_msccl.program.program import RECEIVING, SENDING, Program, Step

READS_SOURCE = {"s", "cpy", "re", "rrc", "rrs", "rrcs"}
WRITES = {"r", "cpy", "re", "rcs", "rrc", "rrcs"}

Cursor = tuple[int, int, bool]  # step, transfers of it that ended, whether the next one has begun
State = tuple[tuple[Cursor, ...], tuple[int, ...]]  # of every threadblock; transfers in flight of every connection


@dataclass(frozen=True)
class Block:
    rank: int
    tb: int
    steps: tuple[Step, ...]
    into: int  # connection; −1: none
    out: int


class Machine:
    """The program's control: which events can happen in which state. Matched connections are assumed."""

    def __init__(self, program: Program, credits: int) -> None:
        self.program, self.credits = program, credits
        names: dict[tuple[int, int, int], int] = {}
        self.blocks: list[Block] = []
        self.index: dict[tuple[int, int], int] = {}
        for rank, gpu in enumerate(program.gpus):
            for tb, block in enumerate(gpu.threadblocks):
                out = names.setdefault((rank, block.send, block.chan), len(names)) if block.send >= 0 else -1
                into = names.setdefault((block.recv, rank, block.chan), len(names)) if block.recv >= 0 else -1
                self.index[rank, tb] = len(self.blocks)
                self.blocks.append(Block(rank, tb, block.steps, into, out))
        self.connections = len(names)

    def start(self) -> State:
        return tuple((0, 0, False) for _ in self.blocks), (0,) * self.connections

    def finished(self, state: State) -> bool:
        return all(cursor[0] == len(block.steps) for cursor, block in zip(state[0], self.blocks, strict=True))

    def flag(self, state: State, block: int) -> int:
        """The highest step number that the threadblock has raised."""
        done = self.blocks[block].steps[: state[0][block][0]]
        return max((at for at, step in enumerate(done) if step.hasdep and step.type != "nop"), default=-1)

    def can_move(self, state: State, at: int) -> bool:
        block, (position, moved, begun) = self.blocks[at], state[0][at]
        if position == len(block.steps):
            return False
        step = block.steps[position]
        if begun:
            return True
        if step.depid >= 0 and moved == 0 and self.flag(state, self.index[block.rank, step.depid]) < step.deps:
            return False
        if step.type in RECEIVING and state[1][block.into] == 0:
            return False
        return step.type not in SENDING or state[1][block.out] < self.credits

    def move(self, state: State, at: int) -> State:
        """The state after the threadblock's next event: a transfer begins, or the one that has begun ends."""
        block, (position, moved, begun) = self.blocks[at], state[0][at]
        step = block.steps[position]
        in_flight = list(state[1])
        if not begun:
            cursor = (position, moved, True)
        else:
            if step.type in RECEIVING:
                in_flight[block.into] -= 1
            if step.type in SENDING:
                in_flight[block.out] += 1
            last = step.type == "nop" or moved + 1 == step.cnt
            cursor = (position + 1, 0, False) if last else (position, moved + 1, False)
        return (*state[0][:at], cursor, *state[0][at + 1 :]), tuple(in_flight)

    def reachable(self) -> set[State]:
        found, frontier = {self.start()}, [self.start()]
        while frontier:
            state = frontier.pop()
            for at in range(len(self.blocks)):
                if self.can_move(state, at):
                    after = self.move(state, at)
                    if after not in found:
                        found.add(after)
                        frontier.append(after)
        return found


def can_hang(program: Program, credits: int) -> bool:
    """Whether some order of events leads to a state where nothing moves and not all is done."""
    machine = Machine(program, credits)
    return any(
        not machine.finished(state) and not any(machine.can_move(state, at) for at in range(len(machine.blocks)))
        for state in machine.reachable()
    )


def has_race(program: Program, credits: int = 10**6) -> bool:
    """Whether two conflicting steps of one rank (buffers apart) end and begin in no fixed order."""
    machine = Machine(program, credits)
    steps = [(at, position) for at, block in enumerate(machine.blocks) for position in range(len(block.steps))]
    suspects = [
        (a, b)
        for a, b in combinations(steps, 2)
        if a[0] != b[0]
        and machine.blocks[a[0]].rank == machine.blocks[b[0]].rank
        and conflict(machine.blocks[a[0]].steps[a[1]], machine.blocks[b[0]].steps[b[1]])
    ]
    if not suspects:
        return False
    states = machine.reachable()

    def can_begin_before_end(late: tuple[int, int], early: tuple[int, int]) -> bool:
        return any(_begun(state, late) and state[0][early[0]][0] <= early[1] for state in states)

    return any(can_begin_before_end(b, a) and can_begin_before_end(a, b) for a, b in suspects)


def _begun(state: State, step: tuple[int, int]) -> bool:
    position, moved, begun = state[0][step[0]]
    return position > step[1] or (position == step[1] and (moved > 0 or begun))


def _ranges(step: Step) -> list[tuple[str, int, int, bool]]:
    if step.type == "cpy" and (step.srcbuf, step.srcoff) == (step.dstbuf, step.dstoff):
        return [(step.srcbuf, step.srcoff, step.srcoff + step.cnt, False)]  # no reader can tell
    read = [(step.srcbuf, step.srcoff, step.srcoff + step.cnt, False)] if step.type in READS_SOURCE else []
    written = [(step.dstbuf, step.dstoff, step.dstoff + step.cnt, True)] if step.type in WRITES else []
    return read + written


def conflict(a: Step, b: Step) -> bool:
    """Whether the order of two steps of one rank shows in its buffers."""
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] and (x[3] or y[3]) for x in _ranges(a) for y in _ranges(b))


Contents = Counter[tuple[int, int]]  # how often each (rank, input chunk) counts


def outputs(program: Program, credits: int, in_place: bool, seed: int) -> dict[tuple[int, str, int], Contents] | None:
    """What the buffers hold after one random execution; None when it hangs. Chunks are (rank, "i" | "o" | "s", at)."""
    machine, chance = Machine(program, credits), random.Random(seed)
    memory: dict[tuple[int, str, int], Contents] = {}
    for rank, gpu in enumerate(program.gpus):
        share = program.nchunks // program.nranks if program.collective == "allgather" else 0
        for at in range(share or max(gpu.input_chunks, gpu.output_chunks)):
            memory[_home(program, in_place, rank, "i", at)] = Counter({(rank, at): 1})
    wires: list[list[Contents]] = [[] for _ in range(machine.connections)]
    carried: dict[int, Contents] = {}
    state = machine.start()
    while True:
        movable = [at for at in range(len(machine.blocks)) if machine.can_move(state, at)]
        if not movable:
            break
        at = chance.choice(movable)
        block, (position, moved, begun) = machine.blocks[at], state[0][at]
        step = block.steps[position]
        source = _home(program, in_place, block.rank, step.srcbuf, step.srcoff + moved)
        target = _home(program, in_place, block.rank, step.dstbuf, step.dstoff + moved)
        if not begun:
            value: Contents = Counter()
            if step.type in RECEIVING:
                value += wires[block.into].pop(0)
            if step.type in READS_SOURCE:
                value += memory.get(source, Counter())
            if step.type == "re":
                value += memory.get(target, Counter())
            carried[at] = value
        else:
            if step.type in WRITES:
                memory[target] = carried[at]
            if step.type in SENDING:
                wires[block.out].append(carried[at])
        state = machine.move(state, at)
    return memory if machine.finished(state) else None


def _home(program: Program, in_place: bool, rank: int, buffer: str, at: int) -> tuple[int, str, int]:
    """The chunk's one name: in place, input and output are the same memory."""
    share = program.nchunks // program.nranks
    if in_place and buffer == "i":
        return (rank, "o", rank * share + at) if program.collective == "allgather" else (rank, "o", at)
    if in_place and buffer == "o" and program.collective == "reduce_scatter":
        return rank, "o", rank * share + at
    return rank, buffer, at
