"""Builder: a topology under construction, numbering nodes and links as they are added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .model import Link, Node, Topology


class Builder:
    """Collects nodes and two-way wires; `topology` freezes (and so validates) them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self._next_rank = 0

    def gpu(self, name: str) -> int:
        """A GPU with the next rank; GPUs come before other nodes where ids should equal ranks."""
        rank, self._next_rank = self._next_rank, self._next_rank + 1
        return self._add(Node(len(self.nodes), "gpu", rank=rank, name=name))

    def node(self, kind: str, name: str, extra: Mapping[str, Any] | None = None) -> int:
        """A node that only passes data on: switch, nic or cpu."""
        return self._add(Node(len(self.nodes), kind, name=name, extra=extra or {}))

    def wire(self, one: int, other: int, GBps: float, alpha_us: float, kind: str = "") -> None:
        """A link each way between two nodes, `GBps` and `alpha_us` per direction."""
        for src, dst in ((one, other), (other, one)):
            self.links.append(Link(len(self.links), src, dst, GBps, alpha_us, kind))

    def topology(self, name: str, source: str = "", threadblock_GBps: float | None = None) -> Topology:
        """What was built. Raises `InputError` where it is no valid topology."""
        return Topology(name, tuple(self.nodes), tuple(self.links), source, threadblock_GBps)

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return node.id
