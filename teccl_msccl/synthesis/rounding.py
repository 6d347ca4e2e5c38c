"""Fractional routes rounded to whole chunks, so that the busiest link is hardly busier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import floor

#: A way for a pair's data: numbers of direct paths, from GPU to GPU.
Route = tuple[int, ...]
Pair = tuple[int, int]

#: Moves after which a rounding is good enough.
MOST_MOVES = 1_000


def round_to_chunks(
    costs: Sequence[Mapping[int, float]],
    shares: Mapping[Pair, Mapping[Route, float]],
    chunks: Mapping[Pair, Sequence[int]],
    sizes: Sequence[float],
) -> dict[int, Route]:
    """A route for every chunk of every pair, near the shares that each route should have of the pair.

    `costs` holds, per direct path, the µs that a byte takes each of its links; `sizes` the bytes of every chunk. Whole
    parts of the shares are given out first; what is left of each pair goes, one by one, where the busiest link of the
    route stays least busy; then chunks leave the busiest link while that helps. O((chunks + moves) · routes · length).
    """
    return _Rounding(costs, shares, chunks, sizes).rounded()


class _Rounding:
    def __init__(
        self,
        costs: Sequence[Mapping[int, float]],
        shares: Mapping[Pair, Mapping[Route, float]],
        chunks: Mapping[Pair, Sequence[int]],
        sizes: Sequence[float],
    ) -> None:
        self.shares, self.chunks, self.sizes = shares, chunks, sizes
        self.cost: dict[Route, dict[int, float]] = {}
        for routes in shares.values():
            for route in routes:
                if route not in self.cost:
                    self.cost[route] = _added(costs[path] for path in route)
        self.load: dict[int, float] = defaultdict(float)  # link → µs
        self.route: dict[int, Route] = {}
        self.on_link: dict[int, set[int]] = defaultdict(set)  # link → chunks
        self.pair_of = {chunk: pair for pair, several in chunks.items() for chunk in several}

    def rounded(self) -> dict[int, Route]:
        undecided = []
        for pair, several in self.chunks.items():
            left = list(several)
            for route, share in sorted(self.shares[pair].items(), key=lambda entry: (-entry[1], entry[0])):
                for _ in range(floor(share * len(several) + 1e-6)):
                    self._put(left.pop(), route)
            undecided += left
        for chunk in undecided:
            routes = self.shares[self.pair_of[chunk]]
            self._put(chunk, min(routes, key=lambda route: (self._busiest(chunk, route), -routes[route], route)))
        for _ in range(MOST_MOVES):
            if not self._relieve():
                break
        return self.route

    def _relieve(self) -> bool:
        """Move one chunk off the busiest link to where no link becomes as busy."""
        link = max(self.load, key=lambda link: self.load[link], default=None)
        if link is None:
            return False
        least, move = self.load[link] * (1 - 1e-9), None
        for chunk in sorted(self.on_link[link]):
            here = self.route[chunk]
            routes = self.shares[self.pair_of[chunk]]
            if len(routes) == 1:
                continue
            self._take(chunk)
            for route in routes:
                if link not in self.cost[route] and (busiest := self._busiest(chunk, route)) < least:
                    least, move = busiest, (chunk, route)
            self._put(chunk, here)
        if move is None:
            return False
        self._take(move[0])
        self._put(*move)
        return True

    def _busiest(self, chunk: int, route: Route) -> float:
        """How busy the busiest link of the route would be with the chunk, too."""
        size = self.sizes[chunk]
        return max(self.load[link] + size * cost for link, cost in self.cost[route].items())

    def _put(self, chunk: int, route: Route) -> None:
        self.route[chunk] = route
        for link, cost in self.cost[route].items():
            self.load[link] += self.sizes[chunk] * cost
            self.on_link[link].add(chunk)

    def _take(self, chunk: int) -> None:
        for link, cost in self.cost[self.route[chunk]].items():
            self.load[link] -= self.sizes[chunk] * cost
            self.on_link[link].discard(chunk)


def _added(parts: Iterable[Mapping[int, float]]) -> dict[int, float]:
    total: dict[int, float] = defaultdict(float)
    for part in parts:
        for link, cost in part.items():
            total[link] += cost
    return dict(total)
