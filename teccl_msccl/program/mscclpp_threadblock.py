"""One threadblock of an MSCCL++ plan: its operations, with the synchronisation that the executor leaves to the plan.

The threads of a threadblock share the work of an operation and do not wait for one another before the next: that is
what `nop` is for. Signals are given, and waits done, by a few threads only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from .mscclpp_order import Span

#: Operations that some threads wait in, and that some threads give a signal with.
WAITING = frozenset({"wait", "rlxwait", "sem_acquire"})
SIGNALLING = frozenset({"signal", "rlxsignal", "sem_release"})


class Channel(NamedTuple):
    """A channel of the rank: its type, its position among the rank's of this type, and the peer."""

    type: str
    id: int
    peer: int


class RemoteBuffer(NamedTuple):
    """A peer's buffer, as reached by a type of channel."""

    peer: int
    buffer: str
    type: str


class Operations:
    """Operations in order; `nop` where one must see what another did, and neighbours of a kind as one.

    With `compact`, signals wait for the puts that follow at once, so that they share operations: fewer of them, but
    the first receiver waits longer.
    """

    def __init__(self, per_operation: int, semaphores_per_operation: int, compact: bool = False) -> None:
        self.ops: list[dict[str, Any]] = []
        self.channels: dict[str, list[int]] = {}
        self.remote: dict[str, list[RemoteBuffer]] = {}
        self._per_operation, self._per_semaphore_operation = per_operation, semaphores_per_operation
        self._compact = compact
        self._waited = False  # a wait that other threads do not know of yet
        self._moved = False  # data that other threads may still be moving
        self._signalled = False  # a signal that other threads may still be giving
        self._read: set[Hashable] = set()
        self._written: set[Hashable] = set()
        self._held_signals: list[Channel] = []

    @property
    def channels_max(self) -> int:
        """The longest of the lists of channels and remote buffers."""
        lengths = [len(ids) for ids in self.channels.values()] + [len(buffers) for buffers in self.remote.values()]
        return max(lengths, default=0)

    # -- synchronisation -----------------------------------------------------------------------------------

    def signal(self, channel: Channel, *, relaxed: bool = False) -> None:
        """Tell the peer that all before is done."""
        if self._compact and not relaxed:
            self._held_signals.append(channel)
        else:
            self._signal(channel, relaxed)

    def _signal(self, channel: Channel, relaxed: bool = False) -> None:
        if self._waited or self._moved:
            self._nop()
        self._on_channel("rlxsignal" if relaxed else "signal", channel)
        self._signalled = True

    def wait(self, channel: Channel, *, relaxed: bool = False) -> None:
        self.settle()
        self._on_channel("rlxwait" if relaxed else "wait", channel)
        self._waited = True

    def release(self, semaphore: int) -> None:
        self.settle()
        if self._waited or self._moved:
            self._nop()
        self._on_semaphore("sem_release", semaphore)

    def acquire(self, semaphore: int) -> None:
        self.settle()
        self._on_semaphore("sem_acquire", semaphore)
        self._waited = True

    def flush(self, channel: Channel, landing: Span) -> None:
        """Wait until what was put on the channel has left its source. The executor counts the outputs."""
        self.settle()
        if self._moved:
            self._nop()
        buffer = {
            "buffer_id": self._remote_id(channel, landing.buffer),
            "index": landing.offset,
            "size": landing.length,
        }
        ids = [self._channel_id(channel)]
        self.ops.append({"name": "flush", "channel_ids": ids, "channel_type": channel.type, "dst_buff": [buffer]})
        self._waited = True

    def meet(self) -> None:
        """Let all threads know what any did, signals included."""
        self.settle()
        if self._waited or self._moved or self._signalled:
            self._nop()

    def settle(self) -> None:
        """Give the signals that were held back."""
        held, self._held_signals = self._held_signals, []
        for channel in held:
            self._signal(channel)

    # -- data ----------------------------------------------------------------------------------------------

    def put(
        self, channel: Channel, source: Span, target: Span, memory: Iterable[Hashable], *, name: str = "put"
    ) -> None:
        """Write `source` into the peer's `target`; `memory` is what of this rank's memory it reads. `name` may be that
        of a put of packets."""
        if len(self._held_signals) >= self._per_operation and not self._joins_put(name, channel, source):
            self.settle()  # with its nop, before there is data again that others may be moving
        self._before_data(set(memory), set())
        if not self._joins_put(name, channel, source):
            self.ops.append(
                {"name": name, "src_buff": [], "dst_buff": [], "channel_ids": [], "channel_type": channel.type}
            )
        op = self.ops[-1]
        op["src_buff"].append({"type": source.buffer, "index": source.offset, "size": source.length})
        op["dst_buff"].append(
            {"buffer_id": self._remote_id(channel, target.buffer), "index": target.offset, "size": target.length}
        )
        op["channel_ids"].append(self._channel_id(channel))

    def store(self, channel: Channel, source: Span, target: Span, memory: Iterable[Hashable]) -> None:
        """Write `source` into `target` of every rank of a switch channel's group, this one's included."""
        places = set(memory)
        self._before_data(places, places)
        self.ops.append(
            {
                "name": "gstore",
                "src_buff": [{"type": source.buffer, "index": source.offset, "size": source.length}],
                "dst_buff": [
                    {"switch_channel_id": self._channel_id(channel), "index": target.offset, "size": target.length}
                ],
                "channel_type": "switch",
            }
        )

    def _joins_put(self, name: str, channel: Channel, source: Span) -> bool:
        """The executor takes the source buffer of a put's first part for all of them."""
        last = self.ops[-1] if self.ops else {}
        return (
            name != "rppkt"
            and last.get("name") == name
            and last["channel_type"] == channel.type
            and len(last["channel_ids"]) < self._per_operation
            and last["src_buff"][0]["type"] == source.buffer
            and self._channel_id(channel) not in last["channel_ids"]
        )

    def local(
        self, name: str, sources: Sequence[Span], target: Span, read: Iterable[Hashable], written: Iterable[Hashable]
    ) -> None:
        """A copy, or a reduction of two sources; of packets, too, which are no memory that others wait for."""
        self.settle()
        self._before_data(set(read), set(written))
        op: dict[str, Any] = {
            "name": name,
            "src_buff": [{"type": span.buffer, "index": span.offset, "size": span.length} for span in sources],
            "dst_buff": [{"type": target.buffer, "index": target.offset, "size": target.length}],
        }
        if name in ("re", "repkt"):
            op["reduce_op"] = "sum"
        self.ops.append(op)

    def _before_data(self, read: set[Hashable], written: set[Hashable]) -> None:
        if self._waited or (read | written) & self._written or written & self._read:
            self._nop()
        self._moved = True
        self._read |= read
        self._written |= written

    # -- putting it down -----------------------------------------------------------------------------------

    def _nop(self) -> None:
        self.ops.append({"name": "nop"})
        self._waited = self._moved = self._signalled = False
        self._read, self._written = set(), set()

    def _on_channel(self, name: str, channel: Channel) -> None:
        id = self._channel_id(channel)
        last = self.ops[-1] if self.ops else {}
        if (last.get("name"), last.get("channel_type")) == (name, channel.type):
            ids = last["channel_ids"]
            if id not in ids and len(ids) < self._per_operation:
                ids.append(id)
                return
        self.ops.append({"name": name, "channel_ids": [id], "channel_type": channel.type})

    def _on_semaphore(self, name: str, semaphore: int) -> None:
        ids = self.ops[-1]["semaphore_ids"] if self.ops and self.ops[-1]["name"] == name else None
        if ids is not None and semaphore not in ids and len(ids) < self._per_semaphore_operation:
            ids.append(semaphore)
        else:
            self.ops.append({"name": name, "semaphore_ids": [semaphore]})

    def _channel_id(self, channel: Channel) -> int:
        """The channel's position in the threadblock's own list."""
        mine = self.channels.setdefault(channel.type, [])
        if channel.id not in mine:
            mine.append(channel.id)
        return mine.index(channel.id)

    def _remote_id(self, channel: Channel, buffer: str) -> int:
        mine = self.remote.setdefault(channel.type, [])
        remote = RemoteBuffer(channel.peer, buffer, channel.type)
        if remote not in mine:
            mine.append(remote)
        return mine.index(remote)
