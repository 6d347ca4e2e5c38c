"""nccl_xml: what an NCCL or RCCL topology file says (`NCCL_TOPO_DUMP_FILE`, or the topo.xml that a cloud ships).

The file is a tree: system → cpu → pci (nested) → gpu (nvlink, c2c, xgmi) or nic → net. Some clouds ship the PCI part
alone; that says nothing of NVLinks, so it is best read together with `nvidia-smi topo -m` (see `combine`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from lxml import etree

from ...errors import InputError
from ...files import xml_parser
from ..detected import Finding
from .facts import MOST_NVLINKS, HostFacts, Pair, Reading, pair
from .generations import gfx_number
from .pci_tree import DEEPEST, Place, Root, lanes_GBps, levels

MOST_BYTES = 4_000_000
MOST_ELEMENTS = 20_000

_NOWHERE = re.compile(r"f{7,8}:f{2,4}:ff?(?:\.f)?")
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_NIC_CLASS = "0x02"
_NVSWITCH_CLASS = "0x0680"
_DEFAULT_NET_MBPS = 10_000
_A100_PCIE = ("0x20b5", "0x20f1")
#: PCI device ids of NVIDIA's data centre GPUs begin with these: what the driver would call sm.
_DEVICE_SM = (
    ("0x15f", 60),
    ("0x1db", 70),
    ("0x1df", 70),
    ("0x1eb", 75),
    ("0x20b", 80),
    ("0x20f", 80),
    ("0x223", 86),
    ("0x26b", 89),
    ("0x27b", 89),
    ("0x23", 90),
    ("0x29", 100),
)


@dataclass
class _File:
    """The parts of a file as they are found."""

    where: str
    full: bool  # it has gpu elements
    has_nics: bool  # it has net elements
    ranked: bool  # some gpu element has a rank
    lines: dict[str, object] = field(default_factory=dict)  # bus id → line
    gpu_at: dict[str, etree._Element] = field(default_factory=dict)  # bus id → its pci element
    skipped: list[str] = field(default_factory=list)
    nvswitches: set[str] = field(default_factory=set)
    nics: dict[str, float | None] = field(default_factory=dict)  # place label → GB/s
    pcie_GBps: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def read(data: bytes, where: str) -> Reading:
    """What a topology file says of its host; `where` names it in errors.

    Linear in the file, quadratic in the devices. Raises `InputError` where the file is not well-formed, is too large
    or too deep, has a bus id twice, or its NVLinks contradict each other.
    """
    system = _parse(data, where)
    gpus = system.findall(".//gpu")
    file = _File(
        where=where,
        full=bool(gpus),
        has_nics=system.find(".//net") is not None,
        ranked=any(gpu.get("rank") is not None for gpu in gpus),
    )
    _one_host(system, where)
    roots = tuple(root for i, cpu in enumerate(system.iterchildren("cpu")) if (root := _root(cpu, i, file)).places)
    if not file.gpu_at:
        raise InputError(f"{where}: no GPU in the PCI tree; dump the file on a machine with GPUs")
    order = sorted(file.gpu_at, key=lambda bus: _rank(file, bus))
    label = {bus: f"GPU{_number(file, bus, i)}" for i, bus in enumerate(order)}
    if len(set(label.values())) < len(label):
        label = {bus: f"GPU{i}" for i, bus in enumerate(order)}
    nics = _nic_names(file)
    names = {**label, **nics}
    pci = tuple(Root(root.name, root.socket_GBps, _named(root.places, names)) for root in roots)
    links = _Links(file, label)
    host = HostFacts(
        gpus=tuple(label[bus] for bus in order),
        nics=tuple(nics.values()),
        nvlinks=links.between(),
        switched=links.switched,
        link_kind="xgmi" if system.find(".//xgmi") is not None else "nvlink",
        generation={label[bus]: sm for bus in order if (sm := _generation(file.gpu_at[bus])) is not None},
        levels=levels(pci),
        pcie_GBps={names[place]: GBps for place, GBps in file.pcie_GBps.items()},
        nic_GBps={nics[place]: GBps for place, GBps in file.nics.items() if GBps is not None},
        pci=pci,
    )
    return Reading(host, (*_remarks(file, label), *file.findings), f"NCCL topology file {where}")


# -- the file ------------------------------------------------------------------------------------------------


def _parse(data: bytes, where: str) -> etree._Element:
    """The system element, parsed without entities, DTDs or the network."""
    if len(data) > MOST_BYTES:
        raise InputError(f"{where}: {len(data)} bytes of XML; a topology file has a few thousand, give one of those")
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise InputError(f"{where}: has a DOCTYPE or entities, which no topology file needs; remove them")
    if data.count(b"<") > 2 * MOST_ELEMENTS:
        raise InputError(f"{where}: more than {MOST_ELEMENTS} elements; no host has as many devices")
    try:
        root = etree.fromstring(data, xml_parser())
    except (etree.XMLSyntaxError, ValueError) as error:
        text = " ".join(getattr(error, "msg", str(error)).split())
        raise InputError(f"{where}: not well-formed XML: {text}; dump the topology again") from None
    if root.tag != "system":
        hint = {"algo": "a program; check or simulate takes it", "graphs": "NCCL's graphs; set NCCL_TOPO_DUMP_FILE"}
        what = hint.get(str(root.tag), "a topology file begins with <system>")
        raise InputError(f"{where}: line {root.sourceline}: the first element is <{root.tag}>: {what}")
    return root


def _one_host(system: etree._Element, where: str) -> None:
    hosts = {cpu.get("host_hash") for cpu in system.iterchildren("cpu")}
    if len(hosts) > 1:
        raise InputError(f"{where}: {len(hosts)} hosts (host_hash); keep one host a file and join them: `topo compose`")


def _root(cpu: etree._Element, index: int, file: _File) -> Root:
    node = cpu.get("numaid", "")
    name = f"NUMA node {node}" if node.isdigit() else f"CPU{index}"
    return Root(name, _socket_GBps(cpu), tuple(_places(cpu, file, 0)))


def _places(above: etree._Element, file: _File, depth: int) -> Iterator[Place]:
    """The devices below an element, and the bridges that lead to some."""
    if depth > DEEPEST:
        raise InputError(
            f"{file.where}: line {above.sourceline}: PCI bridges nested over {DEEPEST} deep; no host is so"
        )
    for element in above.iterchildren("pci", "nic"):
        if element.tag == "nic":
            yield from _nets(element, file, lanes_GBps(None, 0))
            continue
        bus = _bus_id(element, file)
        GBps = _link_GBps(element)
        if _is_gpu(element, file, bus):
            file.gpu_at[bus] = element
            GBps = _c2c_GBps(element) or GBps
            file.pcie_GBps[bus] = GBps
            yield Place(bus, GBps)
        elif element.get("class", "").startswith(_NVSWITCH_CLASS):
            file.nvswitches.add(bus)
        elif element.get("class", "").startswith(_NIC_CLASS) and not file.has_nics:
            file.nics[bus] = None
            file.pcie_GBps[bus] = GBps
            yield Place(bus, GBps)
        else:
            below = tuple(_places(element, file, depth + 1))
            if below:
                yield Place("", GBps, below)


def _nets(nic: etree._Element, file: _File, GBps: float) -> Iterator[Place]:
    for net in nic.iterchildren("net"):
        label = f"net {len(file.nics)} {net.get('name', '')}"
        file.nics[label] = _positive(net, "speed", _DEFAULT_NET_MBPS) / 8000
        yield Place(label, GBps)


def _bus_id(element: etree._Element, file: _File) -> str:
    bus = element.get("busid", "").lower()
    line = element.sourceline
    if not bus:
        raise InputError(f"{file.where}: line {line}: <pci> lacks busid; add it")
    if bus in file.lines:
        raise InputError(
            f"{file.where}: line {line}: busid {bus[:40]} stands at line {file.lines[bus]} too; a device has one place"
        )
    file.lines[bus] = line
    return bus


def _is_gpu(element: etree._Element, file: _File, bus: str) -> bool:
    gpu = element.find("gpu")
    if gpu is not None:
        if file.ranked and gpu.get("rank") is None:
            file.skipped.append(bus)
            return False
        return True
    return not file.full and element.get("class", "").startswith(_GPU_CLASSES)


def _named(places: tuple[Place, ...], names: dict[str, str]) -> tuple[Place, ...]:
    return tuple(Place(names.get(place.label, ""), place.GBps, _named(place.below, names)) for place in places)


# -- figures -------------------------------------------------------------------------------------------------


def _link_GBps(element: etree._Element) -> float:
    speed = re.match(r"\s*(\d{1,3}(?:\.\d{1,3})?)\s*GT", element.get("link_speed", ""))
    return lanes_GBps(float(speed[1]) if speed else None, round(_positive(element, "link_width", 0)))


def _positive(element: etree._Element, key: str, otherwise: float) -> float:
    """An attribute that is a positive number, else `otherwise`: NCCL forgives these, and so does this."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*", element.get(key, ""))
    return (float(match[1]) if match else 0) or otherwise


