"""Topology: a directed multigraph of GPUs, switches, NICs and CPUs joined by α–β links."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx

from ..errors import InputError, naming
from ..files import read_json, require_flag, require_keys, require_number, require_whole, write_text

NODE_KINDS = ("gpu", "switch", "nic", "cpu")
LINK_KINDS = ("nvlink", "xgmi", "pcie", "network", "socket")

#: Figures of a link beyond these (a byte a second, an α of days) are slips of the keyboard.
LEAST_GBps = 1e-9
MOST_GBps = 1e12
MOST_ALPHA_US = 1e12


@dataclass(frozen=True)
class Node:
    """A GPU (which has a rank, and stores data) or a switch, NIC or CPU (which only passes data on)."""

    id: int
    kind: str
    rank: int | None = None
    host: int = 0
    name: str = ""
    multicast: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Link:
    """One direction of a wire: `bandwidth_GBps` in 1e9 bytes/s, `alpha_us` the latency of crossing it."""

    id: int
    src: int
    dst: int
    bandwidth_GBps: float
    alpha_us: float
    kind: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def beta_us(self, nbytes: float) -> float:
        """Time for which `nbytes` occupy the link, in µs."""
        return nbytes / (self.bandwidth_GBps * 1e3)


@dataclass(frozen=True)
class Topology:
    """Directed multigraph of nodes and links (design: data model).

    Non-GPU nodes do not store: a transfer crosses them cut-through and occupies every link of its path.
    α is paid once per link, β is occupancy. Construction validates and raises `InputError`.
    """

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    source: str = ""
    threadblock_GBps: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self.validate()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Of all nodes and links, once: whatever is remembered by topology looks it up again and again."""
        return hash((self.name, self.nodes, self.links, self.source, self.threadblock_GBps))

    def __getstate__(self) -> dict[str, Any]:
        """Without the hash: another process has another."""
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    # -- what it holds ---------------------------------------------------------------------------------

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """Node ids of the GPUs, by rank."""
        ranked = [(node.rank, node.id) for node in self.nodes if node.rank is not None]
        return tuple(id for _, id in sorted(ranked))

    @property
    def nranks(self) -> int:
        """Number of GPUs."""
        return len(self.gpus)

    @cached_property
    def node_by_id(self) -> Mapping[int, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def link_by_id(self) -> Mapping[int, Link]:
        return {link.id: link for link in self.links}

    @cached_property
    def rank_of(self) -> Mapping[int, int]:
        """Rank of each GPU's node id."""
        return {id: rank for rank, id in enumerate(self.gpus)}

    @property
    def hosts(self) -> tuple[int, ...]:
        """The hosts that GPUs sit in, ascending."""
        return tuple(sorted({node.host for node in self.nodes if node.kind == "gpu"}))

    def graph(self) -> nx.MultiDiGraph:
        """The topology as networkx sees it: node ids as nodes, link ids as edge keys."""
        graph = nx.MultiDiGraph()
        graph.add_nodes_from((node.id, {"node": node}) for node in self.nodes)
        graph.add_edges_from((link.src, link.dst, link.id, {"link": link}) for link in self.links)
        return graph

    def reversed(self) -> Topology:
        """The same machine with every link turned round; link ids are kept."""
        turned = tuple(replace(link, src=link.dst, dst=link.src) for link in self.links)
        return replace(self, links=turned)

    # -- validation ------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise `InputError` unless ranks are 0..n−1, links join known nodes with usable figures, and every
        GPU can reach every other."""
        self._validate_nodes()
        self._validate_links()
        self._validate_connected()

    def _validate_nodes(self) -> None:
        seen: set[int] = set()
        for node in self.nodes:
            if node.id in seen:
                raise InputError(f"{self.name}: node {node.id}: the id is used twice; give each node its own")
            seen.add(node.id)
            if node.kind not in NODE_KINDS:
                raise InputError(f"{self.name}: node {node.id}: kind {node.kind!r}; use {', '.join(NODE_KINDS)}")
        ranks = sorted(node.rank for node in self.nodes if node.kind == "gpu" and node.rank is not None)
        unranked = [node.id for node in self.nodes if node.kind == "gpu" and node.rank is None]
        if unranked:
            raise InputError(f"{self.name}: node {unranked[0]}: a gpu needs a rank; number the GPUs from 0")
        if not ranks:
            raise InputError(f"{self.name}: no gpu among the nodes; a topology needs at least one")
        if ranks != list(range(len(ranks))):
            raise InputError(f"{self.name}: the ranks must be 0..{len(ranks) - 1}, each once; found {_brief(ranks)}")

    def _validate_links(self) -> None:
        known = {node.id for node in self.nodes}
        seen: set[int] = set()
        for link in self.links:
            where = f"{self.name}: link {link.id} ({link.src}→{link.dst})"
            if link.id in seen:
                raise InputError(f"{where}: the id is used twice; give each link its own")
            seen.add(link.id)
            for end in (link.src, link.dst):
                if end not in known:
                    raise InputError(f"{where}: no node {end}; add it or mend the link")
            if link.src == link.dst:
                raise InputError(f"{where}: joins a node to itself; remove it")
            _validate_bandwidth(link.bandwidth_GBps, f"{where}: bandwidth_GBps")
            if not 0 <= link.alpha_us <= MOST_ALPHA_US:
                raise InputError(
                    f"{where}: alpha_us is {link.alpha_us}; it must be zero or more, at most {MOST_ALPHA_US:g}"
                )
        if self.threadblock_GBps is not None:
            _validate_bandwidth(self.threadblock_GBps, f"{self.name}: threadblock_GBps")

    def _validate_connected(self) -> None:
        graph = self.graph()
        first = self.gpus[0]
        for reach, verb in (
            (nx.descendants(graph, first), "reach"),
            (nx.ancestors(graph, first), "be reached by"),
        ):
            lost = [id for id in self.gpus[1:] if id not in reach]
            if lost:
                raise InputError(
                    f"{self.name}: disconnected: GPU {self.rank_of[first]} cannot {verb} GPU {self.rank_of[lost[0]]}; "
                    "add the missing links"
                )

    # -- JSON ------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The design's JSON form; unknown keys that were read are kept."""
        out: dict[str, Any] = {"name": self.name}
        if self.source:
            out["source"] = self.source
        if self.threadblock_GBps is not None:
            out["threadblock_GBps"] = self.threadblock_GBps
        out.update(self.extra)
        out["nodes"] = [_node_to_json(node) for node in self.nodes]
        out["links"] = [_link_to_json(link) for link in self.links]
        return out

    @classmethod
    def from_json(cls, value: Any, where: str = "topology") -> Topology:
        """Build from the design's JSON form; `where` names it in errors. Raises `InputError`."""
        if not isinstance(value, dict):
            raise InputError(f'{where}: a topology is an object {{"name", "nodes", "links"}}')
        for key in ("nodes", "links"):
            if not isinstance(value.get(key), list):
                raise InputError(f"{where}: {key!r} must be a list; a topology has name, nodes and links")
        known = {"name", "nodes", "links", "source", "threadblock_GBps"}
        threadblock = value.get("threadblock_GBps")
        name = str(value.get("name") or where)
        with naming(where, name):
            return cls(
                name=name,
                nodes=tuple(_node_from_json(item, f"{where}: nodes[{i}]") for i, item in enumerate(value["nodes"])),
                links=tuple(_link_from_json(item, i, f"{where}: links[{i}]") for i, item in enumerate(value["links"])),
                source=str(value.get("source") or ""),
                threadblock_GBps=None
                if threadblock is None
                else require_number(threadblock, f"{where}: threadblock_GBps"),
                extra={key: item for key, item in value.items() if key not in known},
            )

    @classmethod
    def read(cls, path: str | Path) -> Topology:
        """Read a topology JSON file. Raises `InputError` that names it."""
        return cls.from_json(read_json(path, "a topology"), str(path))

    @classmethod
    def load(cls, name: str | Path, hosts: int = 1, network: str | None = None) -> Topology:
        """A preset's name (`"dgx-a100"`, `"ring-8"`, `"dgx-a100x2"`), `"local"`, a topology JSON file, a saved
        `nvidia-smi topo -m` output or an NCCL topology XML; `hosts` copies joined by `network` ("rail", "fat-tree",
        "single-switch", "ring", or a network file)."""
        from .catalog import load  # the catalog builds Topologies, so it imports this file

        return load(name, hosts=hosts, network=network).topology

    def write(self, path: str | Path) -> None:
        """Write the JSON form, atomically, one node or link a line."""
        value = self.to_json()
        head = {key: item for key, item in value.items() if key not in ("nodes", "links")}
        lines = [f"{json.dumps(key)}: {json.dumps(item)}" for key, item in head.items()]
        for key in ("nodes", "links"):
            rows = ",\n    ".join(json.dumps(item) for item in value[key])
            lines.append(f"{json.dumps(key)}: [\n    {rows}\n  ]")
        write_text(path, "{\n  " + ",\n  ".join(lines) + "\n}\n")


def _validate_bandwidth(GBps: float, where: str) -> None:
    if not LEAST_GBps <= GBps <= MOST_GBps:
        raise InputError(f"{where} is {GBps}; it must be positive, from {LEAST_GBps:g} to {MOST_GBps:g}")


def _node_to_json(node: Node) -> dict[str, Any]:
    out: dict[str, Any] = {"id": node.id, "kind": node.kind}
    if node.rank is not None:
        out["rank"] = node.rank
    if node.host:
        out["host"] = node.host
    if node.name:
        out["name"] = node.name
    if node.multicast:
        out["multicast"] = True
    return {**out, **node.extra}


def _link_to_json(link: Link) -> dict[str, Any]:
    out: dict[str, Any] = {"id": link.id, "src": link.src, "dst": link.dst}
    out["bandwidth_GBps"] = link.bandwidth_GBps
    out["alpha_us"] = link.alpha_us
    if link.kind:
        out["kind"] = link.kind
    return {**out, **link.extra}


def _node_from_json(value: Any, where: str) -> Node:
    require_keys(value, ("id", "kind"), where)
    known = {"id", "kind", "rank", "host", "name", "multicast"}
    rank = value.get("rank")
    return Node(
        id=require_whole(value["id"], f"{where}: id"),
        kind=str(value["kind"]),
        rank=None if rank is None or value["kind"] != "gpu" else require_whole(rank, f"{where}: rank"),
        host=require_whole(value.get("host", 0), f"{where}: host"),
        name=str(value.get("name", "")),
        multicast=require_flag(value.get("multicast", False), f"{where}: multicast"),
        extra={key: item for key, item in value.items() if key not in known},
    )


def _link_from_json(value: Any, position: int, where: str) -> Link:
    require_keys(value, ("src", "dst", "bandwidth_GBps", "alpha_us"), where)
    known = {"id", "src", "dst", "bandwidth_GBps", "alpha_us", "kind"}
    return Link(
        id=require_whole(value.get("id", position), f"{where}: id"),
        src=require_whole(value["src"], f"{where}: src"),
        dst=require_whole(value["dst"], f"{where}: dst"),
        bandwidth_GBps=require_number(value["bandwidth_GBps"], f"{where}: bandwidth_GBps"),
        alpha_us=require_number(value["alpha_us"], f"{where}: alpha_us"),
        kind=str(value.get("kind", "")),
        extra={key: item for key, item in value.items() if key not in known},
    )


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
