"""Pass: several instances of a schedule side by side, each on a part of every chunk."""

from __future__ import annotations

from dataclasses import replace

from ..schedule.schedule import Schedule


def replicated(schedule: Schedule, instances: int) -> Schedule:
    """`schedule` with every chunk cut into `instances` parts, which follow one another over every link.

    Threadblocks move a limited number of bytes a second; on channels of their own, the parts of a transfer share
    several (MSCCLang's instances, arXiv 2201.11840 §5.3). No part arrives later than its chunk did.
    """
    if instances == 1:
        return schedule
    demand = schedule.demand
    chunks = tuple(
        replace(chunk, id=chunk.id * instances + part, bytes=chunk.bytes / instances)
        for chunk in demand.chunks
        for part in range(instances)
    )
    links = schedule.topology.link_by_id
    sends = []
    for send in schedule.sends:
        # Parts go one by one at the pace of the slowest link, as the whole went over it.
        pace_us = max(links[link].beta_us(demand.chunks[send.chunk].bytes / instances) for link in send.path)
        sends += [
            send._replace(chunk=send.chunk * instances + part, start_us=send.start_us + part * pace_us)
            for part in range(instances)
        ]
    cut = replace(demand, chunks=chunks, nchunks=demand.nchunks * instances)
    return replace(schedule, demand=cut, sends=tuple(sends)).retimed()
