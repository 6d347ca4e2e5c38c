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
    backwards = [
        Send(send.chunk, tuple(reversed(send.path)), schedule.finish_us - schedule.arrival_us(send), reduce=True)
        for send in schedule.sends
    ]
    # Equal times keep the reversed order, in which whatever a send merges comes before it.
    backwards.reverse()
    backwards.sort(key=lambda send: send.start_us)
    return Schedule(topology, demand, tuple(backwards), schedule.finish_us).retimed()


def chained(reduce_scatter: Schedule, allgather: Schedule, demand: Demand) -> Schedule:
    """The allreduce that gathers every chunk at its owner and spreads it from there, the phases overlapping
    wherever links and data allow."""
    offset = reduce_scatter.finish_us
    second = tuple(send._replace(start_us=send.start_us + offset) for send in allgather.sends)
    whole = replace(reduce_scatter, demand=demand, sends=reduce_scatter.sends + second)
    return whole.retimed()
