"""Assembly: the topology of one host from the facts about its devices.

NVLinks are direct, or meet in an NVSwitch where a GPU shows more links than it has. PCIe becomes a tree: devices
that are PIX or PXB apart share a PCIe switch, and with it one uplink; NUMA nodes are cpu nodes, joined pairwise. Where
the source knows the PCI tree itself, that is what PCIe becomes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

import networkx as nx

from ..builder import Builder
from ..detected import Detected, Finding
from ..figures import GPU_PCIE_LINK_ALPHA_US, NVLINK_ALPHA_US, NVSWITCH_LINK_ALPHA_US, UPSTREAM_LINK_ALPHA_US
from .facts import HostFacts, pair
from .generations import Generation, generation_of
from .numa import Domain, numa_domains
from .pci_tree import Place, Root


def assemble(host: HostFacts, name: str, source: str) -> Detected:
    """The topology that `host` describes, with the findings of its making. O(devices²)."""
    generation, findings = generation_of(host)
    assembly = _Assembly(host, generation)
    assembly.add_nvlinks()
    doubts: tuple[Finding, ...] = ()
    if host.pci:
        assembly.add_pci_tree(host.pci)
    else:
        domains, doubts = numa_domains(host)
        assembly.add_pcie(domains)
    assembly.remark_on_nics()
    topology = assembly.builder.topology(name, source, generation.threadblock_GBps)
    return Detected(topology, (*findings, *doubts, *assembly.findings))


class _Assembly:
    """A host's topology under construction, its GPUs already in it."""

    def __init__(self, host: HostFacts, generation: Generation) -> None:
        self.host = host
        self.generation = generation
        self.builder = Builder()
        self.findings: list[Finding] = []
        self.id = {gpu: self.builder.gpu(gpu) for gpu in host.gpus}
        for nic in host.nics:
            assumed = min(generation.nic_GBps, host.pcie_GBps.get(nic, generation.nic_GBps))
            extra: dict[str, object] = {"line_rate_GBps": host.nic_GBps.get(nic, assumed)}
            if nic in host.aliases:
                extra["device"] = host.aliases[nic]
            self.id[nic] = self.builder.node("nic", nic, extra)

    # -- NVLink ------------------------------------------------------------------------------------------

    def add_nvlinks(self) -> None:
        """Direct links, or an NVSwitch for each group of GPUs that one joins."""
        graph = nx.Graph()
        graph.add_nodes_from(self.host.gpus)
        graph.add_edges_from(tuple(ends) for ends in self.host.nvlinks)
        graph.add_edges_from(pairwise(gpu for gpu in self.host.gpus if gpu in self.host.switched))
        groups = [[gpu for gpu in self.host.gpus if gpu in group] for group in nx.connected_components(graph)]
        fabrics = [group for group in groups if len(group) > 1]
        for i, group in enumerate(fabrics):
            if any(gpu in self.host.switched or self._shown(gpu) > self.generation.nvlinks for gpu in group):
                self._add_nvswitch(group, "NVSwitch" if len(fabrics) == 1 else f"NVSwitch{i}")
            else:
                self._add_direct(group)
        if self.host.link_GBps and self.host.nvlinks:
            text = "NVLink bandwidths are the line rates of `nvidia-smi nvlink -s`; transfers reach a little less"
            self.findings.append(Finding("info", "", text))
        if fabrics:
            self._report_gpus_off(max(fabrics, key=len), [group[0] for group in groups if len(group) == 1])

    def _shown(self, gpu: str) -> int:
        """The links of a GPU if each that the source shows were one to the peer."""
        return sum(self.host.nvlinks_of(gpu).values())

    def _add_direct(self, group: Sequence[str]) -> None:
        for one, other in combinations(group, 2):
            if links := self.host.nvlinks.get(pair(one, other), 0):
                GBps = round(links * min(self._link_GBps(one), self._link_GBps(other)), 3)
                self.builder.wire(self.id[one], self.id[other], GBps, NVLINK_ALPHA_US, self.host.link_kind)

    def _add_nvswitch(self, group: Sequence[str], name: str) -> None:
        domains = {self.host.domain.get(gpu, "") for gpu in group}
        shared = domains.pop() if len(domains) == 1 else ""
        switch = self.builder.node("switch", name, {"nvlink_domain": shared} if shared else {})
        width = {gpu: self.host.switched.get(gpu) or max(self.host.nvlinks_of(gpu).values()) for gpu in group}
        usual = Counter(width.values()).most_common(1)[0][0]
        for gpu in group:
            GBps = round(width[gpu] * self._link_GBps(gpu), 3)
            self.builder.wire(self.id[gpu], switch, GBps, NVSWITCH_LINK_ALPHA_US, "nvlink")
            if width[gpu] < usual:
                text = f"only {width[gpu]} NVLinks to the NVSwitch, its siblings have {usual}"
                self.findings.append(Finding("fault", gpu, text))
            for other in group:
                told_by_pairs = gpu not in self.host.switched and self.id[gpu] < self.id[other]
                if told_by_pairs and pair(gpu, other) not in self.host.nvlinks:
                    text = f"no NVLink to {other}, though both are on the NVSwitch: check the fabric manager"
                    self.findings.append(Finding("fault", gpu, text))
        text = (
            f"NV{usual} is each GPU's links to the NVSwitch ({usual * self._link_GBps(group[0]):g} GB/s), not to a peer"
        )
        self.findings.append(Finding("info", "", text))
        if not shared and self.generation.sm == 100 and len(self.host.gpus) <= 4:
            text = "a GB200 compute tray: the NVLink domain of up to 72 GPUs beyond it is not visible here"
            self.findings.append(Finding("info", "", text))

    def _link_GBps(self, gpu: str) -> float:
        rates = self.host.link_GBps.get(gpu, ())
        return sum(rates) / len(rates) if rates else self.generation.nvlink_GBps

    def _report_gpus_off(self, fabric: Sequence[str], alone: Iterable[str]) -> None:
        """A GPU without NVLink is a broken box where the others form a fabric, and usual where they form a pair."""
        for gpu in alone:
            levels = Counter(
                self.host.levels[ends] for other in fabric if (ends := pair(gpu, other)) in self.host.levels
            )
            seen = levels.most_common(1)[0][0] if levels else "no NVLink"
            if len(fabric) > 2:
                text = (
                    f"off the NVLink fabric: {seen} to its {len(fabric)} siblings on it; check the GPU and its NVLinks"
                )
                self.findings.append(Finding("fault", gpu, text))
            else:
                text = f"no NVLink ({seen}): reached over PCIe, while {' and '.join(fabric)} are bridged"
                self.findings.append(Finding("warning", gpu, text))

    # -- PCIe --------------------------------------------------------------------------------------------

    def add_pcie(self, domains: Sequence[Domain]) -> None:
        """A cpu node per NUMA domain, PCIe switches under it, and the links between the domains."""
        cpus = [self.builder.node("cpu", domain.name) for domain in domains]
        for cpu, domain in zip(cpus, domains, strict=True):
            for shared in self._groups(domain.devices, ("PIX", "PXB")):
                self._hang(shared, cpu)
        for one, other in combinations(cpus, 2):
            self.builder.wire(one, other, self.generation.socket_GBps, UPSTREAM_LINK_ALPHA_US, "socket")
        if len(cpus) > 1:
            text = f"{len(cpus)} NUMA nodes, joined pairwise at {self.generation.socket_GBps:g} GB/s (assumed)"
            self.findings.append(Finding("info", "", text))

    def add_pci_tree(self, roots: Sequence[Root]) -> None:
        """The tree as it is: a cpu node per root, a switch for every bridge with several branches below."""
        rooted = [(self.builder.node("cpu", root.name), root) for root in roots]
        for cpu, root in rooted:
            for place in root.places:
                self._grow(place, cpu, place.GBps)
        for (one, here), (other, there) in combinations(rooted, 2):
            rates = [rate for rate in (here.socket_GBps, there.socket_GBps) if rate is not None]
            self.builder.wire(
                one, other, min(rates, default=self.generation.socket_GBps), UPSTREAM_LINK_ALPHA_US, "socket"
            )

    def _grow(self, place: Place, above: int, GBps: float) -> None:
        """Hang `place` below `above` on a link of `GBps`; a bridge with one branch is only a part of its link."""
        if place.label:
            alpha_us = GPU_PCIE_LINK_ALPHA_US if place.label in self.host.gpus else UPSTREAM_LINK_ALPHA_US
            self.builder.wire(self.id[place.label], above, GBps, alpha_us, "pcie")
        elif len(place.below) == 1:
            self._grow(place.below[0], above, min(GBps, place.below[0].GBps))
        else:
            switch = self._pcie_switch(above, GBps)
            for branch in place.below:
                self._grow(branch, switch, branch.GBps)

    def _hang(self, devices: Sequence[str], above: int) -> None:
        """Devices that are PXB or nearer below `above`: a lone one directly, the others behind their switches."""
        if len(devices) == 1:
            self._plug(devices[0], above)
            return
        switch = self._pcie_switch(above)
        bridges = self._groups(devices, ("PIX",))
        for bridge in bridges:
            below = self._pcie_switch(switch) if len(bridge) > 1 and len(bridges) > 1 else switch
            for device in bridge:
                self._plug(device, below)

    def _pcie_switch(self, above: int, GBps: float | None = None) -> int:
        number = sum(node.name.startswith("PCIe switch") for node in self.builder.nodes)
        switch = self.builder.node("switch", f"PCIe switch {number}")
        self.builder.wire(switch, above, GBps or self.generation.pcie_GBps, UPSTREAM_LINK_ALPHA_US, "pcie")
        return switch

    def _plug(self, device: str, above: int) -> None:
        alpha_us = GPU_PCIE_LINK_ALPHA_US if device in self.host.gpus else UPSTREAM_LINK_ALPHA_US
        GBps = self.host.pcie_GBps.get(device, self.generation.pcie_GBps)
        self.builder.wire(self.id[device], above, GBps, alpha_us, "pcie")

    def _groups(self, devices: Sequence[str], levels: tuple[str, ...]) -> list[list[str]]:
        """Devices that one of the levels joins, directly or through others, in order."""
        graph = nx.Graph()
        graph.add_nodes_from(devices)
        graph.add_edges_from(ends for ends in combinations(devices, 2) if self.host.levels.get(pair(*ends)) in levels)
        return [[device for device in devices if device in group] for group in nx.connected_components(graph)]

    # -- NICs --------------------------------------------------------------------------------------------

    def remark_on_nics(self) -> None:
        """Say what was assumed of the NICs, and which of them are far from every GPU."""
        if not self.host.nics:
            return
        unrated = [nic for nic in self.host.nics if nic not in self.host.nic_GBps]
        if unrated:
            rate = self.builder.nodes[self.id[unrated[0]]].extra["line_rate_GBps"]
            text = f"no NIC rates here: {rate:g} GB/s each assumed, as is usual for these GPUs"
            self.findings.append(Finding("info", unrated[0], text))
        near = {
            nic
            for nic in self.host.nics
            if any(self.host.levels.get(pair(gpu, nic)) in ("PIX", "PXB") for gpu in self.host.gpus)
        }
        for nic in self.host.nics:
            if near and nic not in near:
                text = "shares no PCIe switch with a GPU: taken for storage or management, not for collectives"
                self.findings.append(Finding("info", nic, text))
