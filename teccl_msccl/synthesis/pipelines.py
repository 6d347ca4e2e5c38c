"""Broadcast and reduce as pipelines: a root's chunks go down trees that are weighed together, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..collective.demand import Demand
from ..topology.model import Topology
from .host_trees import chained_trees
from .incumbent import Incumbent
from .rail_trees import rail_trees
from .rooted_trees import TreePacking, small_enough, small_enough_by_hosts
from .routes import Router, Routes
from .settings import Settings

#: By how much coarser chunks are slower where still coarser ones are not tried.
PAST_BEST = 0.1


def plant_pipelines(incumbent: Incumbent, settings: Settings) -> None:
    """Offer every stage in which one GPU spreads its data to all others its pipelines, the finest first.

    n chunks over trees of depth d take about the packing's time and d chunks' more (Edmonds 1973; the tail is for
    searches that move single chunks).
    """
    incumbent.phase = "trees"
    counts = (settings.nchunks,) if settings.nchunks is not None else incumbent.problem.chunk_counts()
    for i, stage in enumerate(incumbent.stages):
        root = spreading_root(stage.demand(1))
        if root is None or incumbent.stage_closed(i):
            continue
        for packing in _packings(stage.topology, root):
            best_us = np.inf
            for count in reversed(counts):
                if incumbent.best is not None and not incumbent.seconds_left:
                    return
                router, routes = pipelined(stage.topology, stage.demand(count), packing)
                incumbent.offer(i, router.schedule(routes))
                if routes.finish_us > best_us * (1 + PAST_BEST):
                    break
                best_us = min(best_us, routes.finish_us)


def _packings(topology: Topology, root: int) -> Iterator[TreePacking]:
    """Trees that are put together of hosts', which are regular and so lose little time in turn, before any others."""
    for by_hosts in (rail_trees, chained_trees) if small_enough_by_hosts(topology) else ():
        if (packing := TreePacking(topology, root, by_hosts=by_hosts)).trees:
            yield packing
    if small_enough(topology):
        yield TreePacking(topology, root)


def spreading_root(demand: Demand) -> int | None:
    """The rank that has every chunk, if all other ranks want it and it is anything."""
    origins = {chunk.origin for chunk in demand.chunks}
    if len(origins) != 1 or len(origin := next(iter(origins))) != 1 or demand.groups or not demand.size_bytes:
        return None
    everyone = set(range(demand.nranks))
    return origin[0] if all({*chunk.want, *origin} == everyone for chunk in demand.chunks) else None


def pipelined(topology: Topology, demand: Demand, packing: TreePacking) -> tuple[Router, Routes]:
    """The chunks in turn down the packing's trees, each tree as often as its weight says or its links allow, whichever
    ends sooner; of the sends that could use a link an earlier chunk's goes first."""
    count, router = len(demand.chunks), Router(topology, demand)
    weights = packing.weights(demand.size_bytes, count)
    played = (_played(router, packing, turns) for turns in (_turns(weights, count), packing.balanced(count)))
    return router, min(played, key=lambda routes: routes.finish_us)


def _played(router: Router, packing: TreePacking, turns: Sequence[int]) -> Routes:
    chunks = [chunk for chunk, tree in enumerate(turns) for _ in packing.trees[tree].paths]
    ways = [path for tree in turns for path in packing.trees[tree].paths]
    return router.justified(router.in_turn(chunks, ways, [float(chunk) for chunk in chunks]), rounds=-1)


def _turns(weights: NDArray[np.float64], count: int) -> list[int]:
    """`count` turns of things with these weights (Σ = 1), each thing's spread evenly: as many as its weight says, what
    is left to the largest remainders."""
    times = np.floor(weights * count + 1e-9).astype(int)
    remainder = weights * count - times
    times[np.argsort(-remainder, kind="stable")[: count - int(times.sum())]] += 1
    return [
        thing for _, thing in sorted(((k + 0.5) / n, thing) for thing, n in enumerate(times.tolist()) for k in range(n))
    ]
