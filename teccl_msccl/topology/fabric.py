"""Fabric: hosts joined into a cluster by a network of their NICs, or by the wiring a board brings itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, permutations

from ..errors import InputError
from . import network as networks
from .figures import NETWORK_LINK_ALPHA_US
from .model import Link, Node, Topology
from .wiring import Wiring, wiring_of

MOST_GPUS = 8192

#: A network switch stands in no host.
NO_HOST = -1


def compose(host: Topology, hosts: int, network: str | None = None) -> Topology:
    """`hosts` copies of a one-host topology, joined by `network`.

    "rail" joins NIC i of every host at rail switch i (the default with several NICs), "single-switch" joins all NICs
    at one switch (the default with one); "fat-tree", "ring" and network files are described in `network`. A board
    with its own `"network"` description is joined by that unless another is asked for; hosts of one NVLink domain
    (`nvlink_domain` of their NVSwitches) share an NVSwitch. Ranks are host-major, GPUs' node ids are their ranks,
    network switches have host −1. A NIC's network link has its line rate; NIC → switch → NIC costs 2.7 µs in all.
    O(hosts · (nodes + links)).

    Raises `InputError` for a bad number of hosts, an unknown network, or hosts without NICs.
    """
    if hosts < 1:
        raise InputError(f"{hosts} hosts; at least 1 is needed")
    if hosts * host.nranks > MOST_GPUS:
        raise InputError(
            f"{host.name}: {hosts} hosts have {hosts * host.nranks} GPUs; at most {MOST_GPUS} are composed"
        )
    networks.check(network)
    if hosts == 1:
        return host
    joined = join([host] * hosts, network)
    return replace(joined, name=f"{host.name}x{hosts}")


def join(parts: Sequence[Topology], network: str | None = None) -> Topology:
    """One-host topologies, equal or not, joined into a cluster as `compose` says."""
    networks.check(network)
    for part in parts:
        if len(part.hosts) > 1:
            raise InputError(f"{part.name}: already {len(part.hosts)} hosts; compose one-host topologies")
    if len(parts) == 1:
        return parts[0]
    cluster = _Cluster(parts)
    own = wiring_of(parts[0], len(parts)) if network is None and all(part == parts[0] for part in parts) else None
    if own is not None:
        cluster.wire_gpus(own)
    elif network is not None or not cluster.one_domain or any(map(network_nics, parts)):
        cluster.wire_nics(network or default_network(parts))
    return cluster.topology()


def default_network(parts: Sequence[Topology]) -> str:
    """The network that hosts are joined by where none is named: as their boards say, else by their NICs."""
    own = {part.extra.get("network") for part in parts if isinstance(part.extra.get("network"), str)}
    if len(own) == 1:
        return str(own.pop())
    return "rail" if max(len(network_nics(part)) for part in parts) > 1 else "single-switch"


def network_nics(host: Topology) -> tuple[int, ...]:
    """Node ids of the NICs that join a host to others: those next to a GPU or on a GPU's PCIe switch, or, where no
    NIC is, all. The rest (storage, management) take no part."""
    kind = {node.id: node.kind for node in host.nodes}
    neighbours: dict[int, set[int]] = {id: set() for id in kind}
    for link in host.links:
        neighbours[link.src].add(link.dst)
    nics = tuple(node.id for node in host.nodes if node.kind == "nic")
    near = tuple(
        nic
        for nic in nics
        if any(
            kind[next] == "gpu" or (kind[next] == "switch" and any(kind[far] == "gpu" for far in neighbours[next]))
            for next in neighbours[nic]
        )
    )
    return near or nics


def line_rate_GBps(host: Topology, nic: int) -> float:
    """A NIC's line rate: what its node says (`line_rate_GBps`), else its fastest link."""
    stated = host.node_by_id[nic].extra.get("line_rate_GBps")
    if stated is None:
        rates = [link.bandwidth_GBps for link in host.links if link.src == nic]
        if not rates:
            raise InputError(f"{host.name}: NIC {nic} has neither a link nor line_rate_GBps; add one")
        return max(rates)
    if isinstance(stated, bool) or not isinstance(stated, (int, float)) or not stated > 0:
        raise InputError(f"{host.name}: NIC {nic}: line_rate_GBps must be a positive number")
    return float(stated)


def _network_alpha_us(host: Topology, nic: int) -> float:
    """The latency of a NIC's network link: what its node says (`network_alpha_us`), else half of the network's."""
    stated = host.node_by_id[nic].extra.get("network_alpha_us", NETWORK_LINK_ALPHA_US)
    if isinstance(stated, bool) or not isinstance(stated, (int, float)) or not stated >= 0:
        raise InputError(f"{host.name}: NIC {nic}: network_alpha_us must be a number, zero or more")
    return float(stated)


