"""Flows of a schedule: what a synthesized collective sends between hosts, phase by phase."""

from __future__ import annotations

import heapq
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..files import read_json, require_keys
from ..schedule.schedule import Schedule, Send
from .exact import whole
from .fabric import Clos
from .traffic import Flow, Traffic


class Placement(NamedTuple):
    """Where a collective's ranks are: `hosts[rank]` is a host (NIC) of the fabric; `job` names their job."""

    fabric: Clos
    hosts: tuple[int, ...]
    job: str

    @classmethod
    def read(cls, path: str | Path) -> Placement:
        """Read `{"fabric": …, "hosts": [host of rank 0, …], "job": "J"}`. Raises `InputError`."""
        value = read_json(path, "a placement")
        require_keys(value, ("fabric", "hosts"), str(path))
        fabric = Clos.from_json(value["fabric"], f"{path}: fabric")
        if not isinstance(value["hosts"], list):
            raise InputError(f"{path}: 'hosts' must be a list, the host of each rank")
        hosts = tuple(whole(host, f"{path}: hosts[{i}]") for i, host in enumerate(value["hosts"]))
        for rank, host in enumerate(hosts):
            if not 0 <= host < fabric.hosts:
                raise InputError(f"{path}: hosts[{rank}]: no host {host} among 0..{fabric.hosts - 1}")
        return cls(fabric, hosts, str(value.get("job", "")))


def phases(schedule: Schedule) -> list[list[Send]]:
    """The sends by the number of earlier sends that their data went through: a ring's steps, a tree's levels.

    A send depends on what brought its chunk to its source (all of what did, for a reduction). O(sends log sends).
    """
    last: dict[tuple[int, int], int] = {}  # (chunk, rank) → the latest phase that brought it there
    found: list[list[Send]] = []
    on_the_way: list[tuple[float, int, int, int]] = []  # (arrival, phase, chunk, rank)
    for send in sorted(schedule.sends, key=lambda send: send.start_us):
        source, target = schedule.ends(send)
        while on_the_way and on_the_way[0][0] <= send.start_us * (1 + 1e-9):
            _, phase, chunk, rank = heapq.heappop(on_the_way)
            last[chunk, rank] = max(last.get((chunk, rank), -1), phase)
        phase = last.get((send.chunk, source), -1) + 1
        while len(found) <= phase:
            found.append([])
        found[phase].append(send)
        heapq.heappush(on_the_way, (schedule.arrival_us(send), phase, send.chunk, target))
    return found


def flows_of(schedule: Schedule, placement: Placement) -> Traffic:
    """A flow for each pair of hosts that exchange data in a phase, weighted by the bytes; phase k is collective
    JOB/COLLECTIVE.k, and phases do not share links. What stays in a host is left out.

    Raises `InputError` unless the placement has a host for every rank.
    """
    if len(placement.hosts) != schedule.topology.nranks:
        raise InputError(
            f"the placement has {len(placement.hosts)} hosts, and the schedule {schedule.topology.nranks} ranks; give "
            "one host per rank"
        )
    job = placement.job or schedule.demand.collective
    flows: list[Flow] = []
    for number, sends in enumerate(phases(schedule)):
        carried: dict[tuple[int, int, int, int], Fraction] = {}
        for send in sends:
            source, target = schedule.ends(send)
            src, dst = placement.hosts[source], placement.hosts[target]
            if src != dst:
                key = (src, dst, source, target)
                nbytes = Fraction(schedule.demand.chunks[send.chunk].bytes)
                carried[key] = carried.get(key, Fraction(0)) + nbytes
        for (src, dst, source, target), nbytes in sorted(carried.items()):
            if nbytes:
                name = f"{job}/{schedule.demand.collective}.{number}"
                extra: tuple[tuple[str, Any], ...] = (("rank", source), ("peer", target))
                flows.append(Flow(name, src, dst, nbytes, job, number, extra))
    return Traffic(placement.fabric, tuple(flows))
