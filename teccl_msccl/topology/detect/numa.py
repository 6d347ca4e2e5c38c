"""NUMA domains: which devices hang from the same CPU, from distances, NUMA ids and CPU affinities."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations

import networkx as nx

from ..detected import Finding
from .facts import HostFacts, pair


@dataclass(frozen=True)
class Domain:
    """The devices of one NUMA node."""

    name: str
    devices: tuple[str, ...]


def numa_domains(host: HostFacts) -> tuple[list[Domain], tuple[Finding, ...]]:
    """The host's NUMA domains, and what of them is doubtful.

    Devices that are NODE or nearer are together; SYS keeps them apart. GPU pairs whose NVLinks hide their distance
    go by NUMA id or CPU affinity, unless a SYS pair has the same one (a virtual machine hides the sockets). What is
    still open joins the smallest domain that nothing keeps it from.
    """
    findings: list[Finding] = []
    place = _places(host, findings)
    joined = nx.Graph()
    joined.add_nodes_from(host.devices)
    apart: set[frozenset[str]] = set()
    for one, other in combinations(host.devices, 2):
        ends = pair(one, other)
        level = host.levels.get(ends)
        same_place = one in place and place[one] == place.get(other)
        if level == "SYS" or (level is None and one in place and other in place and not same_place):
            apart.add(ends)
        elif level is not None or same_place:
            joined.add_edge(one, other)
    groups: list[list[str]] = []
    for component in nx.connected_components(joined):
        members = [device for device in host.devices if device in component]
        _report_contradiction(host, members, findings)
        free = [group for group in groups if not any(pair(one, other) in apart for one in group for other in members)]
        if free:
            smallest = min(free, key=lambda group: sum(device in host.gpus for device in group))
            smallest.extend(members)
            if all(_unplaced(host, device) for device in members if device in host.gpus) and len(groups) > 1:
                text = "its NUMA node is not in the capture; taken as that of " + smallest[0]
                findings.append(Finding("warning", members[0], text))
        else:
            groups.append(members)
    order = {device: i for i, device in enumerate(host.devices)}
    for group in groups:
        group.sort(key=order.__getitem__)
    return [Domain(_name(host, group, i), tuple(group)) for i, group in enumerate(groups)], tuple(findings)


def _places(host: HostFacts, findings: list[Finding]) -> dict[str, str]:
    """Where each device says it is (NUMA id, else CPU affinity), left out where SYS pairs say the same."""
    source = host.numa if len(host.numa) == len(host.gpus) else host.affinity
    at: dict[str, list[str]] = defaultdict(list)
    for device, where in source.items():
        at[where].append(device)
    trusted: dict[str, str] = {}
    for where, devices in at.items():
        if any(host.levels.get(pair(one, other)) == "SYS" for one, other in combinations(devices, 2)):
            text = f"GPUs that are SYS apart have the same CPU affinity ({where}): a virtual machine hides the sockets"
            findings.append(Finding("info", devices[0], text))
        else:
            trusted.update(dict.fromkeys(devices, where))
    if host.nvlinks and len(host.gpus) > 4 and set(host.levels.values()) == {"PHB"}:
        text = "every PCIe distance is PHB: a virtual machine may hide sockets and PCIe switches"
        findings.append(Finding("info", "", text))
    return trusted


def _unplaced(host: HostFacts, device: str) -> bool:
    known = any(device in ends for ends in host.levels)
    return not (known or device in host.affinity or device in host.numa)


def _report_contradiction(host: HostFacts, members: list[str], findings: list[Finding]) -> None:
    """SYS between two devices that a third one joins."""
    for one, other in combinations(members, 2):
        if host.levels.get(pair(one, other)) == "SYS":
            text = f"row {one}, column {other}: SYS, though other cells put both on one NUMA node; taken as one node"
            findings.append(Finding("warning", one, text))
            return


def _name(host: HostFacts, devices: list[str], index: int) -> str:
    nodes = {host.numa.get(device, "") for device in devices if device in host.gpus}
    node = nodes.pop() if len(nodes) == 1 else ""
    return f"NUMA node {node}" if node else f"CPU{index}"