class _Cluster:
    """Hosts side by side, renumbered, before and while they are joined."""

    def __init__(self, parts: Sequence[Topology]) -> None:
        self.parts = parts
        self.ids: list[dict[int, int]] = [{} for _ in parts]
        self.nodes: list[Node] = []
        shared: dict[object, int] = {}  # NVLink domain → the NVSwitch of all its hosts
        self.network = "an NVLink domain"
        for of_gpus in (True, False):  # GPUs first, so that their ids are their ranks
            for host, part in enumerate(parts):
                for node in _gpus(part) if of_gpus else _others(part):
                    domain = node.extra.get("nvlink_domain")
                    if domain in shared:
                        self.ids[host][node.id] = shared[domain]
                        continue
                    if domain is not None:
                        shared[domain] = len(self.nodes)
                    self.ids[host][node.id] = len(self.nodes)
                    rank = len(self.nodes) if of_gpus else None
                    self.nodes.append(replace(node, id=len(self.nodes), rank=rank, host=host))
        self.one_domain = len(shared) == 1 and all(
            any("nvlink_domain" in node.extra for node in part.nodes) for part in parts
        )
        number = count()
        self.links = [
            replace(link, id=next(number), src=ids[link.src], dst=ids[link.dst])
            for ids, part in zip(self.ids, parts, strict=True)
            for link in part.links
        ]

    def wire_nics(self, network: str) -> None:
        """Join the NICs as `network` says."""
        chosen = [network_nics(part) for part in self.parts]
        for part, nics in zip(self.parts, chosen, strict=True):
            if not nics:
                raise InputError(
                    f"{part.name}: no NIC to join hosts by; choose a board with NICs, or add nic nodes next to its GPUs"
                )
        rates = [[line_rate_GBps(part, nic) for nic in nics] for part, nics in zip(self.parts, chosen, strict=True)]
        plan = networks.plan(network, rates)
        self.network = plan.name
        nic_id = [[ids[nic] for nic in nics] for ids, nics in zip(self.ids, chosen, strict=True)]
        alphas = [[_network_alpha_us(part, nic) for nic in nics] for part, nics in zip(self.parts, chosen, strict=True)]
        switches = {name: self._switch(name) for name in plan.switches}
        for cable in plan.cables:
            GBps = cable.bandwidth_GBps if cable.bandwidth_GBps is not None else rates[cable.host][cable.nic]
            alpha_us = cable.alpha_us if cable.alpha_us is not None else alphas[cable.host][cable.nic]
            self._wire(nic_id[cable.host][cable.nic], switches[cable.switch], GBps, alpha_us)
        for uplink in plan.uplinks:
            self._wire(switches[uplink.one], switches[uplink.other], uplink.bandwidth_GBps, uplink.alpha_us)
        for crossing in plan.crossings:
            (one, i), (other, j) = crossing.one, crossing.other
            self._wire(
                nic_id[one][i], nic_id[other][j], min(rates[one][i], rates[other][j]), alphas[one][i] + alphas[other][j]
            )

    def wire_gpus(self, wiring: Wiring) -> None:
        """Join the GPUs as the board itself says."""
        self.network = "own wiring"
        switch = self._switch(wiring.switch) if wiring.switch else None
        gpus = [[ids[gpu] for gpu in part.gpus] for ids, part in zip(self.ids, self.parts, strict=True)]
        for wire in wiring.wires:
            figures = (wire.bandwidth_GBps, wire.alpha_us)
            if wire.src is not None and wire.dst is not None:
                for one, other in permutations(gpus, 2):
                    self._link(one[wire.src], other[wire.dst], *figures)
            elif switch is not None:
                for own in gpus:
                    src = switch if wire.src is None else own[wire.src]
                    dst = switch if wire.dst is None else own[wire.dst]
                    self._link(src, dst, *figures)

    def topology(self) -> Topology:
        first = self.parts[0]
        sources = list(dict.fromkeys(part.source for part in self.parts if part.source))
        limits = [part.threadblock_GBps for part in self.parts if part.threadblock_GBps is not None]
        return Topology(
            name="+".join(dict.fromkeys(part.name for part in self.parts)),
            nodes=tuple(self.nodes),
            links=tuple(self.links),
            source="; ".join([*sources, f"{len(self.parts)} hosts joined by {self.network}"]),
            threadblock_GBps=min(limits, default=None),
            extra={key: value for key, value in first.extra.items() if key != "network"},
        )

    def _switch(self, name: str) -> int:
        self.nodes.append(Node(len(self.nodes), "switch", host=NO_HOST, name=name))
        return self.nodes[-1].id

    def _wire(self, one: int, other: int, GBps: float, alpha_us: float) -> None:
        self._link(one, other, GBps, alpha_us)
        self._link(other, one, GBps, alpha_us)

    def _link(self, src: int, dst: int, GBps: float, alpha_us: float) -> None:
        self.links.append(Link(len(self.links), src, dst, GBps, alpha_us, "network"))


def _gpus(part: Topology) -> Iterator[Node]:
    return (part.node_by_id[gpu] for gpu in part.gpus)


def _others(part: Topology) -> Iterator[Node]:
    return (node for node in part.nodes if node.kind != "gpu")
