"""MSCCL++ plans of schedules in which switches copy chunks (NVLS): a multicast is one store through a switch channel.

A store writes the same place of the same buffer of every rank of its group, so chunks live at their places of the
output, which all ranks of an allgather or broadcast have alike. Every rank has one threadblock, which does its sends
in the schedule's order and waits for what it needs before; all pairs that talk have one channel, for both directions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Refused
from ..schedule.schedule import Schedule
from ..topology.paths import trunk
from .mscclpp import ExecutionPlan
from .mscclpp_gpu import threadblock_json
from .mscclpp_order import Span
from .mscclpp_threadblock import Channel, Operations
from .placement import Layout
from .targets import MSCCLPP, PlanLimits


@dataclass(frozen=True)
class _Cast:
    """A chunk goes from a rank to one or, through a switch, to several at once."""

    chunk: int
    src: int
    dsts: tuple[int, ...]

    @property
    def group(self) -> tuple[int, ...]:
        return tuple(sorted((self.src, *self.dsts)))


def multicast_plan(schedule: Schedule, *, inplace: bool = False, limits: PlanLimits = MSCCLPP) -> ExecutionPlan:
    """The plan of a schedule that multicasts: an allgather or a broadcast. Raises `Refused` for other collectives, and
    where a limit would be broken."""
    demand = schedule.demand
    if demand.collective not in ("allgather", "broadcast") or demand.groups:
        raise Refused(f"target mscclpp multicasts in allgather and broadcast, not in {demand.collective}")
    casts = _casts(schedule)
    layout, topology = Layout(demand), schedule.topology
    hosts = [topology.node_by_id[gpu].host for gpu in topology.gpus]
    ranks = [_Rank(rank, casts, hosts, layout, inplace, limits) for rank in range(topology.nranks)]
    nchunks = layout.chunks_per_loop
    highest = limits.max_offset // max(max(layout.sizes(r)) for r in range(topology.nranks)) // limits.alignment
    return ExecutionPlan(
        {
            "name": f"teccl_{demand.collective}_{topology.nranks}_multicast",
            "collective": limits.collectives[demand.collective],
            "protocol": "Simple",
            "inplace": inplace,
            "reuse_resources": False,
            "gpus": [rank.to_json() for rank in ranks],
            "num_threads_per_block": 1024,
            "use_double_scratch_buffer": False,
            "buffer_alignment": limits.alignment,
            "min_message_size": limits.alignment * nchunks,
            "max_message_size": highest * limits.alignment * nchunks,
        }
    )


def _casts(schedule: Schedule) -> list[_Cast]:
    """The sends in the order of their starts, those that a switch copies together as one; what a rank has already is
    not sent again."""
    together: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i, send in sorted(enumerate(schedule.sends), key=lambda item: item[1].start_us):
        shared = send.path[: trunk(schedule.topology, send.path)]
        alone = () if shared else (i,)
        together[send.chunk, schedule.ends(send)[0], round(send.start_us, 6), shared, *alone].append(i)
    has = {(chunk.id, rank) for chunk in schedule.demand.chunks for rank in chunk.origin}
    casts = []
    for (chunk, src, *_), sends in together.items():
        dsts = sorted({schedule.ends(schedule.sends[i])[1] for i in sends})
        new = tuple(dst for dst in dsts if (chunk, dst) not in has)
        has |= {(chunk, dst) for dst in new}
        if new:
            casts.append(_Cast(chunk, src, new))
    return casts


class _Rank:
    """One rank's part."""

    def __init__(
        self, rank: int, casts: Sequence[_Cast], hosts: Sequence[int], layout: Layout, inplace: bool, limits: PlanLimits
    ) -> None:
        self.rank, self.layout, self.inplace, self.limits = rank, layout, inplace, limits
        self.ops = Operations(limits.max_channels_per_operation, limits.max_semaphores, compact=True)
        self.channels = self._channels(casts, hosts)
        self.groups = sorted({cast.group for cast in casts if rank in cast.group and len(cast.dsts) > 1})
        self.casts = [cast for cast in casts if rank == cast.src or rank in cast.dsts]
        self.to_come: dict[int, list[int]] = defaultdict(list)  # by sender: the chunks whose signals are due, in order
        for cast in self.casts:
            if rank != cast.src:
                self.to_come[cast.src].append(cast.chunk)
        self.sender = {cast.chunk: cast.src for cast in self.casts if rank != cast.src}
        self._play()

    def _channels(self, casts: Sequence[_Cast], hosts: Sequence[int]) -> Mapping[int, Channel]:
        """One to every rank that this one sends to or gets something from."""
        peers = sorted({end for cast in casts for dst in cast.dsts if self.rank in (cast.src, dst)
                        for end in (cast.src, dst) if end != self.rank})  # fmt: skip
        number: Counter[str] = Counter()
        channels = {}
        for peer in peers:
            kind = "memory" if hosts[peer] == hosts[self.rank] else "port"
            channels[peer] = Channel(kind, number[kind], peer)
            number[kind] += 1
        return channels

    def _play(self) -> None:
        """Say hello, put the own chunks into the output, then send in order, waiting for what is needed; at the end
        wait for the rest."""
        senders = sorted(self.to_come)
        receivers = sorted({dst for cast in self.casts if cast.src == self.rank for dst in cast.dsts})
        for peer in senders:
            self.ops.signal(self.channels[peer], relaxed=True)
        for peer in receivers:
            self.ops.wait(self.channels[peer], relaxed=True)
        if not self.inplace:
            for chunk in self.layout.demand.chunks:
                if self.rank in chunk.origin and self.rank in chunk.want:
                    source, target = self._span(self.layout.input_place(chunk, self.rank)), self._output(chunk.id)
                    self.ops.local("copy", [source], target, _places(source), _places(target))
        for cast in self.casts:
            if cast.src == self.rank:
                self._get(cast.chunk)
                self._cast(cast)
        for peer in senders:
            while self.to_come[peer]:
                self.ops.wait(self.channels[peer])
                self.to_come[peer].pop(0)
        for peer in receivers:
            if self.channels[peer].type == "port":
                last = [cast for cast in self.casts if cast.src == self.rank and peer in cast.dsts][-1]
                self.ops.flush(self.channels[peer], self._output(last.chunk))
        self.ops.settle()

    def _get(self, chunk: int) -> None:
        """Wait until the chunk is here: signals of one sender are taken in order."""
        sender = self.sender.get(chunk)
        while sender is not None and chunk in self.to_come[sender]:
            self.ops.wait(self.channels[sender])
            self.to_come[sender].pop(0)

    def _cast(self, cast: _Cast) -> None:
        place = self._output(cast.chunk)
        if len(cast.dsts) == 1:
            self.ops.put(self.channels[cast.dsts[0]], place, place, _places(place))
        else:
            self.ops.store(Channel("switch", self.groups.index(cast.group), -1), place, place, _places(place))
        for dst in cast.dsts:
            self.ops.signal(self.channels[dst])

    def _output(self, chunk: int) -> Span:
        return self._span(self.layout.output_place(self.layout.demand.chunks[chunk], self.rank))

    @staticmethod
    def _span(place: tuple[str, int]) -> Span:
        return Span(place[0], place[1], 1)

    def to_json(self) -> dict[str, Any]:
        operations = len(self.ops.ops)
        if operations > self.limits.max_operations or self.ops.channels_max > self.limits.max_channels:
            raise Refused(
                f"target mscclpp: rank {self.rank} needs {operations} operations and {self.ops.channels_max} channels, "
                f"and plans hold {self.limits.max_operations} and {self.limits.max_channels}; synthesize with fewer "
                "--chunks"
            )
        inputs, outputs = self.layout.sizes(self.rank)
        kinds = sorted({channel.type for channel in self.channels.values()})
        remote = list(dict.fromkeys(each for mine in self.ops.remote.values() for each in mine))
        channels: list[dict[str, Any]] = [
            {"channel_type": kind, "connected_to": [c.peer for c in self.channels.values() if c.type == kind]}
            for kind in kinds
        ]
        if self.groups:
            groups = [{"size": len(group), "ranks": list(group)} for group in self.groups]
            channels.append({"channel_type": "switch", "buffer_type": "o", "rank_groups": groups})
        return {
            "id": self.rank,
            "input_chunks": inputs,
            "output_chunks": outputs,
            "scratch_chunks": 0,
            "threadblocks": [threadblock_json(0, self.ops, remote)],
            "channels": channels,
            "remote_buffers": [
                {"rank": each.peer, "type": each.buffer, "access_channel_types": [each.type]} for each in remote
            ],
            "semaphores": [],
        }


def _places(span: Span) -> list[tuple[str, int]]:
    return [(span.buffer, span.offset + k) for k in range(span.length)]
