"""Passes on the schedule: every chunk in parts, that move side by side, or round after round; or chunks as one.

Starts are nominal: they say in which order links serve the parts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ..collective.demand import Chunk, Demand
from ..errors import Refused
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


def unrolled(schedule: Schedule, rounds: int, staggered: bool = False) -> Schedule:
    """`schedule` `rounds` times in a row, each time with another part of every chunk.

    That is what a runtime does with chunks that are larger than a slot, but it loops over the program, and
    threadblocks run ahead of one another from one iteration to the next; within a program they can wait.

    `staggered`: every hop of a chunk comes a round later than the hop before it. So links have other rounds to serve
    while one is late, at the price of as many rounds in which not all links are busy as chunks have hops.
    """
    if rounds == 1:
        return schedule
    round_us = schedule.finish_us / rounds
    late = _hops_before(schedule) if staggered else [0] * len(schedule.sends)
    sends = tuple(
        send._replace(chunk=send.chunk * rounds + part, start_us=(part + hops) * round_us + send.start_us / rounds)
        for part in range(rounds)
        for send, hops in zip(schedule.sends, late, strict=True)
    )
    return replace(schedule, demand=_cut(schedule.demand, rounds), sends=sends)


def _hops_before(schedule: Schedule) -> list[int]:
    """For each send the most hops that its chunk, or a part of the sum, has made before it."""
    made: dict[tuple[int, int], int] = {}  # chunk, rank → the most hops that it came by
    hops = [0] * len(schedule.sends)
    for i in sorted(range(len(hops)), key=lambda i: schedule.sends[i].start_us):
        send = schedule.sends[i]
        source, target = schedule.ends(send)
        hops[i] = made.get((send.chunk, source), 0)
        made[send.chunk, target] = max(made.get((send.chunk, target), 0), hops[i] + 1)
    return hops


def gathered(schedule: Schedule, together: int) -> Schedule:
    """`schedule` with `together` times larger chunks, as many fewer: of those that are alike in origin and destination
    each goes the way of several of the schedule's, of such as go the same way where there are.

    Where latency counts most, a schedule keeps many small chunks under way, and threadblocks have but few credits.
    Raises `Refused` where that many of a share are not alike.
    """
    if together == 1:
        return schedule
    demand, sends = schedule.demand, defaultdict(list)
    for send in sorted(schedule.sends, key=lambda send: send.start_us):
        sends[send.chunk].append(send)
    alike: dict[Chunk, list[int]] = defaultdict(list)
    for chunk in demand.chunks:
        alike[replace(chunk, id=0)].append(chunk.id)
    moved = []
    for ids in alike.values():
        if len(ids) % together or ids[0] % together or ids != [*range(ids[0], ids[-1] + 1)]:
            raise Refused(f"{demand.collective}: chunks that are alike are not to be had {together} at a time")
        way = {id: sorted((send.path, send.reduce) for send in sends[id]) for id in ids}
        firsts = sorted(ids, key=lambda id: (way[id], [send.start_us for send in sends[id]]))[::together]
        for first, place in zip(firsts, ids[::together], strict=True):
            moved += [send._replace(chunk=place // together) for send in sends[first]]
    chunks = tuple(
        replace(chunk, id=id, bytes=chunk.bytes * together) for id, chunk in enumerate(demand.chunks[::together])
    )
    larger = replace(demand, chunks=chunks, nchunks=demand.nchunks // together)
    # Larger chunks take longer: the starts have to say so, or the parts of chunks that are cut again overtake sums.
    return replace(schedule, demand=larger, sends=tuple(moved)).retimed()


def _cut(demand: Demand, parts: int) -> Demand:
    """The demand with every chunk as `parts` chunks in a row."""
    chunks = tuple(
        replace(chunk, id=chunk.id * parts + part, bytes=chunk.bytes / parts)
        for chunk in demand.chunks
        for part in range(parts)
    )
    return replace(demand, chunks=chunks, nchunks=demand.nchunks * parts)