def _c2c_GBps(element: etree._Element) -> float | None:
    """A Grace GPU's link to its CPU, where it has one."""
    c2c = element.find("gpu/c2c")
    if c2c is None:
        return None
    return _positive(c2c, "count", 1) * _positive(c2c, "bw", 0) / 1000 or None


def _socket_GBps(cpu: etree._Element) -> float | None:
    """NCCL's figure for the link between CPUs of this kind, None where the file does not tell the kind."""
    if cpu.get("arch") in ("arm64", "aarch64"):
        return 6.0
    vendor = cpu.get("vendor", "")
    if vendor == "AuthenticAMD":
        return 16.0
    if vendor == "GenuineIntel":
        return 22.0 if _positive(cpu, "modelid", 0) >= 0x8F else 10.0  # Sapphire Rapids, Skylake
    return None


def _generation(element: etree._Element) -> int | None:
    gpu = element.find("gpu")
    if gpu is not None:
        named = gfx_number(gpu.get("gcn", "")) if gpu.get("gcn") else None
        return named or round(_positive(gpu, "sm", 0)) or None
    device = element.get("device", "").lower()
    return next((sm for prefix, sm in _DEVICE_SM if device.startswith(prefix)), None)


# -- devices -------------------------------------------------------------------------------------------------


def _rank(file: _File, bus: str) -> tuple[float, str]:
    gpu = file.gpu_at[bus].find("gpu")
    rank = -1.0 if gpu is None else _positive(gpu, "rank" if file.ranked else "dev", 0)
    return rank, bus.rjust(20, "0")


