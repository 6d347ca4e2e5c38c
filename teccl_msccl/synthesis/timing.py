"""What a send on a grid occupies, and when it is there: as the topology says, or under rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import ceil, floor

import numpy as np

from ..schedule.schedule import Schedule, Send
from ..topology.model import Topology
from .epochs import EpochGrid
from .formulation import Ints
from .rules import Rules

#: Times that differ by less than this share of an epoch are one.
_SAME = 1e-9
#: Epochs that are as good as never.
_NEVER = 2**40


class Timing:
    """Epochs of sends on `grid` under `rules`, counted from the epoch in which a send starts.

    Where rules constrain, a link takes one send at a time, from when the head reaches it until all has crossed.
    """

    def __init__(self, grid: EpochGrid, rules: Rules) -> None:
        self.grid = grid
        self.rules = rules

    @cached_property
    def hops(self) -> Ints:
        """Links of each path."""
        return np.array([len(path.links) for path in self.grid.paths], np.int64)

    @cached_property
    def links(self) -> Ints:
        """The links of all paths, one path after the other."""
        return np.array([link for path in self.grid.paths for link in path.links], np.int64)

    @cached_property
    def _path_and_hop(self) -> list[tuple[int, int]]:
        return [(p, hop) for p, path in enumerate(self.grid.paths) for hop in range(len(path.links))]

    def arrival(self, path: int, epoch: int) -> int:
        """Epochs until a chunk is there."""
        if not self.rules.constrain:
            return self.grid.arrival[path]
        takes_us = self._takes_us(path, epoch * self.grid.tau_us, self.grid.chunk_bytes)
        return max(1, _ceil(takes_us / self.grid.tau_us - _SAME))

    def window(self, crossing: int, epoch: int) -> range:
        """Epochs in which a send keeps others off the link at place `crossing` of `links`."""
        link = int(self.links[crossing])
        if not self.rules.constrain:
            return range(self.grid.span[link])
        path, hop = self._path_and_hop[crossing]
        start_us = epoch * self.grid.tau_us
        begin, end = ((time - start_us) / self.grid.tau_us for time in self._window_us(path, hop, start_us))
        first = floor(min(begin + _SAME, _NEVER))
        return range(first, max(first + 1, _ceil(end - _SAME)))

    def arrivals(self, path: Ints, epoch: Ints) -> Ints:
        """`arrival` of each."""
        return self._each(self.arrival, path, epoch)

    def windows(self, crossing: Ints, epoch: Ints) -> tuple[Ints, Ints]:
        """Where `window` begins, and how long it is, of each."""
        begins = self._each(lambda crossing, epoch: self.window(crossing, epoch).start, crossing, epoch)
        return begins, self._each(lambda crossing, epoch: len(self.window(crossing, epoch)), crossing, epoch)

    def capacity(self, link: int) -> int:
        """Sends that may occupy the link at once."""
        return 1 if self.rules.constrain else self.grid.capacity[link]

    def arrival_us(self, schedule: Schedule, send: Send) -> float:
        """When a send of the schedule is there."""
        return arrival_us(schedule, send, self.rules)

    @cached_property
    def path_of(self) -> dict[tuple[int, ...], int]:
        """Paths by their links."""
        return {path.links: p for p, path in enumerate(self.grid.paths)}

    def _window_us(self, path: int, hop: int, start_us: float) -> tuple[float, float]:
        links = self.grid.paths[path].links
        return window_us(self.grid.topology, links, hop, self.grid.chunk_bytes, start_us, self.rules)

    def _takes_us(self, path: int, start_us: float, nbytes: float) -> float:
        return takes_us(self.grid.topology, self.grid.paths[path].links, nbytes, start_us, self.rules)

    def _each(self, figure: Callable[[int, int], int], what: Ints, epoch: Ints) -> Ints:
        """The figure for every pair, worked out once for pairs that are alike."""
        if not self.rules.shares:
            epoch = np.zeros_like(epoch)  # it is the same in all
        most = int(epoch.max(initial=0)) + 1
        alike, inverse = np.unique(what * most + epoch, return_inverse=True)
        return np.array([figure(*divmod(pair, most)) for pair in alike.tolist()], np.int64)[inverse]


def takes_us(topology: Topology, links: Sequence[int], nbytes: float, start_us: float, rules: Rules) -> float:
    """How long a send of `nbytes` takes from GPU to GPU if it starts then."""
    alone = {id: topology.link_by_id[id].beta_us(nbytes) for id in links}
    return sum(topology.link_by_id[id].alpha_us for id in links) + rules.takes_us(alone, start_us)


def window_us(
    topology: Topology, links: Sequence[int], hop: int, nbytes: float, start_us: float, rules: Rules
) -> tuple[float, float]:
    """When a send of `nbytes` that starts then reaches a link of its path, and when it has crossed it."""
    head, slowest, alone = 0.0, 0.0, 0.0
    for id in links[: hop + 1]:
        alone = topology.link_by_id[id].beta_us(nbytes)
        slowest = max(slowest, alone)
        begin = start_us + head + slowest - alone
        head += topology.link_by_id[id].alpha_us
    return begin, begin + rules.takes_us({links[hop]: alone}, begin)


def arrival_us(schedule: Schedule, send: Send, rules: Rules) -> float:
    """When a send of the schedule is there."""
    nbytes = schedule.demand.chunks[send.chunk].bytes
    return send.start_us + takes_us(schedule.topology, send.path, nbytes, send.start_us, rules)


def _ceil(epochs: float) -> int:
    return ceil(min(epochs, _NEVER))
