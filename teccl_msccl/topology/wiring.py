"""Wiring: how a board's own description joins its hosts GPU to GPU, where no NICs are modelled.

A host's JSON may carry `"network"`, a list of which the first entry that allows the number of hosts is used:

- `{"most_hosts": 2, "links": [{"src": 0, "dst": 1, "bandwidth_GBps", "alpha_us"}]}`: from local rank `src` of every
  host to local rank `dst` of every other;
- `{"switch": "IB", "up": [{"rank": 0, …}], "down": [{"rank": 1, …}]}`: from local ranks up to one switch that all
  hosts share, and down from it.

A text in its place (`"network": "single-switch"`) names the network that joins the board's NICs (see `network`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from .model import Topology


@dataclass(frozen=True)
class Wire:
    """One direction of a wire; `src` and `dst` are local ranks, None the switch that all hosts share."""

    src: int | None
    dst: int | None
    bandwidth_GBps: float
    alpha_us: float


@dataclass(frozen=True)
class Wiring:
    """The wires that every host has, and the name of the switch they meet at ("" for direct links)."""

    switch: str
    wires: tuple[Wire, ...]


def wiring_of(host: Topology, hosts: int) -> Wiring | None:
    """The wiring that `host` describes for `hosts` hosts, None where it describes none. Raises `InputError`."""
    entries = host.extra.get("network")
    if entries is None or isinstance(entries, str):
        return None
    if not isinstance(entries, list):
        raise InputError(f'{host.name}: "network" must be a list of wirings')
    most = 0
    for i, entry in enumerate(entries):
        where = f"{host.name}: network[{i}]"
        if not isinstance(entry, dict):
            raise InputError(f'{where}: must be an object with "links", or with "switch", "up" and "down"')
        limit = entry.get("most_hosts", math.inf)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)):
            raise InputError(f"{where}: most_hosts must be a number")
        if hosts <= limit:
            return _read(entry, where, host.nranks)
        most = max(most, int(limit))
    raise InputError(f"{host.name}: {hosts} hosts; its own network joins at most {most}; ask for fewer hosts")


def _read(entry: Mapping[str, Any], where: str, nranks: int) -> Wiring:
    direct = "links" in entry
    keys = [("links", "src", "dst")] if direct else [("up", "rank", ""), ("down", "", "rank")]
    wires: list[Wire] = []
    for key, src, dst in keys:
        items = entry.get(key)
        if not isinstance(items, list):
            raise InputError(f"{where}: {key!r} must be a list of wires")
        for j, item in enumerate(items):
            if not isinstance(item, dict):
                raise InputError(f"{where}: {key}[{j}] must be an object")
            place = f"{where}: {key}[{j}]"
            wires.append(
                Wire(
                    _local_rank(item, src, place, nranks),
                    _local_rank(item, dst, place, nranks),
                    _figure(item, "bandwidth_GBps", place),
                    _figure(item, "alpha_us", place),
                )
            )
    return Wiring("" if direct else str(entry.get("switch", "network")), tuple(wires))


def _local_rank(item: Mapping[str, Any], key: str, where: str, nranks: int) -> int | None:
    if not key:
        return None
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < nranks:
        raise InputError(f"{where}: {key} must be a local rank, 0 to {nranks - 1}")
    return value


def _figure(item: Mapping[str, Any], key: str, where: str) -> float:
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{where}: {key} must be a number")
    return float(value)
