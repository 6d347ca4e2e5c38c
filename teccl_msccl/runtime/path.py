"""How a chunk came to be where it is: the program's data flow, walked backwards from a place in a buffer.

Data moves as it would with unlimited FIFOs, one step at a time; a program with races has other flows too, and this
is one of them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..program.program import READING, RECEIVING, SENDING, WRITING, Program, Step
from .buffers import Layout


@dataclass(frozen=True)
class Hop:
    """A step that handled the chunk. `reads` and `writes` are places like `i[3]`, empty if it has none; `sends_to`
    and `receives_from` are ranks, −1 for none."""

    rank: int
    tb: int
    step: int
    type: str
    reads: str
    writes: str
    receives_from: int
    sends_to: int

    def __str__(self) -> str:
        words = [f"reads {self.reads}"] * bool(self.reads)
        words += [f"receives from rank {self.receives_from}"] * (self.receives_from >= 0)
        words += [f"writes {self.writes}"] * bool(self.writes)
        words += [f"sends to rank {self.sends_to}"] * (self.sends_to >= 0)
        return f"rank {self.rank} tb {self.tb} step {self.step} ({self.type}): {', '.join(words)}"

    def to_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "tb": self.tb, "step": self.step, "type": self.type, "text": str(self)}


@dataclass(frozen=True)
class _Value:
    """What a place holds: made by the `number`-th handling, `hop`, of the values it was made from."""

    number: int
    hop: Hop
    made_from: tuple[_Value, ...]


def path_to(program: Program, rank: int, buffer: str, chunk: int, in_place: bool, layout: Layout) -> tuple[Hop, ...]:
    """The steps that what `rank` finally holds in chunk `chunk` of `buffer` (i, o, s) went through, in the order in
    which they happen. Empty if no step wrote there. O(steps × chunks moved)."""
    flow = _Flow(program, in_place, layout)
    flow.run()
    final = flow.held.get(flow.place(rank, buffer, chunk))
    passed: dict[int, _Value] = {}
    ahead = [final] if final else []
    while ahead:
        value = ahead.pop()
        if value.number not in passed:
            passed[value.number] = value
            ahead += value.made_from
    return tuple(passed[number].hop for number in sorted(passed))


class _Flow:
    """A program at work on symbols: who made what every place holds."""

    def __init__(self, program: Program, in_place: bool, layout: Layout) -> None:
        self._program, self._in_place, self._layout = program, in_place, layout
        self.held: dict[tuple[int, str, int], _Value] = {}
        self._wires: dict[tuple[int, int, int], deque[list[_Value]]] = defaultdict(deque)
        self._handled = 0

    def place(self, rank: int, buffer: str, chunk: int) -> tuple[int, str, int]:
        """Where a chunk lies; in place, input and output share."""
        if not self._in_place or buffer == "s":
            return rank, buffer, chunk
        offset = self._layout.input_offset(rank) if buffer == "i" else self._layout.output_offset(rank)
        return rank, "io", offset + chunk

    def run(self) -> None:
        """Go round the threadblocks until none can take another step."""
        raised = {(rank, tb): -1 for rank, gpu in enumerate(self._program.gpus) for tb in range(len(gpu.threadblocks))}
        cursors = dict.fromkeys(raised, 0)
        moved = True
        while moved:
            moved = False
            for (rank, tb), cursor in cursors.items():
                steps = self._program.gpus[rank].threadblocks[tb].steps
                while cursor < len(steps) and self._ready(rank, tb, steps[cursor], raised):
                    self._do(rank, tb, cursor, steps[cursor])
                    if steps[cursor].hasdep and steps[cursor].type != "nop":
                        raised[rank, tb] = cursor
                    cursor += 1
                    moved = True
                cursors[rank, tb] = cursor

    def _ready(self, rank: int, tb: int, step: Step, raised: dict[tuple[int, int], int]) -> bool:
        if step.depid >= 0 and raised.get((rank, step.depid), -1) < step.deps:
            return False
        home = self._program.gpus[rank].threadblocks[tb]
        return step.type not in RECEIVING or bool(self._wires[home.recv, rank, home.chan])

    def _do(self, rank: int, tb: int, position: int, step: Step) -> None:
        if step.type == "nop":
            return
        home = self._program.gpus[rank].threadblocks[tb]
        incoming = self._wires[home.recv, rank, home.chan].popleft() if step.type in RECEIVING else None
        outgoing: list[_Value] = []
        for piece in range(step.cnt):
            reads = f"{step.srcbuf}[{step.srcoff + piece}]" if step.type in READING else ""
            writes = f"{step.dstbuf}[{step.dstoff + piece}]" if step.type in WRITING else ""
            hop = Hop(
                rank, tb, position, step.type, reads, writes,
                home.recv if step.type in RECEIVING else -1,
                home.send if step.type in SENDING else -1,
            )  # fmt: skip
            self._handled += 1
            value = _Value(self._handled, hop, tuple(self._ingredients(rank, step, piece, incoming)))
            if step.type in WRITING:
                self.held[self.place(rank, step.dstbuf, step.dstoff + piece)] = value
            outgoing.append(value)
        if step.type in SENDING:
            self._wires[rank, home.send, home.chan].append(outgoing)

    def _ingredients(self, rank: int, step: Step, piece: int, incoming: list[_Value] | None) -> Iterator[_Value]:
        """The values that the step makes its own from; what no step has written is none."""
        if incoming is not None:
            yield incoming[piece]
        places = [self.place(rank, step.srcbuf, step.srcoff + piece)] * (step.type in READING)
        places += [self.place(rank, step.dstbuf, step.dstoff + piece)] * (step.type == "re")
        yield from (self.held[place] for place in places if place in self.held)
