"""From a schedule to an MSCCL++ plan: which of the schedule's programs it is made of."""

from __future__ import annotations

from ..errors import InputError, Refused
from ..schedule.schedule import Schedule
from .lower import lower
from .mscclpp import ExecutionPlan, execution_plan
from .placement import MODES
from .program import Program

#: Channels of a connection, and parts of a chunk, that are tried; None: as many as the program simulator likes best.
_WIDTHS = (None, 1)


def lower_plan(schedule: Schedule, *, mode: str | None = None, protocol: str = "auto") -> tuple[Program, ExecutionPlan]:
    """The program and the plan made of it: the fastest in simulation that keeps the plan's limits.

    `mode` is "outofplace" (the default) or "inplace": a plan serves one. Ranks of different hosts are joined by port
    channels. Raises `InputError` for an option that a plan cannot have, `Refused` when no plan fits.
    """
    mode = mode or "outofplace"
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not one of target mscclpp's; use inplace or outofplace")
    if protocol not in ("auto", "Simple"):
        raise Refused(f"target mscclpp: {protocol} would need packets; use protocol Simple")
    topology = schedule.topology
    hosts = [topology.node_by_id[gpu].host for gpu in topology.gpus]
    refusal: Refused | None = None
    for width in _WIDTHS:
        try:
            program = lower(schedule, mode=mode, protocol="Simple", spread=width, instances=width)
            return program, execution_plan(program, hosts=hosts)
        except Refused as error:
            refusal = error
    assert refusal is not None
    raise refusal
