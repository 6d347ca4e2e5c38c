"""What other tools' schedule files have in common, and its way onto a topology of ours."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from ..collective.demand import COLLECTIVES, ROOTED, Demand, demand_for
from ..errors import InputError, Refused
from ..topology.model import Link, Node, Topology
from ..topology.paths import direct_paths
from .schedule import Schedule, Send

#: Sends that a file may have: far more than any program can hold.
MOST_SENDS = 2_000_000


class Pattern(NamedTuple):
    """A chunk as another tool means it: the ranks that have it and want it, and whether it is reduced."""

    origin: tuple[int, ...]
    want: tuple[int, ...]
    reduce: bool = False


class Hop(NamedTuple):
    """A chunk (its position among the file's patterns) goes from one rank to another, in the order of `start_us`,
    across the nodes that the file calls `via` (empty: it does not say)."""

    chunk: int
    src: int
    dst: int
    start_us: float
    reduce: bool = False
    via: tuple[str, ...] = ()


@dataclass(frozen=True)
class ForeignSchedule:
    """A schedule file of another tool.

    `labels` are the file's names of the GPUs, by rank. `rates` is the machine as far as the file tells: from a label
    to a label, in chunks per µs; None where it says nothing of speeds. `known` is the collective, its root and its
    chunks per share, where the file names them and its chunks are in their order.
    """

    where: str
    tool: str
    labels: tuple[str, ...]
    chunks: tuple[Pattern, ...]
    hops: tuple[Hop, ...]
    rates: Mapping[tuple[str, str], float] | None
    known: tuple[str, int, int] | None = None

    def schedule(self, topology: Topology | None = None, size_bytes: float | None = None) -> Schedule:
        """The same sends on `topology` (None: the machine that the file tells of, without latencies), each as early
        as it goes in the file's order or, if that is better, first come first served (other tools let switches
        multicast, or say no times at all), and proved. `size_bytes` is counted as nccl-tests do; by default a chunk
        is one byte.

        Raises `InputError` where the topology is not the file's, `Refused` where the sends do not do what they are
        for.
        """
        demand, ids = self._demand(size_bytes)
        chunk_bytes = demand.chunks[0].bytes if demand.chunks else 1.0
        topology = topology or self._machine(chunk_bytes or 1.0)
        if topology.nranks != len(self.labels):
            raise InputError(
                f"{self.where}: is for {len(self.labels)} GPUs, but {topology.name} has {topology.nranks}; name the "
                "--topology it is for"
            )
        roads = _Roads(topology, self.labels, self.where, {(hop.src, hop.dst) for hop in self.hops})
        sends = tuple(
            Send(ids[hop.chunk], roads.take(hop, chunk_bytes), hop.start_us, hop.reduce)
            for hop in sorted(self.hops, key=lambda hop: hop.start_us)
        )
        try:
            schedule = Schedule(topology, demand, sends, 0.0).retimed()
            schedule = min(schedule, first_come(schedule).retimed(), key=lambda each: each.finish_us)
            schedule.validate()
        except Refused as error:
            raise Refused(f"{self.where}: this {self.tool} schedule is not right: {error}") from None
        return replace(schedule, extra={"imported_from": self.tool})

    def _demand(self, size_bytes: float | None) -> tuple[Demand, list[int]]:
        if self.known is not None:
            collective, root, nchunks = self.known
            ids = list(range(len(self.chunks)))
        else:
            collective, root, nchunks, ids = named(self.chunks, len(self.labels), self.where)
        demand = demand_for(collective, len(self.labels), size_bytes or 0.0, nchunks, root)
        if size_bytes is None:
            demand = demand_for(collective, len(self.labels), float(demand.chunks_per_size), nchunks, root)
        return demand, ids

    def _machine(self, chunk_bytes: float) -> Topology:
        if self.rates is None:
            raise InputError(f"{self.where}: a {self.tool} file tells no bandwidths; name the --topology it is for")
        rank_of = {label: rank for rank, label in enumerate(self.labels)}
        others = sorted({label for pair in self.rates for label in pair} - rank_of.keys())
        id_of = rank_of | {label: len(rank_of) + i for i, label in enumerate(others)}
        nodes = [Node(rank, "gpu", rank=rank, name=label) for label, rank in rank_of.items()]
        nodes += [Node(id_of[label], "switch", name=label) for label in others]
        links = [
            Link(i, id_of[src], id_of[dst], rate * chunk_bytes / 1e3, 0.0)
            for i, ((src, dst), rate) in enumerate(self.rates.items())
        ]
        source = f"as far as a {self.tool} file tells: links without latencies, chunks per time"
        try:
            return Topology(f"{self.tool} file", tuple(nodes), tuple(links), source=source)
        except InputError as error:
            raise InputError(f"{self.where}: {error}; or name the --topology it is for") from None


def first_come(schedule: Schedule) -> Schedule:
    """The same sends, whichever can start first going first: list scheduling, an order to play them in.

    A send waits for all sends before it in the list that bring its chunk to where it starts. A link is taken until
    the tail has left it. O(sends · path length · log sends), as often as links make sends wait anew.
    """
    waiting = [0] * len(schedule.sends)
    followers: dict[int, list[int]] = defaultdict(list)
    bringing: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, send in enumerate(schedule.sends):
        src, dst = schedule.ends(send)
        for earlier in bringing[send.chunk, src]:
            followers[earlier].append(i)
        waiting[i] = len(bringing[send.chunk, src])
        bringing[send.chunk, dst].append(i)
    links = schedule.topology.link_by_id
    free: dict[int, float] = defaultdict(float)
    queue = [(0.0, i) for i, count in enumerate(waiting) if not count]
    ready = [0.0] * len(waiting)
    sends: list[Send] = []
    while queue:
        estimate, i = heappop(queue)
        send = schedule.sends[i]
        start = max(ready[i], *(free[id] for id in send.path))
        if start > estimate:
            heappush(queue, (start, i))
            continue
        send = send._replace(start_us=start)
        arrival = schedule.arrival_us(send)
        occupied = arrival - start - sum(links[id].alpha_us for id in send.path)
        for id in send.path:
            free[id] = start + occupied
        sends.append(send)
        for follower in followers[i]:
            ready[follower] = max(ready[follower], arrival)
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(queue, (ready[follower], follower))
    return replace(schedule, sends=tuple(sends))


def named(chunks: Sequence[Pattern], nranks: int, where: str) -> tuple[str, int, int, list[int]]:
    """The collective whose chunks these are, its root, its chunks per share, and each one's id in it."""
    found = Counter(_unordered(chunk) for chunk in chunks)
    for name, pattern in COLLECTIVES.items():
        for root in range(nranks) if name in ROOTED else (0,):
            once = Counter(
                _unordered(Pattern(origin, want, len(origin) > 1)) for origin, want in pattern(nranks, 1, root)
            )
            nchunks, rest = divmod(len(chunks), once.total())
            if nchunks and not rest and found == Counter({key: count * nchunks for key, count in once.items()}):
                free = defaultdict(list)
                for id, (origin, want) in enumerate(pattern(nranks, nchunks, root)):
                    free[_unordered(Pattern(origin, want, len(origin) > 1))].append(id)
                return name, root, nchunks, [free[_unordered(chunk)].pop(0) for chunk in chunks]
    raise InputError(f"{where}: its chunks are those of no collective among {', '.join(COLLECTIVES)}")