def _number(file: _File, bus: str, position: int) -> int:
    gpu = file.gpu_at[bus].find("gpu")
    return position if gpu is None else round(_positive(gpu, "dev", 0))


def _nic_names(file: _File) -> dict[str, str]:
    """What each NIC is called: its net's name, or NICn by bus id where it has none, or another has the same."""
    if not file.has_nics:
        return {bus: f"NIC{i}" for i, bus in enumerate(sorted(file.nics, key=lambda bus: bus.rjust(20, "0")))}
    given = {place: place.split(" ", 2)[2] for place in file.nics}
    distinct = len(set(given.values())) == len(given) and all(given.values())
    return given if distinct else {place: f"NIC{i}" for i, place in enumerate(given)}


class _Links:
    """The NVLinks (or xGMI links) that the gpu elements state."""

    def __init__(self, file: _File, label: dict[str, str]) -> None:
        self.file = file
        self.switched: dict[str, int] = defaultdict(int)
        self.to_self: dict[str, int] = defaultdict(int)
        self.towards: dict[tuple[str, str], int] = defaultdict(int)
        unseen: dict[str, list[str]] = defaultdict(list)
        for bus, name in label.items():
            for link in file.gpu_at[bus].iterfind("gpu/*"):
                if link.tag not in ("nvlink", "xgmi"):
                    continue
                target = link.get("target", "").lower()
                count = self._count(link)
                to_switch = target in file.nvswitches or link.get("tclass", "").startswith(_NVSWITCH_CLASS)
                if to_switch or not target or _NOWHERE.fullmatch(target):
                    self.switched[name] += count
                elif target == bus:
                    self.to_self[name] += count
                elif target in label:
                    self.towards[name, label[target]] += count
                else:
                    unseen[name].append(target[:40])
        for name, targets in unseen.items():
            text = f"has links to {', '.join(targets[:4])}, which the file does not show as a GPU in use: left out"
            file.findings.append(Finding("warning", name, text))

    def between(self) -> dict[Pair, int]:
        """Links of each pair; both directions must agree. Raises `InputError` where they do not."""
        links: dict[Pair, int] = {}
        for (one, other), count in self.towards.items():
            back = self.towards.get((other, one))
            if back is None:
                text = f"{count} links to {other}, of which {other} says nothing: taken as there"
                self.file.findings.append(Finding("warning", one, text))
            elif back != count:
                raise InputError(
                    f"{self.file.where}: {one} has {count} links to {other}, {other} has {back} to {one}; dump it again"
                )
            links[pair(one, other)] = count
        return {**links, **self._bridged()}

    def _bridged(self) -> dict[Pair, int]:
        """GPUs whose links all lead to themselves: some clouds ship bridged pairs of A100 PCIe so."""
        if not self.to_self:
            return {}
        lone = [name for name in self.to_self if not any(name in ends for ends in self.towards)]
        ids = {element.get("device", "").lower() for element in self.file.gpu_at.values()}
        first = lone[0] if lone else next(iter(self.to_self))
        text = "its NVLinks' target is the GPU itself, which cannot be"
        counts = set(self.to_self.values())
        if len(lone) != len(self.file.gpu_at) or len(lone) % 2 or len(counts) > 1 or not ids <= set(_A100_PCIE):
            text += ": left out; give `nvidia-smi topo -m` of the host too"
            self.file.findings.append(Finding("warning", first, text))
            return {}
        pairs = list(zip(lone[::2], lone[1::2], strict=True))
        shown = ", ".join(f"{one}–{other}" for one, other in pairs)
        text += f"; boards of this kind are bridged in pairs: {shown} assumed; `nvidia-smi topo -m` is surer"
        self.file.findings.append(Finding("warning", first, text))
        return {pair(one, other): counts.copy().pop() for one, other in pairs}

    def _count(self, link: etree._Element) -> int:
        """How many links it stands for, one where it does not say: a wrong number would be a wrong bandwidth."""
        text = link.get("count", "1").strip()
        count = int(text) if re.fullmatch(r"[0-9]{1,4}", text) else 0
        if not 1 <= count <= MOST_NVLINKS:
            raise InputError(
                f"{self.file.where}: line {link.sourceline}: {text[:20]!r} {link.tag}s; a GPU has 1 to {MOST_NVLINKS}"
            )
        return count


def _remarks(file: _File, label: dict[str, str]) -> Iterator[Finding]:
    if not file.full:
        text = (
            f"{len(label)} GPUs in a PCI tree without gpu or nvlink elements: NVLinks are unknown, so PCIe alone joins "
            "them; give `nvidia-smi topo -m` of the host too (topo convert FILE FILE), or use its preset"
        )
        yield Finding("warning", "", text)
    elif not file.ranked:
        yield Finding("info", "", "no gpu has a rank: ranks go by device number")
    key = "rank" if file.ranked else "dev"
    given = Counter(round(_rank(file, bus)[0]) for bus in label) if file.full else Counter()
    for number, ngpus in given.items():
        if ngpus > 1:
            yield Finding("warning", "", f"{ngpus} GPUs have {key} {number}: taken in the order of their bus ids")
    if file.skipped:
        text = f"{len(file.skipped)} GPUs without a rank ({', '.join(file.skipped[:4])}) are not in use: left out"
        yield Finding("info", "", text)
