"""Schedules by hand: rings, trees, chains and relays, with equal start times, with idle time and without any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from strategies_lower import ONE_BY_ONE_US

from teccl_msccl.collective.demand import Chunk, Demand, demand_for
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.model import Link, Node, Topology
from teccl_msccl.topology.paths import direct_paths


def by_hand(topology: Topology, demand: Demand, hops: Sequence[tuple[int, int, int]], *, copies: int = 0) -> Schedule:
    """Hops (chunk, from rank, to rank) in causal order, then moved together. Chunks that are reductions are merged
    at every hop but the last `copies`."""
    first = {}
    for path in direct_paths(topology):
        first.setdefault((path.src_rank, path.dst_rank), path.links)
    sends = [
        Send(chunk, first[src, dst], i * ONE_BY_ONE_US, demand.chunks[chunk].reduce and i < len(hops) - copies)
        for i, (chunk, src, dst) in enumerate(hops)
    ]
    return Schedule(topology, demand, tuple(sends), 0.0).retimed()


def ring(n: int = 5) -> Schedule:
    """Every chunk goes round, in both directions at once."""
    ways = [(rank, hop, step) for step in (1, -1) for hop in range(n - 1) for rank in range(n)]
    ways.sort(key=lambda way: way[1])
    hops = [(2 * r + (step < 0), (r + step * hop) % n, (r + step * (hop + 1)) % n) for r, hop, step in ways]
    return by_hand(load(f"ring-{n}").topology, demand_for("allgather", n, 1e6, 2), hops)


def tree_allreduce() -> Schedule:
    """Up a binary tree to rank 0 and down again; chunk 1 up to rank 6 and down."""
    up = [[(0, 3, 1), (0, 4, 1), (0, 5, 2), (0, 6, 2), (0, 1, 0), (0, 2, 0)],
          [(1, 3, 5), (1, 2, 5), (1, 1, 4), (1, 0, 4), (1, 5, 6), (1, 4, 6)]]  # fmt: skip
    reductions = [hop for both in zip(*up, strict=True) for hop in both]
    copies = [(chunk, dst, src) for chunk, src, dst in reversed(reductions)]
    demand = demand_for("allreduce", 7, 1e6, 2)
    return by_hand(load("full-7").topology, demand, reductions + copies, copies=len(copies))


def line(collective: str, hops: Callable[[int], list[tuple[int, int, int]]], root: int = 0, n: int = 4) -> Schedule:
    return by_hand(load(f"line-{n}").topology, demand_for(collective, n, 1e6, 1, root), hops(n))


def alltoall_on_a_line(n: int = 4) -> Schedule:
    """Relays through scratch, and in place what is overwritten is staged."""
    return line("alltoall", lambda n: [h for s in range(n) for d in range(n) if s != d for h in walk(n * s + d, s, d)],
                n=n)  # fmt: skip


def scatter_on_a_line() -> Schedule:
    return line("scatter", lambda n: [hop for rank in range(n) for hop in walk(rank, 3, rank)], root=3)


def walk(chunk: int, src: int, dst: int) -> list[tuple[int, int, int]]:
    """Hop by hop along a line, past ranks that do not want the chunk."""
    ranks = list(range(src, dst + 1)) if src < dst else list(range(src, dst - 1, -1))
    return [(chunk, a, b) for a, b in pairwise(ranks)]


def everyone_exchanges(n: int = 4) -> Schedule:
    """Equal start times: all pairs at once. In place, what arrives overwrites what is being sent."""
    hops = [(src * n + dst, src, dst) for src in range(n) for dst in range(n) if src != dst]
    return by_hand(load(f"full-{n}").topology, demand_for("alltoall", n, 1e6), hops)


def there_and_back() -> Schedule:
    """Chunks that ranks keep for themselves (of an alltoall) go to a neighbour and come back."""
    schedule = everyone_exchanges(3)
    own = [hop for r in range(3) for hop in ((4 * r, r, (r + 1) % 3), (4 * r, (r + 1) % 3, r))]
    hops = [(s.chunk, *schedule.ends(s)) for s in schedule.sends]
    return by_hand(schedule.topology, schedule.demand, own + hops)


def twice() -> Schedule:
    """Rank 1 gets chunk 0 from rank 0, and again from rank 2, to which it sends it meanwhile."""
    demand = demand_for("broadcast", 3, 1e6)
    return by_hand(load("full-3").topology, demand, [(0, 0, 1), (0, 0, 2), (0, 1, 2), (0, 2, 1)])


def own_demand() -> Schedule:
    """Two chunks of different sizes and origins for some ranks only, called a broadcast."""
    chunks = (Chunk(0, (0,), (0, 1, 2), 1e5), Chunk(1, (0,), (0, 1, 2), 3e5))
    demand = Demand("broadcast", 3, chunks, 2, 4e5, root=0)
    return by_hand(load("line-3").topology, demand, [(0, 0, 1), (1, 0, 1), (1, 1, 2), (0, 1, 2)])


def no_latency(size: float) -> Schedule:
    """Links without α: of nothing, all sends start and arrive at the same instant."""
    nodes = tuple(Node(i, "gpu", rank=i) for i in range(4))
    links = tuple(Link(2 * i + back, *((i, i + 1), (i + 1, i))[back], 50.0, 0.0) for i in range(3) for back in (0, 1))
    topology = Topology("no latency", nodes, links)
    return by_hand(topology, demand_for("alltoall", 4, size), [
        hop for src in range(4) for dst in range(4) if src != dst for hop in walk(4 * src + dst, src, dst)
    ])  # fmt: skip


def idle() -> Schedule:
    """Every send waits a while for nothing."""
    schedule = ring()
    sends = tuple(send._replace(start_us=3 * send.start_us + 7) for send in schedule.sends)
    return replace(schedule, sends=sends, finish_us=3 * schedule.finish_us + 7)


HAND_MADE: dict[str, Callable[[], Schedule]] = {
    "ring": ring,
    "tree allreduce": tree_allreduce,
    "alltoall through others": alltoall_on_a_line,
    "gather through others": lambda: line("gather", lambda n: [h for r in range(n) for h in walk(r, r, 1)], root=1),
    "scatter through others": scatter_on_a_line,
    "chain reduce": lambda: line("reduce", lambda n: [*walk(0, 3, 1), *walk(0, 0, 1)], root=1),
    "equal starts": everyone_exchanges,
    "there and back": there_and_back,
    "twice": twice,
    "own demand": own_demand,
    "nothing without latency": lambda: no_latency(0.0),
    "something without latency": lambda: no_latency(1e6),
    "idle time": idle,
}