def _unordered(chunk: Pattern) -> tuple[frozenset[int], frozenset[int], bool]:
    return frozenset(chunk.origin), frozenset(chunk.want), chunk.reduce


class _Roads:
    """The path that each hop takes: the nodes that the file names where the topology has them, else the least
    loaded of the direct paths."""

    def __init__(self, topology: Topology, labels: Sequence[str], where: str, pairs: Iterable[tuple[int, int]]) -> None:
        self.topology, self.labels, self.where = topology, labels, where
        self.load_us: dict[int, float] = defaultdict(float)
        self.direct: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
        for path in direct_paths(topology, frozenset(pairs)):
            self.direct[path.src_rank, path.dst_rank].append(path.links)
        names = Counter(node.name for node in topology.nodes)
        self.node_named = {node.name: node.id for node in topology.nodes if node.name and names[node.name] == 1}
        self.parallel: dict[tuple[int, int], list[int]] = defaultdict(list)
        for link in topology.links:
            self.parallel[link.src, link.dst].append(link.id)

    def take(self, hop: Hop, nbytes: float) -> tuple[int, ...]:
        path = self._named_path(hop) or self._least_loaded(hop, nbytes)
        for id in path:
            self.load_us[id] += self.topology.link_by_id[id].beta_us(nbytes)
        return path

    def _named_path(self, hop: Hop) -> tuple[int, ...]:
        via = [self.node_named.get(label) for label in hop.via]
        if not via or None in via:
            return ()
        gpus = self.topology.gpus
        nodes = [gpus[hop.src], *(id for id in via if id is not None), gpus[hop.dst]]
        choices = [self.parallel[pair] for pair in pairwise(nodes)]
        if not all(choices) or any(node in self.topology.rank_of for node in nodes[1:-1]):
            return ()
        return tuple(min(ids, key=lambda id: (self.load_us[id], id)) for ids in choices)

    def _least_loaded(self, hop: Hop, nbytes: float) -> tuple[int, ...]:
        paths = self.direct[hop.src, hop.dst]
        if not paths:
            raise InputError(
                f"{self.where}: GPU {self.labels[hop.src]} sends to GPU {self.labels[hop.dst]} (ranks {hop.src} and "
                f"{hop.dst}), but {self.topology.name} has no path between them that avoids other GPUs; name the "
                "--topology it is for"
            )
        links = self.topology.link_by_id
        return min(paths, key=lambda path: max(self.load_us[id] + links[id].beta_us(nbytes) for id in path))
