"""HostFacts: what is known of one host's devices and how they are joined, before a topology is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..detected import Finding

if TYPE_CHECKING:
    from .pci_tree import Root

#: PCIe relations, nearest first: one bridge, several bridges, a host bridge, a NUMA node, across NUMA nodes.
LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")

#: Most NVLinks that a GPU can have (NVML's limit).
MOST_NVLINKS = 36

Pair = frozenset[str]


def pair(one: str, other: str) -> Pair:
    """The unordered pair of two devices."""
    return frozenset((one, other))


@dataclass(frozen=True)
class HostFacts:
    """Devices by the labels of their source; a pair that is absent from a mapping is unknown there.

    `gpus` are in rank order. `nvlinks` counts the links (NVLink or xGMI, see `link_kind`) of a GPU pair as its source
    reports them: to the peer, or to the NVSwitch; a source that can tell the two apart puts the latter in `switched`.
    `levels` holds the PCIe relation of pairs (a pair with NVLink usually hides its own); a source that knows the PCI
    tree itself gives it as `pci` besides. Bandwidths are in GB/s per direction.
    """

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    nvlinks: Mapping[Pair, int]
    levels: Mapping[Pair, str]
    numa: Mapping[str, str] = field(default_factory=dict)  # NUMA node, where it is one
    affinity: Mapping[str, str] = field(default_factory=dict)  # CPU cores, "0-19,40-59"
    models: Mapping[str, str] = field(default_factory=dict)  # product name of a GPU
    link_GBps: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # line rate of each active NVLink of a GPU
    aliases: Mapping[str, str] = field(default_factory=dict)  # a NIC's device name
    link_kind: str = "nvlink"  # or "xgmi"
    generation: Mapping[str, int] = field(default_factory=dict)  # sm of a GPU (80), or AMD's gfx number (90a is 910)
    switched: Mapping[str, int] = field(default_factory=dict)  # links of a GPU to the NVSwitch
    domain: Mapping[str, str] = field(default_factory=dict)  # NVLink domain of a GPU, where it spans hosts
    pcie_GBps: Mapping[str, float] = field(default_factory=dict)  # a device's own PCIe link
    nic_GBps: Mapping[str, float] = field(default_factory=dict)  # a NIC's line rate
    pci: tuple[Root, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        return self.gpus + self.nics

    def nvlinks_of(self, gpu: str) -> dict[str, int]:
        """Link count to each GPU that `gpu` shares NVLinks with."""
        counts = {other: self.nvlinks.get(pair(gpu, other), 0) for other in self.gpus if other != gpu}
        return {other: n for other, n in counts.items() if n}


@dataclass(frozen=True)
class Reading:
    """What one source says of a host, and what of it was assumed, doubted and found broken."""

    host: HostFacts
    findings: tuple[Finding, ...] = ()
    source: str = ""
