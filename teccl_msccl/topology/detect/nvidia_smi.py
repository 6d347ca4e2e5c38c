"""nvidia_smi: a topology from saved `nvidia-smi topo -m` text.

The file may also hold the output of `topo -p2p`, `nvlink -s`, `nvlink -c`, `nvidia-smi -L` and `nvidia-smi -q` of the
same host; what they say of peer-to-peer access, line rates, GPU models and MIG is used.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from ...errors import InputError
from ..detected import Detected, Finding
from .assembly import assemble
from .facts import LEVELS, HostFacts, Pair, Reading, pair
from .matrix import LONGEST_LINE, Matrix, Table, as_row, is_gpu, is_header, read_matrix
from .peer_access import NO_ACCESS, peer_access

MOST_CHARACTERS = 1_000_000

_ANSI = re.compile(r"(?:\x1b|\^\[)\[[0-9;?]*[A-Za-z]|\[[0-9;]*m|[\x1b\u200b\ufeff]")
_QUOTED = re.compile(r"\s*(?:>\s?)+")
_NAME = re.compile(r"\s*GPU\s+(\d{1,4}):\s*(\S[^(]{0,199})(?:\(|$)", re.IGNORECASE)
_RATE = re.compile(r"\s*Link\s+\d+:\s*(?:(\d{1,6}(?:\.\d{1,9})?)\s*GB/s|(<?inactive>?))\s*$", re.IGNORECASE)
_ALIAS = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*$", re.IGNORECASE)
_COMMAND = re.compile(r"nvidia-smi\s+(.*)", re.IGNORECASE)
_P2P = {"OK", *NO_ACCESS}
_PRODUCT = re.compile(r"\s*Product Name\s*:\s*(\S.{0,199})")
_GPU_OF_Q = re.compile(r"GPU\s+[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]\s*")
_MIG_DEVICE = re.compile(r"\s*MIG (?!Mode)")
_MIG_ENABLED = re.compile(r"MIG Mode\s+Current\s*:\s*Enabled")
_NO_P2P_OVER_LINK = re.compile(r"\s*Link\s+\d+,\s*P2P is supported:\s*false\s*", re.IGNORECASE)
_FAILURES = ("NVIDIA-SMI has failed", "command not found", "No devices were found", "Failed to initialize NVML")


@dataclass
class _Capture:
    """The parts of a capture as they are found."""

    tables: list[Table] = field(default_factory=list)
    p2p: dict[Pair, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    inactive: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    aliases: dict[str, str] = field(default_factory=dict)
    mig: list[str] = field(default_factory=list)
    no_p2p: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # NVLinks without peer access


def parse(text: str, where: str = "capture", name: str = "") -> Detected:
    """The topology that a capture describes, and what was assumed, doubted and found broken.

    `where` names the capture in errors, `name` (default: `where`) the topology. Linear in the text, quadratic in
    the devices. Raises `InputError` where the text holds no matrix, or one that cannot be trusted.
    """
    reading = read(text, where)
    detected = assemble(reading.host, name or where, source=f"`nvidia-smi topo -m` of {name or where}")
    return Detected(detected.topology, (*reading.findings, *detected.findings))


def read(text: str, where: str = "capture") -> Reading:
    """What a capture says of its host. Raises `InputError` as `parse` does."""
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{where}: {len(text)} characters; a capture of one host has a few thousand, keep only that")
    if "\0" in text:
        raise InputError(f"{where}: binary; give the text that `nvidia-smi topo -m` prints")
    capture = _scan(_ANSI.sub("", text))
    matrix = _only_matrix(capture, where, text)
    gpus = tuple(sorted((label for label in matrix.labels if is_gpu(label)), key=_number))
    host = HostFacts(
        gpus=gpus,
        nics=tuple(label for label in matrix.labels if not is_gpu(label)),
        nvlinks={ends: int(cell[2:]) for ends, cell in matrix.cells.items() if cell.startswith("NV")},
        levels={ends: cell for ends, cell in matrix.cells.items() if cell in LEVELS},
        numa=matrix.numa,
        affinity=matrix.affinity,
        models={gpu: capture.models[gpu] for gpu in gpus if gpu in capture.models},
        link_GBps={gpu: tuple(capture.rates[gpu]) for gpu in gpus if gpu in capture.rates},
        aliases=capture.aliases,
    )
    findings = (*matrix.findings, *_inactive_links(host, capture), *peer_access(host, capture.p2p))
    return Reading(host, findings, where)


def _scan(text: str) -> _Capture:
    """Sort the lines of a capture into its parts."""
    capture = _Capture()
    gpu = ""
    listed = 0  # GPUs of a -q listing so far
    counts_as_access = True
    before = ""
    table: Table | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.rstrip()
        if not line or len(line) >= LONGEST_LINE:
            continue
        if quoted := _QUOTED.match(line):
            line = line[quoted.end() :]
        if command := _COMMAND.search(line):
            option = re.search(r"-p2p\s+(\S+)", command[1])
            counts_as_access = option is None or option[1] in ("r", "w", "rw")
            table = None
        elif named := _NAME.match(line):
            gpu = f"GPU{int(named[1])}"
            capture.models[gpu] = named[2].strip()
        elif rate := _RATE.match(line):
            if rate[1] and float(rate[1]) > 0:
                capture.rates[gpu].append(float(rate[1]))
            else:
                capture.inactive[gpu] += 1
        elif _GPU_OF_Q.fullmatch(line):
            gpu, listed = f"GPU{listed}", listed + 1
        elif (product := _PRODUCT.match(line)) and gpu:
            capture.models[gpu] = product[1].strip()
        elif gpu and _MIG_ENABLED.search(f"{before} {line}"):
            capture.mig.append(gpu)
        elif _NO_P2P_OVER_LINK.fullmatch(line):
            capture.no_p2p[gpu] += 1
        elif alias := _ALIAS.match(line):
            capture.aliases[alias[1].upper()] = alias[2]
        elif _MIG_DEVICE.match(line) and gpu:
            capture.mig.append(gpu)
        elif is_header(line):
            table = Table(header=line)
            capture.tables.append(table)
        elif statuses := _p2p_row(line):
            if counts_as_access:
                _take_p2p(capture, statuses, table)
        elif (row := as_row(line, number, table.header if table else "")) and (table or is_gpu(row.label)):
            if table is None:
                table = Table()
                capture.tables.append(table)
            table.rows.append(row)
        before = line
    return capture


def _p2p_row(line: str) -> list[str] | None:
    words = line.upper().split()
    if len(words) > 1 and is_gpu(words[0]) and set(words[1:]) <= _P2P | {"X"} and set(words[1:]) != {"X"}:
        return words
    return None


def _take_p2p(capture: _Capture, words: list[str], table: Table | None) -> None:
    columns = [word.upper() for word in table.header.split() if is_gpu(word)] if table else []
    for column, status in zip(columns, words[1:], strict=False):
        if column != words[0] and status != "X":
            ends = pair(words[0], column)
            if capture.p2p.get(ends, "OK") == "OK":  # the worse of reading and writing counts
                capture.p2p[ends] = status


def _only_matrix(capture: _Capture, where: str, text: str) -> Matrix:
    """The one matrix of the capture; repetitions of it are passed over."""
    tables = [table for table in capture.tables if any(is_gpu(row.label) for row in table.rows)]
    tables = [table for table in tables if not _is_p2p(table)] or tables
    if not tables:
        failure = next((sign for sign in _FAILURES if sign in text), "")
        problem = f"nvidia-smi said {failure!r}" if failure else "no GPU rows"
        raise InputError(f"{where}: {problem}; save the output of `nvidia-smi topo -m` on a machine with GPUs")
    matrices = [read_matrix(table, where) for table in tables]
    if any(matrix.labels != matrices[0].labels or matrix.cells != matrices[0].cells for matrix in matrices[1:]):
        raise InputError(f"{where}: two different matrices; keep one host a file and join them by `topo compose`")
    return matrices[0]


def _is_p2p(table: Table) -> bool:
    """A one-GPU row of a -p2p table has nothing but its X."""
    return "affinity" not in table.header.lower() and all(row.words == ("X",) for row in table.rows)


def _inactive_links(host: HostFacts, capture: _Capture) -> tuple[Finding, ...]:
    findings = [
        Finding("warning", gpu, f"{capture.inactive[gpu]} NVLinks inactive")
        for gpu in host.gpus
        if capture.inactive.get(gpu) and capture.rates.get(gpu)
    ]
    findings += [
        Finding("warning", gpu, f"{number} NVLinks without peer-to-peer (nvlink -c)")
        for gpu, number in capture.no_p2p.items()
        if gpu in host.gpus
    ]
    for gpu in dict.fromkeys(capture.mig):
        findings.append(Finding("warning", gpu, "MIG is enabled: its instances cannot use NVLink or peer-to-peer"))
    return tuple(findings)


def _number(label: str) -> int:
    return int(label[3:])
