"""Measured: point-to-point times from a CSV, from nccl-tests' sendrecv_perf, or from CUDA's p2pBandwidthLatencyTest."""

from __future__ import annotations

import csv
import re
from pathlib import Path as FilePath

from ..errors import InputError
from ..files import read_bytes
from .calibrate import Measurement
from .model import Topology
from .paths import direct_paths

MOST_BYTES = 64_000_000

#: What p2pBandwidthLatencyTest sends for its bandwidths, and for its latencies.
_CUDA_BANDWIDTH_BYTES = 160e6
_CUDA_LATENCY_BYTES = 16.0

_SENDRECV_ROW = re.compile(r"\s*\d+\s+\d+\s+\w+\s+none\s+-1\s+[\d.]+")
_OTHER_ROW = re.compile(r"\s*\d+\s+\d+\s+\w+\s+(?:sum|prod|min|max|avg|none)\s+-?\d+\s+[\d.]+")
_MATRIX = re.compile(r"\s*(\w+directional P2P=\w+ Bandwidth|P2P=\w+ Latency).*Matrix \(([GBu/s]+)\)")


def read_measurements(path: FilePath, topology: Topology) -> list[Measurement]:
    """The times in a file, by its content.

    A CSV has the columns bytes and time_us, and src and dst (ranks) or kind (of links: nvlink, network …; the time is
    then taken as one of a path whose narrowest link is such). sendrecv_perf times a ring of all ranks at once, so
    that its times are those of the slowest neighbours. Raises `InputError` naming the line.
    """
    data = read_bytes(path, "measurements", MOST_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(
            f"{path}: not text; give a CSV, or the output of nccl-tests or p2pBandwidthLatencyTest"
        ) from None
    if "Bandwidth Matrix" in text:
        return _cuda_matrices(text, path, topology)
    if re.search(r"^#.*\b(algbw|nThread)\b", text, re.MULTILINE):
        return _sendrecv(text, path, topology)
    return _csv(text, path, topology)


def _csv(text: str, path: FilePath, topology: Topology) -> list[Measurement]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    rows = csv.DictReader(lines, skipinitialspace=True)
    columns = {(name or "").strip().lower() for name in rows.fieldnames or ()}
    if not ({"bytes", "time_us"} <= columns and ({"src", "dst"} <= columns or "kind" in columns)):
        raise InputError(
            f"{path}: a CSV of measurements has the columns src,dst,bytes,time_us (or kind,bytes,time_us); "
            f"found {', '.join(sorted(columns))[:80] or 'none'}"
        )
    measurements = []
    by_kind: dict[str, tuple[int, int]] = {}
    for number, row in enumerate(rows, start=2):
        where = f"{path}: row {number}"
        cells = {(key or "").strip().lower(): cell for key, cell in row.items()}
        if cells.get("src") is not None and cells.get("dst") is not None:
            src, dst = _rank(cells["src"], f"{where}: src"), _rank(cells["dst"], f"{where}: dst")
        else:
            kind = (cells.get("kind") or "").strip().lower()
            by_kind = by_kind or _pairs_by_kind(topology)
            if kind not in by_kind:
                raise InputError(f"{where}: no path goes by {kind[:40]!r} links; the kinds are {', '.join(by_kind)}")
            src, dst = by_kind[kind]
        nbytes, time_us = (
            _figure(cells.get("bytes"), f"{where}: bytes"),
            _figure(cells.get("time_us"), f"{where}: time_us"),
        )
        measurements.append(Measurement(src, dst, nbytes, time_us, where))
    return measurements


def _pairs_by_kind(topology: Topology) -> dict[str, tuple[int, int]]:
    """For each kind of link a pair of ranks whose path is narrowest there."""
    ranks = [0, *range(1, topology.nranks)]
    first = frozenset((src, dst) for src in ranks[:1] for dst in ranks[1:])
    pairs: dict[str, tuple[int, int]] = {}
    for path in direct_paths(topology, first):
        links = [topology.link_by_id[id] for id in path.links]
        narrowest = next(link for link in links if link.bandwidth_GBps == path.bandwidth_GBps)
        kinds = {link.kind for link in links}
        pairs.setdefault("network" if "network" in kinds else narrowest.kind, (path.src_rank, path.dst_rank))
    return pairs


def _sendrecv(text: str, path: FilePath, topology: Topology) -> list[Measurement]:
    ring = frozenset((rank, (rank + 1) % topology.nranks) for rank in range(topology.nranks))
    paths = [path for path in direct_paths(topology, ring) if path.src_rank != path.dst_rank]
    if not paths:
        raise InputError(f"{path}: no two neighbouring ranks of {topology.name} are joined directly")
    slowest = min(paths, key=lambda path: (path.bandwidth_GBps, -path.alpha_us))
    measurements = []
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}: line {number}"
        if _SENDRECV_ROW.match(line):
            words = line.split()
            nbytes, time_us = _figure(words[0], where), _figure(words[5], where)
            if nbytes > 0:
                measurements.append(Measurement(slowest.src_rank, slowest.dst_rank, nbytes, time_us, where))
        elif _OTHER_ROW.match(line):
            raise InputError(
                f"{where}: a collective's times; only sendrecv_perf is point to point, so run nccl-tests' sendrecv_perf"
            )
    if not measurements:
        raise InputError(f"{path}: no rows of sendrecv_perf; keep the table that it prints")
    return measurements


def _cuda_matrices(text: str, path: FilePath, topology: Topology) -> list[Measurement]:
    """The unidirectional bandwidths and the latencies with peer access on."""
    bandwidth: dict[tuple[int, int], float] = {}
    latency: dict[tuple[int, int], float] = {}
    into: dict[tuple[int, int], float] | None = None
    columns: list[int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if title := _MATRIX.match(line):
            name = title[1]
            into = {"Unidirectional P2P=Enabled Bandwidth": bandwidth, "P2P=Enabled Latency": latency}.get(name)
        elif words and words[0] in ("D\\D", "GPU") and all(word.isdigit() for word in words[1:]):
            columns = [int(word) for word in words[1:]]
        elif words and words[0] == "CPU":
            into = None
        elif into is not None and words and words[0].isdigit() and len(words) == len(columns) + 1:
            src = int(words[0])
            for dst, cell in zip(columns, words[1:], strict=True):
                if dst != src:
                    into[src, dst] = _figure(cell, f"{path}: line {number}")
    if not bandwidth or not latency:
        raise InputError(f"{path}: no P2P=Enabled bandwidth and latency matrices; keep the whole output")
    measurements = []
    for (src, dst), GBps in bandwidth.items():
        where = f"{path}: {src}→{dst}"
        if not GBps > 0 or (src, dst) not in latency:
            raise InputError(f"{where}: no bandwidth and latency of this pair; keep the whole output")
        alpha_us = latency[src, dst]
        measurements.append(Measurement(src, dst, _CUDA_LATENCY_BYTES, alpha_us, where))
        time_us = alpha_us + _CUDA_BANDWIDTH_BYTES / (GBps * 1e3)
        measurements.append(Measurement(src, dst, _CUDA_BANDWIDTH_BYTES, time_us, where))
    return measurements


def _rank(text: str, where: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(f"{where}: {text[:40]!r} is no rank")
    return int(text)


def _figure(text: str | None, where: str) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise InputError(f"{where}: {(text or '')[:40]!r} is no number") from None
