"""Pass: on which channel each connection runs, and over how many channels a long one is spread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

from ..errors import Refused
from ..schedule.schedule import Schedule
from ..topology.paths import direct_paths
from .targets import Target

Connection = tuple[int, int, int]
#: A connection on one channel: sender, receiver, channel.
Stream = tuple[int, int, int]


@dataclass(frozen=True)
class ChannelPlan:
    """The channels of every connection: its k-th transfer runs on channel `of[connection][k % len]`."""

    of: Mapping[Connection, tuple[int, ...]]

    @property
    def count(self) -> int:
        """How many channels the program declares."""
        return 1 + max((channel for channels in self.of.values() for channel in channels), default=0)

    def moved(self, before: ChannelPlan) -> set[int]:
        """The ranks with a connection whose channels are others than `before`."""
        return {rank for each, channels in self.of.items() if channels != before.of[each] for rank in each[:2]}

    def channel(self, connection: Connection, position: int) -> int:
        """The channel of the connection's transfer at `position`."""
        channels = self.of[connection]
        return channels[position % len(channels)]

    def stream(self, connection: Connection, position: int) -> Stream:
        """What the connection's transfer at `position` is part of."""
        return (*connection[:2], self.channel(connection, position))


def direct_ways(schedule: Schedule) -> dict[tuple[int, int], dict[tuple[int, ...], int]]:
    """For each pair of ranks that sends, its direct paths (link ids), numbered in the order in which channels are dealt
    out over them."""
    ways: dict[tuple[int, int], dict[tuple[int, ...], int]] = {schedule.ends(send): {} for send in schedule.sends}
    for path in direct_paths(schedule.topology, frozenset(ways)):
        known = ways[path.src_rank, path.dst_rank]
        known[path.links] = len(known)
    return ways


def assign_channels(
    widths: Mapping[Connection, int], target: Target, paths: Mapping[tuple[int, int], int] = MappingProxyType({})
) -> ChannelPlan:
    """Give each connection as many channels as its width says, lowest first.

    A channel holds one threadblock per (rank, peer, direction), and a limited number of threadblocks per rank and
    direction. Connections of one pair over different direct paths take channels equal to their path's number
    modulo the number of the pair's `paths` (at least of those connected), which is how a runtime spreads channels over
    links. Raises `Refused` when the
    target has too few channels.
    """
    ways = dict(paths)
    for src, dst, path in widths:
        ways[src, dst] = max(ways.get((src, dst), 1), path + 1)
    used: dict[tuple[str, int, int], int] = defaultdict(int)
    of = {}
    for connection in sorted(widths):
        src, dst, path = connection
        channels = []
        for channel in range(path, target.max_channels, ways[src, dst]):
            ends = (("s", src, channel), ("r", dst, channel))
            if any(used[end] >= target.max_threadblocks_per_channel for end in ends):
                continue
            for end in ends:
                used[end] += 1
            channels.append(channel)
            if len(channels) == widths[connection]:
                break
        else:
            raise Refused(
                f"the connection from rank {src} to rank {dst} needs {widths[connection]} channels and target "
                f"{target.name} has {target.max_channels}; synthesize with fewer --chunks"
            )
        of[connection] = tuple(channels)
    return ChannelPlan(of)


@dataclass(frozen=True)
class Transfer:
    """One transfer of the schedule, as far as channels care."""

    connection: Connection
    nbytes: float
    start_us: float
    arrival_us: float


def widths_for(
    transfers: Iterable[Transfer], credits: int, threadblock_GBps: float | None, finish_us: float
) -> dict[Connection, int]:
    """Channels that each connection needs to keep the schedule's pace.

    A channel has `credits` transfers in flight before its sender blocks, so as many channels as the schedule's
    transfers in flight fill; and its threadblock moves at most `threadblock_GBps`, so as many as carry the
    connection's bytes by `finish_us`.
    """
    of: dict[Connection, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        of[transfer.connection].append(transfer)
    return {
        connection: max(1, ceil(most_at_once(group) / credits), _by_rate(group, threadblock_GBps, finish_us))
        for connection, group in of.items()
    }


def halved(widths: Mapping[Connection, int]) -> dict[Connection, int]:
    """Half of every width, at least 1."""
    return {connection: ceil(width / 2) for connection, width in widths.items()}


def most_threadblocks(widths: Mapping[Connection, int], paired: bool) -> int:
    """Threadblocks for transfers of the rank that has most: one per connection end and channel; what goes to a peer
    and comes from it shares one where they are `paired`."""
    ways: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])  # rank, peer → sending and receiving ones
    for (src, dst, _), width in widths.items():
        ways[src, dst][0] += width
        ways[dst, src][1] += width
    at: dict[int, int] = defaultdict(int)
    for (rank, _), (sending, receiving) in ways.items():
        at[rank] += max(sending, receiving) if paired else sending + receiving
    return max(at.values(), default=0)


def _by_rate(group: list[Transfer], threadblock_GBps: float | None, finish_us: float) -> int:
    if not threadblock_GBps or finish_us <= 0:
        return 1
    rate_GBps = sum(transfer.nbytes for transfer in group) / (finish_us * 1e3)
    return min(len(group), ceil(rate_GBps / threadblock_GBps - 1e-9))


def most_at_once(group: list[Transfer]) -> int:
    """How many of the transfers are in flight at the busiest moment."""
    ends = sorted(transfer.arrival_us for transfer in group)
    finished = most = 0
    for begun, start in enumerate(sorted(transfer.start_us for transfer in group), start=1):
        while finished < begun - 1 and ends[finished] <= start:
            finished += 1
        most = max(most, begun - finished)
    return most
