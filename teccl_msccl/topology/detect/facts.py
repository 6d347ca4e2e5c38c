"""HostFacts: what is known of one host's devices and how they are joined, before a topology is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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

    `gpus` are in rank order. `nvlinks` counts the links of a GPU pair as its source reports them: to the peer, or to
    the NVSwitch. `levels` holds the PCIe relation of pairs (a pair with NVLink usually hides its own).
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

    @property
    def devices(self) -> tuple[str, ...]:
        return self.gpus + self.nics

    def nvlinks_of(self, gpu: str) -> dict[str, int]:
        """Link count to each GPU that `gpu` shares NVLinks with."""
        counts = {other: self.nvlinks.get(pair(gpu, other), 0) for other in self.gpus if other != gpu}
        return {other: n for other, n in counts.items() if n}
