"""Reading a schedule file, ours or another tool's: its content tells which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..collective.demand import COLLECTIVES, demand_for
from ..errors import InputError
from ..files import parse_json, read_bytes, xml_parser
from ..topology.model import Topology
from .foreign import ForeignSchedule
from .read_sccl import is_sccl, read_sccl
from .read_teccl import is_teccl, read_teccl
from .schedule import Schedule

if TYPE_CHECKING:
    from lxml import etree

_WHAT = "a schedule"


def read_schedule(path: str | Path, topology: Topology | None = None, size_bytes: float | None = None) -> Schedule:
    """The schedule in the file at `path`: our JSON, TE-CCL's, SCCL's, TACCL's, ForestColl's XML, or what a program in
    MSCCL XML carries out.

    `topology` is the machine that another tool's file is for, where it tells of none or not enough; `size_bytes`,
    counted as nccl-tests do, replaces the file's. Other tools' schedules are re-timed and proved. Raises
    `InputError` for a file that is none of these, `Refused` for a schedule that is not right.
    """
    read = _read(path)
    if isinstance(read, ForeignSchedule):
        return read.schedule(topology, size_bytes)
    return _ours(read, str(path), topology, size_bytes)


def read_start(path: str | Path, topology: Topology, size_bytes: float) -> Schedule:
    """A schedule to begin with: ours as it is, another tool's on `topology` at `size_bytes`. Raises as
    `read_schedule` does."""
    read = _read(path)
    if isinstance(read, ForeignSchedule):
        return read.schedule(topology, size_bytes)
    return _ours(read, str(path), None, None)


def _read(path: str | Path) -> ForeignSchedule | Any:
    """Another tool's schedule, or the JSON that may be ours."""
    data = read_bytes(path, _WHAT)
    where = str(path)
    if _is_xml(data):
        return _from_xml(data, where)
    value = parse_json(data, path, _WHAT)
    if is_teccl(value):
        return read_teccl(value, where)
    if is_sccl(value):
        return read_sccl(value, where)
    return value


def _is_xml(data: bytes) -> bool:
    """Whether the first sign is a "<", in any encoding of which XML makes use."""
    return data[:64].replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n").startswith(b"<")


def _from_xml(data: bytes, where: str) -> ForeignSchedule:
    from lxml import etree

    from .read_forestcoll import read_forestcoll

    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise InputError(f"{where}: has a DOCTYPE or entities; remove them")
    try:
        # As UTF-8, whatever it says: so runtimes take a program, and `check` and `run` with them.
        root: etree._Element = etree.fromstring(data, xml_parser(None if b"\0" in data else "utf-8"))
    except (etree.XMLSyntaxError, ValueError) as error:
        text = " ".join(str(error).split("(<string>")[0].split())
        raise InputError(f"{where}: not well-formed XML: {text}; write the file again") from None
    if root.tag == "algo":
        from ..program import lift, xml  # programs are made of schedules, so they import this folder

        return lift.lift(xml.parse(data, where), where)
    if root.tag == "Algo" or root.find("tree") is not None:
        return read_forestcoll(root, where)
    raise InputError(f"{where}: <{root.tag}> is no schedule; ForestColl's trees are in <Algo>")


def is_ours(value: Any) -> bool:
    """Whether the JSON `value` is meant for a schedule of ours."""
    return isinstance(value, dict) and "sends" in value


def _ours(value: Any, where: str, topology: Topology | None, size_bytes: float | None) -> Schedule:
    if isinstance(value, dict) and "gpus" in value:
        raise InputError(f"{where}: is an MSCCL++ execution plan, not a schedule; use check on it")
    schedule = Schedule.from_json(value, where)
    if topology is not None:
        raise InputError(f"{where}: a schedule has its topology in it; leave --topology out")
    try:
        return schedule if size_bytes is None else resized(schedule, size_bytes)
    except InputError as error:
        raise InputError(f"{where}: {error}; leave --size out") from None


def resized(schedule: Schedule, size_bytes: float) -> Schedule:
    """The same sends at another size, each as early as it goes. Raises `InputError` where size 0 is to become another
    one, and nothing tells how."""
    demand = schedule.demand
    if demand.collective in COLLECTIVES and not demand.groups:
        other = demand_for(demand.collective, demand.nranks, size_bytes, demand.nchunks, demand.root or 0)
    elif demand.size_bytes > 0:
        factor = size_bytes / demand.size_bytes
        chunks = tuple(replace(chunk, bytes=chunk.bytes * factor) for chunk in demand.chunks)
        other = replace(demand, chunks=chunks, size_bytes=size_bytes)
    else:
        raise InputError(f"{demand.collective}: of size 0 has no other size")
    return replace(schedule, demand=other).retimed()
