"""Network: what joins hosts, as `--network` spells it: rail, fat-tree, single-switch, ring, or a file.

`rail:2` and `fat-tree:2` are oversubscribed two to one: the uplinks of a leaf switch have half the bandwidth of what
is below it. A file is a JSON object that names switches, the NICs that each joins, and the wires between switches:

    {"switches": [{"name": "leaf0", "joins": [{"hosts": [0, 1], "nics": "all"}]},
                  {"name": "leaf1", "joins": [{"hosts": [2, 3], "nics": [0, 2]}]},
                  {"name": "spine"}],
     "wires": [{"between": ["leaf0", "spine"], "bandwidth_GBps": 100.0, "alpha_us": 0.0}, …]}

`hosts` and `nics` are lists of numbers from 0 (NICs as `topo show` lists those near GPUs), or "all". A `joins` entry
may have its own `bandwidth_GBps` and `alpha_us`; else a NIC has its line rate and half of the network's latency.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, unknown
from ..files import read_json

KINDS = ("rail", "fat-tree", "single-switch", "ring")
HOSTS_PER_LEAF = 4

#: A figure above it is a slip of the keyboard.
_MOST = 1e12

#: What a figure of a network file must at least be.
_LEAST = {"bandwidth_GBps": "positive", "alpha_us": "0 or more"}

_SPELLING = re.compile(r"(rail|fat-tree|single-switch|ring)(?::(\d{1,4}(?:\.\d{1,3})?))?", re.IGNORECASE)


@dataclass(frozen=True)
class Cable:
    """NIC `nic` of host `host` to a switch; None: the NIC's line rate, half of the network's latency."""

    host: int
    nic: int
    switch: str
    bandwidth_GBps: float | None = None
    alpha_us: float | None = None


@dataclass(frozen=True)
class Uplink:
    """A wire between two switches (or two (host, nic) pairs), `bandwidth_GBps` each way."""

    one: str
    other: str
    bandwidth_GBps: float
    alpha_us: float = 0.0


@dataclass(frozen=True)
class Crossing:
    """A cable from NIC to NIC: two hosts without a switch between them."""

    one: tuple[int, int]
    other: tuple[int, int]


@dataclass(frozen=True)
class Plan:
    """Switches by name in order, and what is plugged into them."""

    name: str
    switches: tuple[str, ...] = ()
    cables: tuple[Cable, ...] = ()
    uplinks: tuple[Uplink, ...] = ()
    crossings: tuple[Crossing, ...] = ()


def check(network: str | None) -> None:
    """Raise `InputError` unless `network` is None, a known spelling, or a file that is there."""
    if network is None:
        return
    match = _SPELLING.fullmatch(network)
    if match is None:
        if os.path.lexists(network):
            return
        raise unknown(
            "network", network, ("rail", "fat-tree", "single-switch", "ring"),
            also=" or a network file (fat-tree:2 is oversubscribed two to one)",
        )  # fmt: skip
    if match[2] is not None:
        if match[1].lower() in ("single-switch", "ring"):
            raise InputError(f"network {network}: a {match[1]} has no uplinks to oversubscribe; use rail or fat-tree")
        if float(match[2]) < 1:
            raise InputError(f"network {network}: an oversubscription is 1 or more")


def plan(network: str, rates_GBps: Sequence[Sequence[float]]) -> Plan:
    """The switches and cables of `network` between hosts whose NICs have the given line rates. O(NICs)."""
    check(network)
    match = _SPELLING.fullmatch(network)
    if match is None:
        return _from_file(Path(network), [len(rates) for rates in rates_GBps])
    over = float(match[2]) if match[2] is not None else None
    kind = match[1].lower()
    if kind == "rail":
        return _rail(rates_GBps, over)
    if kind == "fat-tree":
        return _fat_tree(rates_GBps, over or 1.0)
    return _ring(rates_GBps) if kind == "ring" else _single_switch(rates_GBps)


def _rail(rates: Sequence[Sequence[float]], over: float | None) -> Plan:
    """NIC i of every host on rail switch i; with an oversubscription, a spine joins the rails."""
    rails = [f"rail{i}" for i in range(max(map(len, rates)))]
    cables = [Cable(host, i, rails[i]) for host, own in enumerate(rates) for i in range(len(own))]
    if over is None or len(rails) == 1:
        return Plan("rail", tuple(rails), tuple(cables))
    below = [math.fsum(own[i] for own in rates if i < len(own)) for i in range(len(rails))]
    uplinks = tuple(Uplink(rail, "spine", GBps / over) for rail, GBps in zip(rails, below, strict=True))
    return Plan(f"rail, {over:g}:1 to the spine", (*rails, "spine"), tuple(cables), uplinks)


def _fat_tree(rates: Sequence[Sequence[float]], over: float) -> Plan:
    """Leaf switches of four hosts each under one spine (all spine switches together, spread evenly, act as one)."""
    leaves = [f"leaf{i}" for i in range(-(-len(rates) // HOSTS_PER_LEAF))]
    cables = tuple(
        Cable(host, i, leaves[host // HOSTS_PER_LEAF]) for host, own in enumerate(rates) for i in range(len(own))
    )
    if len(leaves) == 1:
        return Plan("fat-tree of one leaf", tuple(leaves), cables)
    groups = [rates[first : first + HOSTS_PER_LEAF] for first in range(0, len(rates), HOSTS_PER_LEAF)]
    below = [math.fsum(rate for own in group for rate in own) for group in groups]
    uplinks = tuple(Uplink(leaf, "spine", GBps / over) for leaf, GBps in zip(leaves, below, strict=True))
    return Plan(f"fat-tree, {HOSTS_PER_LEAF} hosts a leaf, {over:g}:1", (*leaves, "spine"), cables, uplinks)


def _single_switch(rates: Sequence[Sequence[float]]) -> Plan:
    cables = tuple(Cable(host, i, "network") for host, own in enumerate(rates) for i in range(len(own)))
    return Plan("single-switch", ("network",), cables)


def _ring(rates: Sequence[Sequence[float]]) -> Plan:
    """Every host cabled to the next, the last to the first: the first half of its NICs to the second half of the
    next host's; an odd one left over has two ports, one each way."""
    nics = min(map(len, rates))
    half, odd = divmod(nics, 2)
    crossings = []
    for host in range(len(rates)):
        following = (host + 1) % len(rates)
        crossings += [Crossing((host, i), (following, half + i)) for i in range(half)]
        if odd and (len(rates) > 2 or host == 0):
            crossings.append(Crossing((host, nics - 1), (following, nics - 1)))
    return Plan("ring", crossings=tuple(crossings))


