"""The packets of all ranks in the abstract execution of a plan, and whether launch after launch may use their places.

The executor flags packets with the launch, so within a launch a place holds one packet. The next launch that writes
there (the one after next, where launches use the halves of scratch in turns) must find the old one read: its writer
knows so when its own launch ends, or knows that the reader has begun a later launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .finding import Finding, error
from .plan_clock import Block, Clock, Done, Event
from .plan_file import Part, PlanFile
from .plan_memory import Content, Place


@dataclass
class Packet:
    """What one place holds, who wrote it, and who reads it. With it come all that the writer knew of launches (`weak`)
    and what uses of places it shows to be over (`done`)."""

    content: Content | None
    written: Event
    weak: Clock
    done: frozenset[Done]
    reads: list[Event] = field(default_factory=list)


class Packets:
    """All packets; findings go to `report`."""

    def __init__(self, plan: PlanFile, blocks: list[list[Block]], report: Callable[[Finding], None]) -> None:
        self.plan, self.blocks, self.report = plan, blocks, report
        self.cells: dict[Place, Packet] = {}

    def arrived(self, part: Part) -> bool:
        return all(self.place(part, k) in self.cells for k in range(part.size))

    def take(self, block: Block, event: Event, part: Part, k: int) -> Packet:
        """Read a packet that has arrived, when its flag says so."""
        place = self.place(part, k)
        packet = self.cells[place]
        packet.reads.append(event)
        np.maximum(block.heard, np.minimum(packet.weak, 1), out=block.heard)
        np.maximum(block.weak_heard, packet.weak, out=block.weak_heard)
        block.heard_done |= {*packet.done, (event, place), (packet.written, place)}
        return packet

    def move(self, block: Block, event: Event, part: Part, k: int) -> Packet | None:
        """Read a packet without a look at its flag, as a port does: it must be known to be there."""
        place = self.place(part, k)
        packet = self.cells.get(place)
        if packet is None:
            self._wrong("empty", f"moves {self._name(place)}, where no packet has been written", event)
            return None
        if not block.knows(packet.written) and (packet.written, place) not in block.known_done:
            writer = packet.written
            text = (
                f"moves {self._name(place)}, which gpu {writer.rank} tb {writer.tb} op {writer.op} writes, in no order"
            )
            self._wrong("race", text, event)
        packet.reads.append(event)
        return packet

    def send(
        self, block: Block, event: Event, part: Part, k: int, content: Content | None, taken: Sequence[Packet],
        done: frozenset[Done],
    ) -> Clock:  # fmt: skip
        """Put a packet at the k-th place of `part`; `taken` are those of which it is made, `done` what it shows."""
        place = self.place(part, k)
        old = self.cells.get(place)
        if old is not None:
            writer = f"gpu {old.written.rank} tb {old.written.tb} op {old.written.op}"
            text = f"writes {self._name(place)}, as {writer} does in the same launch: flags cannot tell which"
            self._wrong("race", text, event)
        weak: Clock = np.maximum.reduce([block.weak_known, block.known, *(packet.weak for packet in taken)])
        known = frozenset().union(done, block.known_done, *(packet.done for packet in taken))
        self.cells[place] = Packet(content, event, weak, known)
        return weak

    def at_rest(self) -> None:
        """Whether later launches find the packets read."""
        if not self.cells:
            return
        clocks = max(len(block.known) for blocks in self.blocks for block in blocks)
        ends = [_End(blocks, clocks) for blocks in self.blocks]
        for place, packet in self.cells.items():
            writer = packet.written.rank
            begun = [rank for rank in range(len(ends)) if rank == writer or self._begun(packet, ends[writer], rank)]
            for read in packet.reads:
                # a launch has begun on a rank whose launch before has ended, and with it this read
                over = any((rank == place.rank and not read.port) or ends[rank].knows(read, place) for rank in begun)
                if not over:
                    later = "after next" if self.plan.double_scratch else "next"
                    text = f"writes {self._name(place)}, whose old packet may be unread when the launch {later} does so"
                    self._wrong("reuse", text, packet.written)
                    break

    def _begun(self, packet: Packet, writer: _End, rank: int) -> bool:
        """Whether `rank` is known to have begun a launch when the packet is written; or, with two halves, to have begun
        the launch before."""
        numbers = [block.number for block in self.blocks[rank]]
        return any(packet.weak[n] or (self.plan.double_scratch and writer.begun[n]) for n in numbers)

    @staticmethod
    def place(part: Part, k: int) -> Place:
        return Place(part.ranks[0], "s", part.first + k)

    def _name(self, place: Place) -> str:
        return f"packet {self.plan.chunk(place.chunk)} of rank {place.rank}"

    def _wrong(self, code: str, text: str, event: Event) -> None:
        self.report(error(code, text, event.rank, event.tb, event.op))


class _End:
    """What a rank knows when its launch ends."""

    def __init__(self, blocks: Sequence[Block], clocks: int) -> None:
        nothing = np.zeros(clocks, dtype=np.int32)
        self.known = np.maximum.reduce([nothing, *(block.known for block in blocks)])
        self.begun = np.maximum.reduce([nothing, *(block.weak_known for block in blocks)])
        self.done = set[Done]().union(*(block.known_done for block in blocks))

    def knows(self, event: Event, place: Place) -> bool:
        return bool(self.known[event.clock] >= event.tick) or (event, place) in self.done
