"""One group's part of a schedule: what its own ranks do, and when it is done."""

from __future__ import annotations

from dataclasses import replace

from ..errors import Refused
from ..topology.without import only
from .schedule import Schedule


def of_group(schedule: Schedule, number: int) -> Schedule:
    """The part of group `number`, its ranks counted 0, 1, 2… in their order, at the same times.

    Raises `Refused` where other GPUs relay the group's data.
    """
    demand, group = schedule.demand, schedule.demand.groups[number]
    new_id = {chunk.id: id for id, chunk in enumerate(chunk for chunk in demand.chunks if chunk.group == number)}
    sends = [send for send in schedule.sends if send.chunk in new_id]
    for send in sends:
        outside = set(schedule.ends(send)) - set(group.ranks)
        if outside:
            raise Refused(f"GPU {min(outside)} relays data of group {number}, so its ranks alone have no program")
    part = Schedule(
        topology=only(schedule.topology, group.ranks),
        demand=demand.of_group(number),
        sends=tuple(send._replace(chunk=new_id[send.chunk]) for send in sends),
        finish_us=0.0,
    )
    return replace(part, finish_us=max(map(part.arrival_us, part.sends), default=0.0))


def group_finish_us(schedule: Schedule, number: int) -> float:
    """When the last chunk of group `number` has arrived."""
    chunks = schedule.demand.chunks
    mine = (send for send in schedule.sends if chunks[send.chunk].group == number)
    return max(map(schedule.arrival_us, mine), default=0.0)
