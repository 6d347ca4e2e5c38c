"""The event simulation of a schedule: the only clock, whichever method made it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf

from .. import _core
from ..collective.demand import Demand
from ..errors import Refused
from ..topology.model import Topology
from ..topology.paths import trunk
from .schedule import Schedule, Send, check_path
from .validate import TOLERANCE


def core_network(topology: Topology, paths: Collection[tuple[int, ...]], multicast: bool = True) -> _core.Network:
    """The topology and the given paths (link ids) as the C++ core takes them; paths keep their order. With `multicast`
    switches that can duplicate what is sent on several paths at once."""
    position = {link.id: i for i, link in enumerate(topology.links)}
    by_id = topology.link_by_id
    trunks = [trunk(topology, path) if multicast else 0 for path in paths]
    return _core.Network(
        ranks=topology.nranks,
        bandwidth_GBps=[link.bandwidth_GBps for link in topology.links],
        alpha_us=[link.alpha_us for link in topology.links],
        paths=[
            (
                topology.rank_of[by_id[path[0]].src],
                topology.rank_of[by_id[path[-1]].dst],
                [position[link] for link in path],
            )
            for path in paths
        ],
        **({"trunks": trunks} if any(trunks) else {}),
    )


def core_demand(demand: Demand) -> _core.Demanded:
    """The demand as the C++ core takes it."""
    chunks = [(c.bytes, c.reduce, list(c.origin), list(c.want)) for c in demand.chunks]
    if not demand.groups:
        return _core.Demanded(chunks=chunks)
    members = [sorted(group.ranks) if group.confined else [] for group in demand.groups]
    return _core.Demanded(
        chunks=chunks,
        holders=[members[chunk.group] for chunk in demand.chunks],
        weights=[demand.groups[chunk.group].weight for chunk in demand.chunks],
    )


def retime(schedule: Schedule) -> Schedule:
    """Left-shift: every send as early as its data and links allow, each link serving sends in the order it did.

    α is pipelined, β is occupancy, other nodes than GPUs are crossed cut-through. No send of a feasible schedule
    becomes later; where the starts are not feasible, the sends are played in their order instead. About
    O(sends · path length). Raises `Refused` when a GPU never holds what it sends.
    """
    ordered = sorted(schedule.sends, key=lambda send: send.start_us)
    network, chunks, ways = _core_sends(schedule.topology, ordered)
    with _refusing(schedule.demand):
        shifted = _core.left_shift(
            network, core_demand(schedule.demand), chunks, ways, [send.start_us for send in ordered]
        )
    starts, arrivals = (shifted[2].tolist(), shifted[3].tolist()) if shifted else ([], [])
    if shifted is None or _leave_before_their_sums(schedule, ordered, starts, arrivals):
        starts, arrivals = play(schedule.topology, schedule.demand, ordered)
    sends = tuple(Send(x.chunk, x.path, start, x.reduce) for x, start in zip(ordered, starts, strict=True))
    return replace(schedule, sends=sends, finish_us=max(arrivals, default=0.0))


def _leave_before_their_sums(
    schedule: Schedule, sends: Sequence[Send], starts: Sequence[float], arrivals: Sequence[float]
) -> bool:
    """Whether a send leaves a GPU before a part of its sum is there, or, from one that has passed its share on, before
    the whole sum has come back. The core knows only that such a GPU holds something of the chunk."""
    last_part: dict[tuple[int, int], float] = {}  # chunk, GPU → when the last reduced send arrives
    first_copy: dict[tuple[int, int], float] = {}
    passed_on: set[tuple[int, int]] = set()
    for send, arrival in zip(sends, arrivals, strict=True):
        source, target = schedule.ends(send)
        if send.reduce:
            last_part[send.chunk, target] = max(last_part.get((send.chunk, target), 0.0), arrival)
            passed_on.add((send.chunk, source))
        else:
            first_copy[send.chunk, target] = min(first_copy.get((send.chunk, target), inf), arrival)
    if not passed_on:
        return False
    for send, start in zip(sends, starts, strict=True):
        place = send.chunk, schedule.ends(send)[0]
        there = last_part.get(place, 0.0)
        if not send.reduce and place in passed_on:
            there = first_copy.get(place, inf)
        if there - start > TOLERANCE * max(1.0, start):
            return True
    return False


def play(topology: Topology, demand: Demand, ordered: Sequence[Send]) -> tuple[Sequence[float], Sequence[float]]:
    """Start and arrival times of sends played in the order given."""
    network, chunks, ways = _core_sends(topology, ordered)
    with _refusing(demand):
        _, _, starts, arrivals = _core.retime(network, core_demand(demand), chunks, ways)
    return starts.tolist(), arrivals.tolist()


def _core_sends(topology: Topology, sends: Sequence[Send]) -> tuple[_core.Network, list[int], list[int]]:
    """The paths that the sends use, and each send's chunk and path number."""
    paths = {path: i for i, path in enumerate(dict.fromkeys(send.path for send in sends))}
    for path in paths:
        check_path(path, topology, "schedule")
    multicast = not any(send.reduce for send in sends)
    return (
        core_network(topology, paths, multicast),
        [send.chunk for send in sends],
        [paths[send.path] for send in sends],
    )


@contextmanager
def _refusing(demand: Demand) -> Iterator[None]:
    """The core's objections in our words."""
    try:
        yield
    except ValueError as error:
        raise Refused(f"{demand.collective}: {error}") from None
