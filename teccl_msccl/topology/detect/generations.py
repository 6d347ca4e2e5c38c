"""Generations: the figures of each GPU generation, and which one a machine's GPUs are of."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import combinations

from ..detected import Finding
from .facts import HostFacts, pair


@dataclass(frozen=True)
class Generation:
    """A GPU generation: most NVLinks of a GPU, GB/s per NVLink and direction, and what its boards come with.

    The figures are NCCL's effective ones: PCIe x16 of the generation's boards, one NIC, one inter-socket link of the
    usual CPUs; `threadblock_GBps` is what one threadblock moves.
    """

    sm: int
    nvlinks: int
    nvlink_GBps: float
    pcie_GBps: float
    nic_GBps: float
    socket_GBps: float
    threadblock_GBps: float


GENERATIONS = {
    generation.sm: generation
    for generation in (
        Generation(60, 4, 18.0, 12.0, 12.0, 10.0, 20.0),
        Generation(61, 0, 18.0, 12.0, 12.0, 10.0, 20.0),
        Generation(70, 6, 20.0, 12.0, 12.0, 10.0, 20.0),
        Generation(75, 2, 20.0, 12.0, 12.0, 10.0, 20.0),
        Generation(80, 12, 20.0, 24.0, 24.0, 16.0, 24.0),
        Generation(86, 4, 12.0, 24.0, 24.0, 16.0, 24.0),
        Generation(89, 0, 12.0, 24.0, 24.0, 16.0, 24.0),
        Generation(90, 18, 20.6, 48.0, 48.0, 22.0, 40.0),
        Generation(100, 18, 40.1, 48.0, 48.0, 22.0, 40.0),
        Generation(120, 0, 40.1, 48.0, 48.0, 22.0, 40.0),
    )
}

#: AMD's, by gfx number: xGMI GB/s per link as RCCL's tuning model has them; no switch joins them.
AMD_GENERATIONS = {
    generation.sm: generation
    for generation in (
        Generation(906, 99, 24.0, 24.0, 12.0, 16.0, 20.0),
        Generation(908, 99, 24.0, 24.0, 24.0, 16.0, 20.0),
        Generation(910, 99, 36.0, 24.0, 24.0, 16.0, 24.0),
        Generation(942, 99, 48.0, 48.0, 48.0, 16.0, 40.0),
    )
}

#: A GPU of no known generation, on PCIe: the slowest figures, so that nothing is promised that is not there.
UNKNOWN = GENERATIONS[61]

_MODELS = (
    (r"P100", 60),
    (r"GTX|TITAN X|P4\b|P40|P[2456]000", 61),
    (r"V100|TITAN V|GV100", 70),
    (r"T4\b|RTX 20\d\d|TITAN RTX|Quadro RTX", 75),
    (r"A100|A800|A30\b", 80),
    (r"Ada|L4\b|L20\b|L40|RTX 40\d\d", 89),
    (r"A2\b|A10\b|A10G|A16\b|A40\b|RTX A\d|RTX 30\d\d", 86),
    (r"H100|H800|H200|H20\b|GH200", 90),
    (r"B100|B200|B300", 100),
    (r"RTX PRO|RTX 50\d\d", 120),
)


def generation_of(host: HostFacts) -> tuple[Generation, tuple[Finding, ...]]:
    """The generation of a host's GPUs: as stated, else by their product name, else by their NVLink counts."""
    for gpu, number in host.generation.items():
        generation = stated_generation(number, host.link_kind)
        name = f"sm{number}" if generation.sm in GENERATIONS else "gfx90a" if number == 910 else f"gfx{number}"
        model = host.models.get(gpu, "")
        text = (
            f"{model + ': ' if model else ''}{name}, {generation.nvlink_GBps:g} GB/s per {_LINK_NAMES[host.link_kind]}"
        )
        return generation, (Finding("info", gpu, text),)
    for gpu, model in host.models.items():
        for pattern, sm in _MODELS:
            if re.search(pattern, model, re.IGNORECASE):
                return GENERATIONS[sm], (Finding("info", gpu, f"{model}: sm{sm}, figures of that generation"),)
    if not host.nvlinks and not host.switched:
        if host.pci:
            return _by_pcie(host)
        text = (
            f"no NVLink and no GPU model in the capture: PCIe Gen3 x16 ({UNKNOWN.pcie_GBps:g} GB/s) assumed; "
            "add the output of `nvidia-smi -L` for the true generation"
        )
        return UNKNOWN, (Finding("warning", "", text),)
    if not host.nvlinks:
        host = replace(
            host, nvlinks={pair(*ends): _links_shared(host, *ends) for ends in combinations(host.switched, 2)}
        )
    sm, reason, doubt = _by_nvlinks(host)
    generation = GENERATIONS[sm]
    text = f"no GPU model in the capture: {reason} read as sm{sm}, {generation.nvlink_GBps:g} GB/s per NVLink"
    if doubt:
        text += f"; {doubt}: add the output of `nvidia-smi -L` to be sure"
    return generation, (Finding("warning" if doubt else "info", "", text),)


