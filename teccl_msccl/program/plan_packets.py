"""Packets of MSCCL++ plans under protocol LL: data with a flag beside it that tells this launch's from an older one's.

Who reads a packet waits for its flag, so packets need no signals; they lie in scratch, in twice the room of their data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .plan_file import Op, Part

#: Operations on packets: put, read and put, reduce (and send), reduce and copy (and send), copy into, unpack.
PACKETS = frozenset({"ppkt", "rppkt", "repkt", "respkt", "recpkt", "recspkt", "cpkt", "upkt"})


class PacketParts(NamedTuple):
    """What an operation reads and writes as plain data, and what as packets."""

    plain_sources: tuple[Part, ...] = ()
    packet_sources: tuple[Part, ...] = ()
    plain_targets: tuple[Part, ...] = ()
    packet_targets: tuple[Part, ...] = ()

    @property
    def plain(self) -> tuple[Part, ...]:
        return (*self.plain_sources, *self.plain_targets)

    @property
    def packets(self) -> tuple[Part, ...]:
        return (*self.packet_sources, *self.packet_targets)


def packet_parts(op: Op) -> PacketParts:
    """The parts of an operation on packets, as the executor takes them: what it does not look at is left out."""
    sources, targets = op.sources, op.targets
    match op.name:
        case "ppkt" if op.channel_type == "port":  # moves packets as they are
            return PacketParts(packet_sources=sources, packet_targets=targets)
        case "ppkt":
            return PacketParts(plain_sources=sources, packet_targets=targets)
        case "rppkt":
            return PacketParts(packet_sources=sources[:1], packet_targets=targets)
        case "cpkt":
            return PacketParts(plain_sources=sources[:1], packet_targets=targets[:1])
        case "upkt":
            return PacketParts(packet_sources=sources[:1], plain_targets=targets[:1])
        case "repkt":
            sent = targets[:0]
        case "recpkt":
            sent = targets[1:2]
        case "respkt" | "recspkt":
            sent = targets[1:]
        case _:
            raise AssertionError(op.name)
    return PacketParts(sources[:1], sources[1:], targets[:1], sent)
