"""sysfs: the PCI tree and the RDMA NICs of this machine, from /sys (or a copy of it, for tests)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .pci_tree import DEEPEST, Place, Root, lanes_GBps

SYS = Path("/sys")

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")


@dataclass(frozen=True)
class RdmaNic:
    """A port of an RDMA device: its name, the PCI address of the device, its rate, and whether the link is up."""

    name: str
    address: str
    GBps: float | None
    active: bool


def pci_address(bus_id: str) -> str:
    """A bus id as sysfs spells it: lower case, a domain of four digits ("00000000:3B:00.0" → "0000:3b:00.0")."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}" if re.fullmatch("[0-9a-f]{1,8}", domain) else bus_id.lower()


def rdma_nics(root: Path = SYS) -> list[RdmaNic]:
    """Every port of every RDMA device, by name; empty where there are none. The effective GB/s is rate / 8."""
    nics = []
    for device in sorted((root / "class" / "infiniband").glob("*"), key=lambda path: natural(path.name)):
        address = _device_of(device / "device")
        ports = sorted((device / "ports").glob("*"), key=lambda path: natural(path.name))
        for port in ports:
            name = device.name if len(ports) == 1 else f"{device.name}:{port.name}"
            rate = _RATE.match(text_of(port / "rate"))
            GBps = float(rate[1]) / 8 if rate and float(rate[1]) > 0 else None
            nics.append(RdmaNic(name, address, GBps, "ACTIVE" in text_of(port / "state").upper()))
    return nics


def numa_node(address: str, root: Path = SYS) -> str:
    """The NUMA node of a PCI device, "" where sysfs does not tell."""
    node = text_of(root / "bus" / "pci" / "devices" / address / "numa_node").strip()
    return node if node.isdigit() else ""


def pci_tree(addresses: Mapping[str, Sequence[str]], root: Path = SYS) -> tuple[Root, ...]:
    """The tree above the devices at some addresses (address → the labels there), () where sysfs lacks one of them.

    A root per NUMA node; where sysfs tells none, per PCI host bridge. O(devices · depth).
    """
    trails: dict[str, list[str]] = {}
    for address in addresses:
        trail = _trail(address, root)
        if not trail:
            return ()
        trails[address] = trail
    by_root: dict[str, list[str]] = defaultdict(list)
    for address, trail in trails.items():
        node = numa_node(address, root)
        by_root[f"NUMA node {node}" if node else trail[0]].append(address)
    socket = _socket_GBps(root)
    return tuple(
        Root(name, socket, _branches([(trails[at][1:], addresses[at]) for at in by_root[name]], root))
        for name in sorted(by_root, key=natural)
    )


def _branches(devices: Iterable[tuple[Sequence[str], Sequence[str]]], root: Path) -> tuple[Place, ...]:
    """The places that (trail, labels) of some devices make below a common point."""
    below: dict[str, list[tuple[Sequence[str], Sequence[str]]]] = defaultdict(list)
    for trail, labels in devices:
        below[trail[0]].append((trail[1:], labels))
    places = []
    for address, inside in below.items():
        GBps = _link_GBps(root / "bus" / "pci" / "devices" / address)
        here = [label for trail, labels in inside if not trail for label in labels]
        deeper = [(trail, labels) for trail, labels in inside if trail]
        if len(here) == 1 and not deeper:
            places.append(Place(here[0], GBps))
        else:
            ports = tuple(Place(label, GBps) for label in here)
            places.append(Place("", GBps, ports + (_branches(deeper, root) if deeper else ())))
    return tuple(places)


def _trail(address: str, root: Path) -> list[str]:
    """The host bridge and the PCI addresses from there down to a device, [] where sysfs does not know it."""
    try:
        parts = (root / "bus" / "pci" / "devices" / address).resolve(strict=True).parts
    except (OSError, RuntimeError):
        return []
    bridge = max((i for i, part in enumerate(parts) if part.startswith("pci")), default=None)
    if bridge is None:
        return []
    trail = [parts[bridge], *(part for part in parts[bridge + 1 :] if _ADDRESS.fullmatch(part))]
    return trail if 1 < len(trail) <= DEEPEST else []


def _device_of(link: Path) -> str:
    try:
        return link.resolve(strict=True).name
    except (OSError, RuntimeError):
        return ""


def _link_GBps(device: Path) -> float:
    """A device's link at the best speed it can have (an idle GPU's is lowered), and the width that it has."""
    speed = re.match(
        r"\s*(\d+(?:\.\d+)?)", text_of(device / "max_link_speed") or text_of(device / "current_link_speed")
    )
    width = re.match(r"\s*(\d{1,2})\b", text_of(device / "current_link_width"))
    return lanes_GBps(float(speed[1]) if speed else None, int(width[1]) if width else 0)


def _socket_GBps(root: Path) -> float | None:
    """NCCL's figure for the link between this machine's CPUs, None where /proc does not tell their kind."""
    text = text_of(root.parent / "proc" / "cpuinfo")
    model = re.search(r"^model\s*:\s*(\d{1,4})", text, re.MULTILINE)
    if "GenuineIntel" in text:
        return 22.0 if model and int(model[1]) >= 0x8F else 10.0
    if "AuthenticAMD" in text:
        return 16.0
    return 6.0 if "CPU implementer" in text else None


def text_of(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(65536).decode(errors="replace")
    except OSError:
        return ""


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """Sorts mlx5_10 after mlx5_9."""
    return tuple((text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name))
