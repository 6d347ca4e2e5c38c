"""Point-to-point times from the traces of real collectives ($TECCL_TRACE, a file rank-R.json for each rank)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..files import read_json
from .calibrate import Measurement
from .model import Topology


class _Event(NamedTuple):
    rank: int
    nbytes: int
    begin_us: float
    end_us: float
    clock: str


def read_traces(directory: Path, topology: Topology) -> list[Measurement]:
    """The least time of every size between every two ranks: what the sender spent on a message, and the receiver from
    when both were at it. Messages between hosts, whose clocks differ, are left out. O(events).

    Raises `InputError` for a folder without traces, of more ranks than `topology`, or without messages.
    """
    files = sorted(directory.glob("rank-*.json")) if directory.is_dir() else []
    if not files:
        raise InputError(f"{directory}: has no rank-R.json; name the folder that TECCL_TRACE named")
    sends: dict[str, _Event] = {}
    receives: list[tuple[str, _Event]] = []
    for path in files:
        for kind, message, event in _events(path):
            if event.rank >= topology.nranks:
                raise InputError(f"{path}: is of rank {event.rank}, and {topology.name} has {topology.nranks} ranks")
            if kind == "send":
                sends[message] = event
            else:
                receives.append((message, event))
    least: dict[tuple[int, int, int], float] = {}
    for message, received in receives:
        sent = sends.get(message)
        if sent is None or sent.clock != received.clock or sent.nbytes != received.nbytes or sent.nbytes == 0:
            continue
        time_us = sent.end_us - sent.begin_us + received.end_us - max(received.begin_us, sent.end_us)
        key = (sent.rank, received.rank, sent.nbytes)
        if time_us > 0:
            least[key] = min(time_us, least.get(key, time_us))
    if not least:
        raise InputError(f"{directory}: no message whose sender and receiver were both traced on one host")
    return [Measurement(*key, time_us, str(directory)) for key, time_us in sorted(least.items())]


def _events(path: Path) -> Iterator[tuple[str, str, _Event]]:
    """The sends and receives of messages in one file."""
    value = read_json(path, "a trace")
    events = value.get("traceEvents") if isinstance(value, dict) else None
    if not isinstance(events, list):
        raise InputError(f"{path}: has no traceEvents; name a folder that TECCL_TRACE named")
    clock = str(value.get("clock", ""))
    for number, each in enumerate(events):
        more: Any = each.get("args", {}) if isinstance(each, dict) else None
        if not isinstance(more, dict):
            raise InputError(f"{path}: event {number} is no event of a trace")
        message = more.get("message")
        if not message:
            continue
        try:
            event = _Event(each["pid"], more["bytes"], each["ts"], each["ts"] + each["dur"], clock)
        except (KeyError, TypeError):
            raise InputError(f"{path}: event {number} is no event of a trace") from None
        yield ("send" if str(each.get("name", "")).startswith("send") else "receive"), str(message), event
