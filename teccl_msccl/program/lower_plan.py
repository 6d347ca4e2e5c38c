"""From a schedule to an MSCCL++ plan: which of the schedule's programs it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..errors import InputError, Refused, unknown
from ..schedule.schedule import Schedule
from .instances import gathered
from .lower import lower
from .mscclpp import ExecutionPlan, execution_plan
from .mscclpp_multicast import multicast_plan
from .placement import MODES
from .plan_file import plan_file
from .program import PROTOCOLS, Program
from .simulate_plan import simulate_plan
from .targets import PLAN_PROTOCOLS

#: Links that a handshake crosses, at most: through a switch.
_HANDSHAKE_HOPS = 2


def lower_plan(schedule: Schedule, *, mode: str | None = None, protocol: str = "auto") -> tuple[Program, ExecutionPlan]:
    """The program and the plan made of it: the fastest in simulation that keeps the plan's limits,
    if need be with fewer and larger chunks.

    `mode` is "outofplace" (the default) or "inplace": a plan serves one. `protocol` is Simple, LL (packets), or "auto":
    the one whose plan is the faster in simulation. Ranks of different hosts are joined by port channels. Where switches
    multicast, the plan is made of the schedule itself, and the program is that of the same sends as unicasts. Raises
    `InputError` for an option that a plan cannot have, `Refused` when no plan fits.
    """
    check_plan_names(mode, protocol)
    mode = mode or "outofplace"
    if schedule.multicasts():
        if protocol == "LL":
            raise Refused("target mscclpp: switches multicast no packets; use protocol Simple")
        return _unicast(schedule, mode), multicast_plan(schedule, inplace=mode == "inplace")
    if protocol != "auto":
        return _of_protocol(schedule, mode, protocol)
    if not _latency_counts(schedule):
        return _of_protocol(schedule, mode, "Simple")
    made: list[tuple[Program, ExecutionPlan]] = []
    refusals: list[Refused] = []
    for each in PLAN_PROTOCOLS:
        try:
            made.append(_of_protocol(schedule, mode, each))
        except Refused as refusal:
            refusals.append(refusal)
    if not made:
        raise refusals[0]
    return min(made, key=lambda pair: plan_finish_us(pair[1], schedule))


def check_plan_names(mode: str | None, protocol: str) -> None:
    """Raise `InputError` for a mode or protocol that does not exist, `Refused` for one that plans have not."""
    if mode == "both":
        raise InputError("target mscclpp has a plan for each mode; use mode inplace or outofplace")
    if mode is not None and mode not in MODES:
        raise unknown("mode", mode, MODES)
    if protocol not in (*PROTOCOLS, "auto"):
        raise unknown("protocol", protocol, ("auto", *PROTOCOLS))
    if protocol not in ("auto", *PLAN_PROTOCOLS):
        raise Refused(f"target mscclpp has no {protocol}; use protocol {' or '.join(PLAN_PROTOCOLS)}")


def _latency_counts(schedule: Schedule) -> bool:
    """Whether packets, twice their data, could pay: they save a latency, which a chunk's second half may not cost."""
    links = schedule.topology.links
    chunk_us = max(chunk.bytes for chunk in schedule.demand.chunks) / max(link.bandwidth_GBps for link in links) / 1e3
    return chunk_us <= _HANDSHAKE_HOPS * max(link.alpha_us for link in links)


def _of_protocol(schedule: Schedule, mode: str, protocol: str) -> tuple[Program, ExecutionPlan]:
    topology = schedule.topology
    hosts = [topology.node_by_id[gpu].host for gpu in topology.gpus]
    refusal: Refused | None = None  # of the schedule as it is
    for together, width in _shapes(schedule.demand.nchunks):
        try:
            larger = gathered(schedule, together)
            program = lower(
                larger, mode=mode, protocol=protocol, spread=width, instances=width, fuse=False, unroll=False
            )
            return program, execution_plan(program, hosts=hosts)
        except Refused as error:
            refusal = refusal if together > 1 else error
    assert refusal is not None
    raise refusal


def _shapes(nchunks: int) -> Iterator[tuple[int, int | None]]:
    """How many chunks of a share go together, and how many channels a connection and how many parts a chunk has (None:
    as many as the program simulator likes best): chunks as they are, then about twice as large, and so on."""
    yield from ((1, None), (1, 1))
    together = 1
    for larger in range(2, nchunks + 1):
        if nchunks % larger == 0 and larger >= 2 * together:
            together = larger
            yield together, 1


def plan_finish_us(plan: ExecutionPlan, schedule: Schedule) -> float:
    """The simulated time (µs) of a plan at its schedule's size, launching apart."""
    read = plan_file(plan.value, str(plan.value["name"]))
    return simulate_plan(read, schedule.topology, schedule.demand.size_bytes).finish_us


def _unicast(schedule: Schedule, mode: str) -> Program:
    """The program of the same sends where no switch copies: what the plan is compared with."""
    topology = schedule.topology
    plain = replace(topology, nodes=tuple(replace(node, multicast=False) for node in topology.nodes))
    unicast = replace(schedule, topology=plain).retimed()
    return lower(unicast, mode=mode, protocol="Simple", spread=1, instances=1, fuse=False, unroll=False)
