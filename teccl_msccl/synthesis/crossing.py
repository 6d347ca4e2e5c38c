"""What must cross a border: joint α–β bounds on every schedule, whatever its chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..collective.demand import Demand
from ..topology.model import Topology

#: Levels of latency told apart on either side of a border; more are thinned out.
MOST_LEVELS = 12
#: GPUs on either side that are tried by themselves.
MOST_SINGLES = 16

Ranks = NDArray[np.bool_]


class Traffic:
    """How many bytes of a demand start in some ranks and are wanted in others."""

    def __init__(self, demand: Demand) -> None:
        n = demand.nranks
        self.pairs = np.zeros((n, n))  # from one rank to one rank
        several: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = defaultdict(float)
        for chunk in demand.chunks:
            if len(chunk.origin) == len(chunk.want) == 1:
                self.pairs[chunk.origin[0], chunk.want[0]] += chunk.bytes
            else:
                several[chunk.origin, chunk.want] += chunk.bytes
        self.origins = np.array([_mask(n, origin) for origin, _ in several], dtype=float).reshape(-1, n)
        self.wants = np.array([_mask(n, want) for _, want in several], dtype=float).reshape(-1, n)
        self.sizes = np.array(list(several.values()))

    def crossing(self, sources: Ranks, targets: Ranks) -> float:
        """The bytes that must come from `sources` to `targets`, two disjoint sets: a chunk counts once, if any of its
        origins (the contributions that a reduction needs) is among the one and any rank that wants it among the
        other."""
        needed = (self.origins @ sources > 0) & (self.wants @ targets > 0)
        return float(sources @ self.pairs @ targets + self.sizes[needed].sum())


def _mask(n: int, ranks: Sequence[int]) -> Ranks:
    mask = np.zeros(n, dtype=bool)
    mask[list(ranks)] = True
    return mask


@dataclass(frozen=True)
class Crossing:
    """`nbytes` that cross a border over `links` — (link id, GB/s, least µs of α from a source to a target through it)
    — of which none delivers before its least latency, so T ≥ `bound_us`: Σ_l b_l · max(0, T − a_l) ≥ nbytes."""

    nbytes: float
    links: tuple[tuple[int, float, float], ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]

    @cached_property
    def bound_us(self) -> float:
        return filling_time(self.nbytes, [(bandwidth, latency) for _, bandwidth, latency in self.links])

    def __str__(self) -> str:
        bandwidth = sum(bandwidth for _, bandwidth, _ in self.links)
        soonest = min(latency for _, _, latency in self.links)
        return (
            f"{self.nbytes:.6g} bytes from {_ranks(self.sources)} to {_ranks(self.targets)} over {len(self.links)} "
            f"link(s) of {bandwidth:g} GB/s in all, the first there at {soonest:g} µs"
        )


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(str(rank) for rank in ranks[:8]) + (", …" if len(ranks) > 8 else "")
    return f"GPU {listed}" if len(ranks) == 1 else f"GPUs {listed}"


def best_crossing(
    topology: Topology,
    traffic: Traffic,
    nodes: frozenset[int],
    latency: Mapping[int, Mapping[int, float]],
) -> Crossing | None:
    """The best bound from what must enter `nodes`; None if nothing has to.

    The farther of the sources and targets alone may bound better than all of them: they have fewer bytes, but these
    come to the border later and reach their targets later. So all pairs of levels are tried: sources from which the
    first target is at least so far, targets that are at least so far from the first source. And every source and every
    target of a few by itself: what comes near over a slow link comes soon, but not much of it. Targets that all want
    one source's bytes count them once.
    """
    border = [link for link in topology.links if link.dst in nodes and link.src not in nodes]
    inside = np.array([node in nodes for node in topology.gpus])
    if not border or inside.all() or not inside.any() or traffic.crossing(~inside, inside) <= 0:
        return None
    before = np.array([[latency[gpu].get(link.src, np.inf) for gpu in topology.gpus] for link in border])
    after = np.array([[latency[link.dst].get(gpu, np.inf) for gpu in topology.gpus] for link in border])
    alpha = np.array([link.alpha_us for link in border])
    best: Crossing | None = None
    from_source = (before + (alpha + after[:, inside].min(axis=1))[:, None]).min(axis=0)
    to_target = (after + (alpha + before[:, ~inside].min(axis=1))[:, None]).min(axis=0)
    far = product(_levels(from_source, ~inside), _levels(to_target, inside))
    alone = chain(product(_singles(~inside), [inside]), product([~inside], _singles(inside)))
    for sources, targets in chain(far, alone):
        nbytes = traffic.crossing(sources, targets)
        if nbytes <= 0:
            continue
        soonest = before[:, sources].min(axis=1) + alpha + after[:, targets].min(axis=1)
        links = tuple(
            (link.id, link.bandwidth_GBps, float(time))
            for link, time in zip(border, soonest, strict=True)
            if time < np.inf
        )
        if not links:
            continue
        found = Crossing(nbytes, links, tuple(np.flatnonzero(sources)), tuple(np.flatnonzero(targets)))
        if best is None or found.bound_us > best.bound_us:
            best = found
    return best


def _levels(distance: NDArray[Any], ranks: Ranks) -> Iterator[Ranks]:
    """The sets of `ranks` at least so far away, for every distance that occurs."""
    for least in thinned(np.unique(distance[ranks & np.isfinite(distance)].round(9)), MOST_LEVELS):
        yield ranks & (distance >= least - 1e-9)


def _singles(ranks: Ranks) -> Iterator[Ranks]:
    """Each of `ranks` by itself, if they are few."""
    if ranks.sum() <= MOST_SINGLES:
        for rank in np.flatnonzero(ranks).tolist():
            yield _mask(len(ranks), [rank])


def thinned(values: NDArray[Any], most: int) -> NDArray[Any]:
    """At most so many of the values, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return values
    return np.array(values[np.linspace(0, len(values) - 1, most).round().astype(int)])


def filling_time(nbytes: float, links: Sequence[tuple[float, float]]) -> float:
    """The least T with Σ_l b_l · max(0, T − a_l) ≥ nbytes, for (b GB/s, a µs) links. O(links log links)."""
    ordered = sorted(links, key=lambda link: link[1])
    bandwidth = started = time = 0.0
    for i, (b, alpha) in enumerate(ordered):
        bandwidth += b
        started += b * alpha
        time = (nbytes / 1e3 + started) / bandwidth
        if i + 1 == len(ordered) or time <= ordered[i + 1][1]:
            break
    return time