# -- files ---------------------------------------------------------------------------------------------------


def _from_file(path: Path, nnics: Sequence[int]) -> Plan:
    value = read_json(path, "a network")
    if not isinstance(value, dict) or not isinstance(value.get("switches"), list):
        raise InputError(f'{path}: a network is an object {{"switches": […], "wires": […]}}')
    _known_keys(value, ("switches", "wires"), str(path))
    names: list[str] = []
    cables: list[Cable] = []
    for i, switch in enumerate(value["switches"]):
        where = f"{path}: switches[{i}]"
        if not isinstance(switch, dict) or not isinstance(switch.get("name"), str):
            raise InputError(f"{where}: must be an object with a name")
        _known_keys(switch, ("name", "joins"), where)
        if switch["name"] in names:
            raise InputError(f"{where}: the name {switch['name']!r} is used twice")
        names.append(switch["name"])
        for j, joins in enumerate(_list(switch.get("joins", []), f"{where}: joins")):
            cables += _cables(joins, switch["name"], f"{where}: joins[{j}]", nnics)
    uplinks = []
    for i, wire in enumerate(_list(value.get("wires", []), f"{path}: wires")):
        where = f"{path}: wires[{i}]"
        ends = wire.get("between") if isinstance(wire, dict) else None
        if not isinstance(ends, list) or len(ends) != 2 or any(end not in names for end in ends):
            raise InputError(f"{where}: between must be two of the switches {', '.join(names[:8])}")
        if ends[0] == ends[1]:
            raise InputError(f"{where}: joins {ends[0]} to itself; name two switches")
        _known_keys(wire, ("between", "bandwidth_GBps", "alpha_us"), where)
        GBps = _figure(wire, "bandwidth_GBps", where)
        if GBps is None:
            raise InputError(f"{where}: bandwidth_GBps is missing; a wire between switches needs it")
        uplinks.append(Uplink(ends[0], ends[1], GBps, _figure(wire, "alpha_us", where) or 0.0))
    return Plan(path.name, tuple(names), tuple(cables), tuple(uplinks))


def _cables(joins: Any, switch: str, where: str, nnics: Sequence[int]) -> list[Cable]:
    if not isinstance(joins, dict):
        raise InputError(f"{where}: must be an object with hosts and nics")
    _known_keys(joins, ("hosts", "nics", "bandwidth_GBps", "alpha_us"), where)
    GBps, alpha_us = _figure(joins, "bandwidth_GBps", where), _figure(joins, "alpha_us", where)
    cables = []
    for host in _numbers(joins.get("hosts", "all"), len(nnics), f"{where}: hosts"):
        for nic in _numbers(joins.get("nics", "all"), nnics[host], f"{where}: nics of host {host}"):
            cables.append(Cable(host, nic, switch, GBps, alpha_us))
    return cables


def _numbers(value: Any, count: int, where: str) -> list[int]:
    if value == "all":
        return list(range(count))
    numbers = _list(value, where)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise InputError(f"{where}: {str(number)[:40]} is none of 0 to {count - 1}")
        if numbers.count(number) > 1:
            raise InputError(f"{where}: {number} is named twice")
    return numbers


def _known_keys(value: dict[str, Any], keys: Sequence[str], where: str) -> None:
    """Refuse a misspelt key, which would otherwise count as left out."""
    for key in value:
        if key not in keys:
            raise InputError(f"{where}: unknown key {key[:40]!r}; the keys are {', '.join(keys)}")


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f'{where}: must be a list, or "all" where numbers are due')
    return value


def _figure(value: dict[str, Any], key: str, where: str) -> float | None:
    figure = value.get(key)
    if figure is None:
        return None
    if isinstance(figure, bool) or not isinstance(figure, (int, float)):
        raise InputError(f"{where}: {key} must be a number")
    if not 0 <= figure <= _MOST or (figure == 0 and key == "bandwidth_GBps"):
        raise InputError(f"{where}: {key} is {str(figure)[:20]}; it must be {_LEAST[key]}, at most {_MOST:g}")
    return float(figure)
