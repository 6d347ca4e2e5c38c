"""Pass: on which channel each connection runs, and over how many channels a long one is spread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import Refused
from .targets import Target

Connection = tuple[int, int, int]


@dataclass(frozen=True)
class ChannelPlan:
    """The channels of every connection: its k-th transfer runs on channel `of[connection][k % len]`."""

    of: Mapping[Connection, tuple[int, ...]]

    @property
    def count(self) -> int:
        """How many channels the program declares."""
        return 1 + max((channel for channels in self.of.values() for channel in channels), default=0)

    def channel(self, connection: Connection, position: int) -> int:
        """The channel of the connection's transfer at `position`."""
        channels = self.of[connection]
        return channels[position % len(channels)]


def assign_channels(widths: Mapping[Connection, int], target: Target) -> ChannelPlan:
    """Give each connection as many channels as its width says, lowest first.

    A channel holds one threadblock per (rank, peer, direction), and a limited number of threadblocks per rank and
    direction. Connections of one pair over different direct paths take channels equal to their path's number
    modulo the number of paths, which is how a runtime spreads channels over links. Raises `Refused` when the
    target has too few channels.
    """
    paths: dict[tuple[int, int], int] = defaultdict(int)
    for src, dst, path in widths:
        paths[src, dst] = max(paths[src, dst], path + 1)
    used: dict[tuple[str, int, int], int] = defaultdict(int)
    of = {}
    for connection in sorted(widths):
        src, dst, path = connection
        channels = []
        for channel in range(path, target.max_channels, paths[src, dst]):
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


def widths_in_flight(transfers: Iterable[tuple[Connection, float, float]], credits: int) -> dict[Connection, int]:
    """Channels that each connection needs to have as many transfers in flight as the schedule has.

    `transfers` are (connection, start, arrival); a channel has `credits` of them in flight before its sender blocks.
    """
    times: dict[Connection, list[tuple[float, float]]] = defaultdict(list)
    for connection, start, arrival in transfers:
        times[connection].append((start, arrival))
    return {connection: -(-_most_at_once(spans) // credits) for connection, spans in times.items()}


def _most_at_once(spans: list[tuple[float, float]]) -> int:
    ends = sorted(end for _, end in spans)
    finished = most = 0
    for begun, (start, _) in enumerate(sorted(spans), start=1):
        while finished < begun - 1 and ends[finished] <= start:
            finished += 1
        most = max(most, begun - finished)
    return most
