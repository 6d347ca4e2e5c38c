"""Degraded machines: what is left when one NIC, or the links between two nodes, are down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..errors import InputError
from ..topology.model import Topology
from ..topology.symmetry import fingerprint


def single_failures(topology: Topology) -> Iterator[Topology]:
    """The machine without each NIC and without each pair of nodes' links, one of those that are the same but for the
    numbering. Failures that cut GPUs off are left out: nothing can be built for them. O(nodes + pairs) searches."""
    seen = {fingerprint(topology)}
    for left in (*_without_nics(topology), *_without_links(topology)):
        if left is not None and (mark := fingerprint(left)) not in seen:
            seen.add(mark)
            yield left


def _without_nics(topology: Topology) -> Iterator[Topology | None]:
    for node in topology.nodes:
        if node.kind == "nic":
            yield _reduced(topology, f"NIC {node.name or node.id}", node.id, frozenset())


def _without_links(topology: Topology) -> Iterator[Topology | None]:
    for a, b in sorted({(min(link.src, link.dst), max(link.src, link.dst)) for link in topology.links}):
        yield _reduced(topology, f"links {a}-{b}", None, frozenset({(a, b), (b, a)}))


def _reduced(topology: Topology, what: str, lost: int | None, ends: frozenset[tuple[int, int]]) -> Topology | None:
    links = tuple(
        link for link in topology.links if (link.src, link.dst) not in ends and lost not in (link.src, link.dst)
    )
    try:
        return replace(
            topology,
            name=f"{topology.name} without {what}",
            nodes=tuple(node for node in topology.nodes if node.id != lost),
            links=links,
        )
    except InputError:
        return None
