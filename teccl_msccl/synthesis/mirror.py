"""Reductions as copies run backwards: reduce-scatter from allgather, reduce from broadcast, allreduce from both."""

from __future__ import annotations

from dataclasses import replace

from ..collective.demand import Demand
from ..schedule.schedule import Schedule, Send
from ..topology.model import Topology


def mirrored(schedule: Schedule, topology: Topology, demand: Demand) -> Schedule:
    """Turn a copying `schedule` on `topology.reversed()` into one that meets the reducing `demand` on `topology`.

    Every send is reversed in time and direction and merges what it brings: the tree that spread a chunk from its
    origin now gathers it there. (ForestColl, arXiv 2402.06787, §2, and others before it.)
    """
    arrivals = _arrivals_us(schedule)
    backwards = [
        Send(send.chunk, send.path[::-1], schedule.finish_us - arrival, reduce=True)
        for send, arrival in zip(schedule.sends, arrivals, strict=True)
    ]
    # Equal times keep the reversed order, in which whatever a send merges comes before it.
    backwards.reverse()
    backwards.sort(key=lambda send: send.start_us)
    return Schedule(topology, demand, tuple(backwards), schedule.finish_us).retimed()


def _arrivals_us(schedule: Schedule) -> list[float]:
    """When each send has arrived; crossings worked out once for chunks of a size on a path."""
    known: dict[tuple[tuple[int, ...], float], float] = {}
    arrivals = []
    for send in schedule.sends:
        key = (send.path, schedule.demand.chunks[send.chunk].bytes)
        if key not in known:
            known[key] = schedule.arrival_us(send._replace(start_us=0.0))
        arrivals.append(send.start_us + known[key])
    return arrivals


def chained(reduce_scatter: Schedule, allgather: Schedule, demand: Demand) -> Schedule:
    """The allreduce that gathers every chunk at its owner and spreads it from there, the phases overlapping
    wherever links and data allow."""
    offset = reduce_scatter.finish_us
    second = tuple(Send(chunk, path, start + offset, merges) for chunk, path, start, merges in allgather.sends)
    whole = replace(reduce_scatter, demand=demand, sends=reduce_scatter.sends + second)
    return whole.retimed()