def _links_shared(host: HostFacts, one: str, other: str) -> int:
    """The links of two GPUs on an NVSwitch, as `nvidia-smi topo -m` would count them."""
    return min(host.switched[one], host.switched[other])


def _by_pcie(host: HostFacts) -> tuple[Generation, tuple[Finding, ...]]:
    """GPUs without NVLink and name, by the bandwidth of their PCIe links."""
    fastest = max((GBps for device, GBps in host.pcie_GBps.items() if device in host.gpus), default=0.0)
    generation = next((GENERATIONS[sm] for sm in (90, 80) if GENERATIONS[sm].pcie_GBps <= fastest), UNKNOWN)
    text = f"no GPU model here: PCIe links of {fastest:g} GB/s read as sm{generation.sm}"
    return generation, (Finding("warning", "", text),)


_LINK_NAMES = {"nvlink": "NVLink", "xgmi": "xGMI link"}


def stated_generation(number: int, link_kind: str) -> Generation:
    """The newest known generation that is not newer than `number` (the oldest where none is)."""
    known = AMD_GENERATIONS if link_kind == "xgmi" or number in AMD_GENERATIONS else GENERATIONS
    return known[max((sm for sm in known if sm <= number), default=min(known))]


def gfx_number(name: str) -> int | None:
    """AMD's gfx number of "gfx90a", "gfx942:sramecc+" or RCCL's "910": 910, 942 and 910; None for anything else."""
    match = re.match(r"(?:gfx)?(\d{1,2})(\d)([0-9a-f])(?![0-9a-f])", name.strip().lower())
    return 100 * int(match[1]) + 10 * int(match[2]) + int(match[3], 16) if match else None


def _by_nvlinks(host: HostFacts) -> tuple[int, str, str]:
    """(sm, what speaks for it, what else it could be) by the counts that each generation's boards show."""
    on_fabric = [gpu for gpu in host.gpus if host.nvlinks_of(gpu)]
    most = max(host.nvlinks.values())
    total = max(sum(host.nvlinks_of(gpu).values()) for gpu in on_fabric)
    all_to_all = len(host.nvlinks) == len(on_fabric) * (len(on_fabric) - 1) // 2
    shown = f"NV{most}" + (" between all" if all_to_all and len(on_fabric) > 2 else f", {total} links a GPU at most")
    if most > 12:
        if _on_grace(host):
            return 100, f"{shown} with 72-core CPUs (GB200)", ""
        return 90, shown, "B200 (sm100, 40.1 GB/s) shows it too"
    if most == 8:
        return 90, shown, "A800 (sm80, 20 GB/s) shows it too"
    if most > 6:
        return 80, shown, ""
    if most == 6 and all_to_all and len(on_fabric) == 4:
        return 90, shown, "" if _on_grace(host) else "four V100 on NVSwitches show it too"
    if most > 4:
        return 70, shown, ""
    if most == 4 and total == 4:
        return 86, shown, "a pair of A100 PCIe shows it too"
    if most == 4:
        return 80, shown, ""
    if most == 1 and total == 4 and len(on_fabric) == 8:
        return 60, shown, ""
    return 70, shown, ""


def _on_grace(host: HostFacts) -> bool:
    """Whether every known CPU affinity is the 72 cores of a Grace CPU."""
    spans = [re.fullmatch(r"(\d{1,6})-(\d{1,6})", cores) for cores in host.affinity.values() if cores]
    return bool(spans) and all(span and int(span[2]) - int(span[1]) == 71 for span in spans)
