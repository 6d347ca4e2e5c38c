"""Repair: a healthy machine's schedule on what is left of the machine. What still works is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import networkx as nx

from ..collective.demand import Demand
from ..errors import Refused
from ..schedule.schedule import Schedule, Send
from ..topology.model import Topology
from ..topology.paths import direct_paths
from .baselines.plan import gpu_graph
from .halves import Owner, gathered, gathering, in_blocks, spreading
from .mirror import chained, mirrored


class Copy(NamedTuple):
    """Chunk of the new demand, from rank to rank (old ones that are gone are None), on a path that may be gone."""

    chunk: int
    src: int | None
    dst: int | None
    path: tuple[int, ...]


def is_remainder(topology: Topology, healthy: Topology) -> bool:
    """Whether `topology` is `healthy` with some nodes and links lost, and maybe slower links."""
    nodes = {node.id: node.kind for node in healthy.nodes}
    links = {link.id: (link.src, link.dst) for link in healthy.links}
    return all(nodes.get(node.id) == node.kind for node in topology.nodes) and all(
        links.get(link.id) == (link.src, link.dst) for link in topology.links
    )


def repaired(start: Schedule, topology: Topology, demand: Demand) -> Schedule:
    """`start` on `topology`, a remainder of its own, for `demand`, the same collective among the GPUs that are left.

    Sends whose links and ends are still there keep their path and order; a GPU that a lost send was to serve gets the
    chunk from its nearest holder over GPU paths. Reductions are repaired as the copies that they are backwards. Raises
    `Refused` for a chunk that can no longer reach a GPU.
    """
    chunk_of = _same_chunks(start, topology, demand)
    rank_of = {rank: topology.rank_of.get(node) for rank, node in enumerate(start.topology.gpus)}

    def copies(sends: Iterable[Send], turned: bool) -> list[Copy]:
        found = []
        for send in sends:
            chunk = chunk_of.get(send.chunk)
            if chunk is not None:
                a, b = (rank_of[rank] for rank in start.ends(send))
                found.append(Copy(chunk, b, a, send.path[::-1]) if turned else Copy(chunk, a, b, send.path))
        return found

    in_order = sorted(start.sends, key=lambda send: send.start_us)
    spread = copies((send for send in in_order if not send.reduce), turned=False)
    if not demand.reducing:
        return _copied(topology, demand, spread)
    merged = sorted((send for send in start.sends if send.reduce), key=start.arrival_us, reverse=True)
    owner = _owner(start, chunk_of, rank_of, demand)
    backwards = _copied(topology.reversed(), gathering(demand, owner), copies(merged, turned=True))
    reduced = mirrored(backwards, topology, gathered(demand, owner))
    rest = spreading(demand, owner)
    if all(set(chunk.want) <= set(chunk.origin) for chunk in rest.chunks):
        return Schedule(topology, demand, reduced.sends, reduced.finish_us)
    return chained(reduced, _copied(topology, rest, spread), demand)


def _same_chunks(start: Schedule, topology: Topology, demand: Demand) -> Mapping[int, int]:
    """Chunks of the start's demand and the ones of `demand` that have the same origins and wants, GPUs that are gone
    left out."""
    free: dict[tuple[frozenset[int], frozenset[int], bool, int], list[int]] = defaultdict(list)
    for chunk in reversed(demand.chunks):
        free[_nodes(topology, chunk.origin), _nodes(topology, chunk.want), chunk.reduce, chunk.group].append(chunk.id)
    left = frozenset(topology.gpus)
    pairs = {}
    for chunk in start.demand.chunks:
        origin, want = (_nodes(start.topology, ranks) & left for ranks in (chunk.origin, chunk.want))
        same = free.get((origin, want, chunk.reduce, chunk.group))
        if same:
            pairs[chunk.id] = same.pop()
    return pairs


def _nodes(topology: Topology, ranks: Iterable[int]) -> frozenset[int]:
    return frozenset(topology.gpus[rank] for rank in ranks)


def _owner(start: Schedule, chunk_of: Mapping[int, int], rank_of: Mapping[int, int | None], demand: Demand) -> Owner:
    """Where the start completes each reduction, if that is left: at the origin that passes its share to nobody."""
    passed = {(send.chunk, start.ends(send)[0]) for send in start.sends if send.reduce}
    known: dict[int, int] = {}
    for old, new in chunk_of.items():
        keepers = [rank for rank in start.demand.chunks[old].origin if (old, rank) not in passed]
        at = rank_of[keepers[0]] if len(keepers) == 1 else None
        if at is not None and at in demand.chunks[new].want:
            known[new] = at
    blocks: Callable[..., int] = in_blocks(demand)
    return lambda chunk: known[chunk.id] if chunk.id in known else blocks(chunk)


def _copied(topology: Topology, demand: Demand, copies: Sequence[Copy]) -> Schedule:
    """The copies that still can be, and what has to stand in for the others; played in that order."""
    routes = _Routes(topology, demand)
    for copy in copies:
        if copy.dst is None or copy.dst in routes.holders[copy.chunk]:
            continue
        if copy.src in routes.holders[copy.chunk] and routes.is_open(copy):
            routes.send(copy.chunk, copy.dst, copy.path)
        else:
            routes.fetch(copy.chunk, copy.dst)
    for chunk in demand.chunks:
        for want in chunk.want:
            routes.fetch(chunk.id, want)
    return Schedule(topology, demand, tuple(routes.useful()), 0.0).retimed()


class _Routes:
    """Sends in causal order, each GPU getting a chunk once."""

    def __init__(self, topology: Topology, demand: Demand) -> None:
        self.topology, self.demand = topology, demand
        self.holders = {chunk.id: set(chunk.origin) for chunk in demand.chunks}
        self.sends: list[Send] = []
        self._graph = gpu_graph(topology, max((chunk.bytes for chunk in demand.chunks), default=0.0))
        self._load_us: dict[int, float] = defaultdict(float)
        self._paths: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
        for path in direct_paths(topology):
            self._paths[path.src_rank, path.dst_rank].append(path.links)

    def is_open(self, copy: Copy) -> bool:
        """Whether the path's links are there, and its ends in the chunk's group."""
        allowed = self.demand.holders(self.demand.chunks[copy.chunk])
        inside = allowed is None or copy.dst in allowed
        return inside and all(link in self.topology.link_by_id for link in copy.path)

    def send(self, chunk: int, dst: int, path: tuple[int, ...]) -> None:
        for link in path:
            self._load_us[link] += self.topology.link_by_id[link].beta_us(self.demand.chunks[chunk].bytes)
        self.sends.append(Send(chunk, path, 0.0))
        self.holders[chunk].add(dst)

    def fetch(self, chunk: int, dst: int) -> None:
        """Bring the chunk to `dst` from its nearest holder, over the least loaded of the direct paths."""
        holders = self.holders[chunk]
        if dst in holders:
            return
        allowed = self.demand.holders(self.demand.chunks[chunk])
        graph = self._graph if allowed is None else self._graph.subgraph(allowed)
        try:
            _, route = nx.multi_source_dijkstra(graph, holders & set(graph), dst, weight="us")
        except (nx.NetworkXNoPath, nx.NodeNotFound, ValueError):
            raise Refused(f"{self.topology.name}: GPU {dst} cannot be reached by chunk {chunk}") from None
        for a, b in pairwise(route):
            path = min(self._paths[a, b], key=lambda links: max(self._load_us[link] for link in links))
            self.send(chunk, b, path)

    def useful(self) -> list[Send]:
        """The sends that lead to a GPU that wants the chunk."""
        needed = {(chunk.id, want) for chunk in self.demand.chunks for want in chunk.want}
        kept = []
        for send in reversed(self.sends):
            ends = [self.topology.link_by_id[send.path[0]].src, self.topology.link_by_id[send.path[-1]].dst]
            src, dst = (self.topology.rank_of[node] for node in ends)
            if (send.chunk, dst) in needed:
                needed.add((send.chunk, src))
                kept.append(send)
        return kept[::-1]


def start_on(start: Schedule, topology: Topology, demand: Callable[[int], Demand]) -> Schedule:
    """The start as it is, or repaired where `topology` is a remainder of its machine; `demand(n)` is what it must
    meet, in n chunks a share."""
    if start.topology == topology or not is_remainder(topology, start.topology):
        return start
    return replace(repaired(start, topology, demand(start.demand.nchunks)), extra=start.extra)
