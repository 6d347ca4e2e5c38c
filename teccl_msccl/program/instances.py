"""Passes on the schedule: every chunk in parts, that move side by side, or round after round.

Starts are nominal: they say in which order links serve the parts.
"""

from __future__ import annotations

from dataclasses import replace

from ..collective.demand import Demand
from ..schedule.schedule import Schedule


def replicated(schedule: Schedule, instances: int) -> Schedule:
    """`schedule` with every chunk cut into `instances` parts, which follow one another over every link.

    Threadblocks move a limited number of bytes a second; on channels of their own, the parts of a transfer share
    several (MSCCLang's instances, arXiv 2201.11840 §5.3).
    """
    if instances == 1:
        return schedule
    links, chunks = schedule.topology.link_by_id, schedule.demand.chunks
    sends = []
    for send in schedule.sends:
        # Parts go one by one at the pace of the slowest link, as the whole went over it.
        pace_us = max(links[link].beta_us(chunks[send.chunk].bytes / instances) for link in send.path)
        sends += [
            send._replace(chunk=send.chunk * instances + part, start_us=send.start_us + part * pace_us)
            for part in range(instances)
        ]
    return replace(schedule, demand=_cut(schedule.demand, instances), sends=tuple(sends))


def unrolled(schedule: Schedule, rounds: int) -> Schedule:
    """`schedule` `rounds` times in a row, each time with another part of every chunk.

    That is what a runtime does with chunks that are larger than a slot, but it loops over the program, and
    threadblocks run ahead of one another from one iteration to the next; within a program they can wait.
    """
    if rounds == 1:
        return schedule
    sends = tuple(
        send._replace(chunk=send.chunk * rounds + part, start_us=(part * schedule.finish_us + send.start_us) / rounds)
        for part in range(rounds)
        for send in schedule.sends
    )
    return replace(schedule, demand=_cut(schedule.demand, rounds), sends=sends)


def _cut(demand: Demand, parts: int) -> Demand:
    """The demand with every chunk as `parts` chunks in a row."""
    chunks = tuple(
        replace(chunk, id=chunk.id * parts + part, bytes=chunk.bytes / parts)
        for chunk in demand.chunks
        for part in range(parts)
    )
    return replace(demand, chunks=chunks, nchunks=demand.nchunks * parts)
