"""Catalog: a topology by its name — a generator, a preset board, or a file."""

from __future__ import annotations

import difflib
import json
import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from ..errors import InputError, whole
from ..files import parse_json, read_bytes
from . import generators
from .detect import live, nccl_xml, nvidia_smi
from .detect.assembly import assemble
from .detect.combine import combined
from .detect.facts import Reading
from .detected import Detected, Finding
from .fabric import compose, line_rate_GBps, network_nics
from .model import Topology

__all__ = ["Detected", "Finding", "load", "presets", "read_captures", "read_file", "spellings"]

_COPIES = re.compile(r"(.+)x([0-9]{1,9})")


def load(name: str | Path, hosts: int = 1, network: str | None = None) -> Detected:
    """The topology that `name` names, and the findings of reading it.

    `name` is a generator's name ("ring-8"), a preset's ("dgx-a100"; "dgx-a100x2" for 2 hosts), "local" for this
    machine, or a file: a topology JSON, saved `nvidia-smi topo -m` output, or an NCCL or RCCL topology XML. Names are
    in either case and go before files of the same name.
    `hosts` copies are joined by `network` (see `fabric.compose`). Raises `InputError`.
    """
    text = str(name)
    host, copies = _one_host(text)
    hosts = whole("hosts", hosts)
    if copies is not None:
        if hosts not in (1, copies):
            raise InputError(f"{text}: {copies} hosts by its name, but {hosts} asked for; give one of them")
        hosts = copies
    cluster = compose(host.topology, hosts, network)
    return Detected(cluster, host.findings + _network_findings(host.topology, cluster))


def presets() -> dict[str, Detected]:
    """Every preset by name, aliases included."""
    return {name: _preset(name) for name in sorted([*_boards(), *_aliases()])}


def spellings() -> list[str]:
    """Every name that `load` knows."""
    return sorted([*_boards(), *_aliases()]) + list(generators.SPELLINGS)


def _one_host(text: str) -> tuple[Detected, int | None]:
    """What `text` names, and the number of hosts where the name says it."""
    name = text.strip().lower()
    if name == "local":
        return live.detect(), None
    named = _named(name)
    if named is not None:
        return named, None
    copies = _COPIES.fullmatch(name)
    if copies and (named := _named(copies[1])) is not None:
        return named, int(copies[2])
    if os.path.lexists(text):
        return read_file(Path(text)), None
    known = spellings()
    base = copies[1] if copies else name
    close = difflib.get_close_matches(base, [*known, *_common_sizes()], n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]}?" if close else "."
    raise InputError(f"{text[:80] or 'an empty name'}: no such topology or file{hint} Known: {', '.join(known)}")


def _named(name: str) -> Detected | None:
    generated = generators.generate(name)
    if generated is not None:
        return Detected(generated)
    return _preset(name) if name in _boards() or name in _aliases() else None


# -- presets -------------------------------------------------------------------------------------------------


def _directory() -> Path:
    """Where the boards' JSON files are: in the package when installed, beside it in a source checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "topologies"
    return installed if installed.is_dir() else package.parent / "topologies"


@cache
def _boards() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_directory().glob("*.json")) if path.stem != "aliases"}


@cache
def _aliases() -> dict[str, dict[str, str]]:
    """Other names of a board: {name: {"board", "note"}}."""
    path = _directory() / "aliases.json"
    aliases: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return aliases


@cache
def _preset(name: str) -> Detected:
    alias = _aliases().get(name)
    if alias is None:
        return Detected(replace(Topology.read(_boards()[name]), name=name))
    board = Topology.read(_boards()[alias["board"]])
    return Detected(replace(board, name=name), (Finding("info", "", f"{name} is {alias['board']}: {alias['note']}"),))


def _common_sizes() -> list[str]:
    return [f"{shape}-8" for shape in ("ring", "line", "full", "star", "hypercube")] + ["mesh-4x4", "torus-4x4"]


# -- files ---------------------------------------------------------------------------------------------------


def read_file(path: Path) -> Detected:
    """A topology JSON or a capture, by its content."""
    data = read_bytes(path, "topology")
    if path.suffix == ".json" or _content(data).startswith((b"{", b"[{")):
        return Detected(Topology.from_json(parse_json(data, path, "a topology"), str(path)))
    return _assembled(_reading(data, path), [path])


def read_captures(paths: list[Path]) -> Detected:
    """One host's topology from several saved outputs of it: texts as if pasted in one file, XML combined with them."""
    texts: list[str] = []
    readings: list[Reading] = []
    for path in paths:
        data = read_bytes(path, "capture")
        if _content(data).startswith(b"{"):
            raise InputError(f"{path}: a topology JSON already; only saved outputs of a host are combined")
        if _content(data).startswith(b"<"):
            readings.append(nccl_xml.read(data, str(path)))
        else:
            texts.append(_text(data, path))
    if texts:
        where = " + ".join(str(path) for path in paths if path.suffix != ".xml")
        readings.insert(0, nvidia_smi.read("\n".join(texts), where))
    return _assembled(combined(readings), paths)


def _assembled(reading: Reading, paths: list[Path]) -> Detected:
    name = paths[0].name.split(".")[0]
    files = ", ".join(path.name for path in paths)
    detected = assemble(reading.host, name, f"read from {files}")
    return Detected(detected.topology, (*reading.findings, *detected.findings))


def _reading(data: bytes, path: Path) -> Reading:
    if _content(data).startswith(b"<") or b"<system" in data:  # as XML, a log line before it is named
        return nccl_xml.read(data, str(path))
    return nvidia_smi.read(_text(data, path), str(path))


def _content(data: bytes) -> bytes:
    """The first bytes that are not white space or a byte order mark."""
    return data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")


def _text(data: bytes, path: Path) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # PowerShell's redirection writes UTF-16
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(
            f"{path}: not text; give a topology JSON, NCCL topology XML or `nvidia-smi topo -m` output"
        ) from None


def _network_findings(host: Topology, cluster: Topology) -> tuple[Finding, ...]:
    """How many hosts were joined, and by what."""
    if cluster is host:
        return ()
    switches = [node.name for node in cluster.nodes if node.host < 0]
    nics = network_nics(host)
    hosts = len(cluster.hosts)
    if nics and not switches and any(link.kind == "network" for link in cluster.links):
        return (Finding("info", "", f"{hosts} hosts in a ring, NIC to NIC: programs pass data on through GPUs"),)
    if not switches or not nics:
        return (Finding("info", "", f"{hosts} hosts joined as the board's own description says"),)
    rates = sorted({line_rate_GBps(host, nic) for nic in nics})
    shown = "–".join(f"{rate:g}" for rate in dict.fromkeys((rates[0], rates[-1])))
    text = f"{hosts} hosts × {len(nics)} NICs of {shown} GB/s, joined at {', '.join(_abridged(switches))}"
    return (Finding("info", "", text),)


def _abridged(names: list[str]) -> list[str]:
    return names if len(names) <= 4 else [names[0], "…", names[-1]]
