"""From a schedule to an MSCCL++ plan: which of the schedule's programs it is made of."""

from __future__ import annotations

from dataclasses import replace

from ..errors import InputError, Refused, unknown
from ..schedule.schedule import Schedule
from .lower import lower
from .mscclpp import ExecutionPlan, execution_plan
from .mscclpp_multicast import multicast_plan
from .placement import MODES
from .program import PROTOCOLS, Program

#: Channels of a connection, and parts of a chunk, that are tried; None: as many as the program simulator likes best.
_WIDTHS = (None, 1)


def lower_plan(schedule: Schedule, *, mode: str | None = None, protocol: str = "auto") -> tuple[Program, ExecutionPlan]:
    """The program and the plan made of it: the fastest in simulation that keeps the plan's limits.

    `mode` is "outofplace" (the default) or "inplace": a plan serves one. Ranks of different hosts are joined by port
    channels. Where switches multicast, the plan is made of the schedule itself, and the program is that of the same
    sends as unicasts. Raises `InputError` for an option that a plan cannot have, `Refused` when no plan fits.
    """
    check_plan_names(mode, protocol)
    mode = mode or "outofplace"
    if schedule.multicasts():
        return _unicast(schedule, mode), multicast_plan(schedule, inplace=mode == "inplace")
    topology = schedule.topology
    hosts = [topology.node_by_id[gpu].host for gpu in topology.gpus]
    refusal: Refused | None = None
    for width in _WIDTHS:
        try:
            program = lower(schedule, mode=mode, protocol="Simple", spread=width, instances=width, fuse=False)
            return program, execution_plan(program, hosts=hosts)
        except Refused as error:
            refusal = error
    assert refusal is not None
    raise refusal


def check_plan_names(mode: str | None, protocol: str) -> None:
    """Raise `InputError` for a mode or protocol that does not exist, `Refused` for one that plans have not."""
    if mode == "both":
        raise InputError("target mscclpp has a plan for each mode; use mode inplace or outofplace")
    if mode is not None and mode not in MODES:
        raise unknown("mode", mode, MODES)
    if protocol not in (*PROTOCOLS, "auto"):
        raise unknown("protocol", protocol, ("auto", *PROTOCOLS))
    if protocol not in ("auto", "Simple"):
        raise Refused(f"target mscclpp: {protocol} would need packets; use protocol Simple")


def _unicast(schedule: Schedule, mode: str) -> Program:
    """The program of the same sends where no switch copies: what the plan is compared with."""
    topology = schedule.topology
    plain = replace(topology, nodes=tuple(replace(node, multicast=False) for node in topology.nodes))
    unicast = replace(schedule, topology=plain).retimed()
    return lower(unicast, mode=mode, protocol="Simple", spread=1, instances=1, fuse=False)
