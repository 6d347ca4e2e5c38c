"""amd: what the amdgpu driver says of this machine's GPUs and their xGMI links, in /sys/class/kfd."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..detected import Finding
from .facts import HostFacts, Pair, Reading, pair
from .sysfs import SYS, natural, text_of

_XGMI = 11  # HSA_IOLINK_TYPE_XGMI


def read(root: Path = SYS) -> tuple[Reading, Mapping[str, str]] | None:
    """What the driver says, and the PCI address of each GPU by its label; None where it shows no GPU.

    A pair's links are its greatest bandwidth over its least, which is one link's. Linear in the driver's files.
    """
    nodes = sorted(
        (root / "class" / "kfd" / "kfd" / "topology" / "nodes").glob("*"), key=lambda path: natural(path.name)
    )
    properties = {node.name: _properties(node / "properties") for node in nodes}
    gpus = [node for node in nodes if properties[node.name].get("simd_count", 0) > 0]
    if not gpus:
        return None
    label = {node.name: f"GPU{i}" for i, node in enumerate(gpus)}
    nvlinks: dict[Pair, int] = {}
    findings: list[Finding] = []
    for node in gpus:
        for file in sorted((node / "io_links").glob("*/properties")):
            link = _properties(file)
            other = label.get(str(link.get("node_to", -1)))
            if link.get("type") != _XGMI or other is None:
                continue
            least, most = link.get("min_bandwidth", 0), link.get("max_bandwidth", 0)
            count = max(1, round(most / least)) if least else 1
            ends = pair(label[node.name], other)
            if nvlinks.setdefault(ends, count) != count:
                text = f"{count} xGMI links to {other} one way, {nvlinks[ends]} the other: the fewer taken"
                findings.append(Finding("fault", label[node.name], text))
                nvlinks[ends] = min(count, nvlinks[ends])
    address = {label[node.name]: _address(properties[node.name]) for node in gpus}
    generation = {label[node.name]: _gfx(properties[node.name]) for node in gpus}
    host = HostFacts(
        gpus=tuple(label.values()),
        nics=(),
        nvlinks=nvlinks,
        levels={},
        link_kind="xgmi",
        generation={gpu: number for gpu, number in generation.items() if number},
    )
    return Reading(host, tuple(findings), "amdgpu's /sys/class/kfd"), address


def _properties(path: Path) -> dict[str, int]:
    words = (line.split() for line in text_of(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def _address(properties: Mapping[str, int]) -> str:
    """A GPU's PCI address: `location_id` is bus (8 bits), device (5) and function (3)."""
    location = properties.get("location_id", 0)
    domain = properties.get("domain", 0)
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _gfx(properties: Mapping[str, int]) -> int:
    """The gfx number (90a is 910) of `gfx_target_version` (90010)."""
    version = properties.get("gfx_target_version", 0)
    return 100 * (version // 10000) + 10 * (version // 100 % 100) + version % 100
