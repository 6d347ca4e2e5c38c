"""Many links at once: the links of one kind and host as one row, whose shade says how many of them are in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..topology.model import Node, Topology
from .chart import Bar, Gantt, Row

#: Slices of the time.
SLICES = 200
#: What is used less is drawn as free.
_LEAST = 5e-4


def crowded(topology: Topology, bars: Mapping[int, Sequence[Bar]], finish_us: float, most_rows: int) -> Gantt:
    """The Gantt chart of groups of links, host by host unless that makes more than `most_rows`.

    A bar is a slice of the time, its `share` the mean use of those links of the group that are used at all; `used` of a
    row is the same over the whole time. O(bars + groups · slices).
    """
    by_host = _groups(topology, bars, with_host=True)
    groups = by_host if len(by_host) <= most_rows else _groups(topology, bars, with_host=False)
    rows = []
    for name, (kind, links) in groups.items():
        use = sum((_use(bars[link], finish_us) for link in links), np.zeros(SLICES)) / len(links)
        label = f"{name} ({len(links)} link{'s' * (len(links) > 1)})"
        rows.append(Row(links[0], label, kind, tuple(_slices(use, finish_us, len(links))), float(use.mean())))
    return Gantt(tuple(sorted(rows, key=lambda row: (row.kind, row.link))), finish_us, len(bars), crowded=True)


def _groups(
    topology: Topology, bars: Mapping[int, Sequence[Bar]], *, with_host: bool
) -> dict[str, tuple[str, list[int]]]:
    """Links that are used, by name of the group, with their kind."""
    links: dict[str, list[int]] = defaultdict(list)
    for id in sorted(bars):
        link = topology.link_by_id[id]
        src, dst = topology.node_by_id[link.src], topology.node_by_id[link.dst]
        host = src.host if src.kind in ("gpu", "nic", "cpu") else dst.host
        rate = f"{link.bandwidth_GBps:g} GB/s"
        where = f"host {host}: " if with_host and len(topology.hosts) > 1 else ""
        links[f"{where}{_kind(src)} → {_kind(dst)}, {link.kind or 'link'} {rate}"].append(id)
    return {name: (topology.link_by_id[ids[0]].kind or "link", ids) for name, ids in links.items()}


def _kind(node: Node) -> str:
    return {"gpu": "GPU", "nic": "NIC", "cpu": "CPU"}.get(node.kind, node.kind)


def _use(bars: Sequence[Bar], finish_us: float) -> NDArray[np.float64]:
    """The share of every slice of the time that sorted bars cover."""
    if finish_us <= 0:
        return np.zeros(SLICES)
    edges = np.linspace(0.0, finish_us, SLICES + 1)
    starts, ends = _joined(bars)
    before = np.concatenate([[0.0], np.cumsum(ends - starts)])
    index = np.searchsorted(starts, edges, side="right")
    covered = before[index]
    inside = index > 0
    covered[inside] -= np.maximum(0.0, ends[index[inside] - 1] - edges[inside])
    return np.diff(covered) / np.diff(edges)


def _joined(bars: Sequence[Bar]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Starts and ends of the union of sorted bars."""
    starts: list[float] = []
    ends: list[float] = []
    for bar in bars:
        if ends and bar.start_us <= ends[-1]:
            ends[-1] = max(ends[-1], bar.end_us)
        else:
            starts.append(bar.start_us)
            ends.append(bar.end_us)
    return np.array(starts), np.array(ends)


def _slices(use: NDArray[np.float64], finish_us: float, links: int) -> Iterator[Bar]:
    """Bars of the slices in use; neighbours that look the same are one."""
    shown = np.round(use, 2)
    begin = 0
    for end in range(1, SLICES + 1):
        if end == SLICES or shown[end] != shown[begin]:
            if use[begin:end].max() > _LEAST:
                text = f"{shown[begin]:.0%} of {links} link{'s' * (links > 1)} in use"
                yield Bar(begin * finish_us / SLICES, end * finish_us / SLICES, text, float(shown[begin]))
            begin = end
