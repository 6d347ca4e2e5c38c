"""The sends that a MILP may choose from: (chunk, path, epoch) that can matter, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from ..collective.demand import Chunk
from .epochs import EpochGrid
from .formulation import Floats, Ints, runs

Key = tuple[int, int, int]
#: Pairs of chunk and path that are looked at together.
_TOGETHER = 200_000


@dataclass(frozen=True)
class Free:
    """What of the start a model may change: the sends of these `chunks`, and those that begin in these `epochs`."""

    chunks: frozenset[int] = frozenset()
    epochs: range = range(0)


@dataclass(frozen=True, eq=False)
class Sends:
    """One send an element, by chunk; those that are `held` are made whatever the model says."""

    chunk: Ints
    path: Ints
    epoch: Ints
    held: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.chunk)

    def where(self, some: NDArray[np.bool_]) -> Sends:
        """These of them."""
        return Sends(self.chunk[some], self.path[some], self.epoch[some], self.held[some])

    def triples(self) -> list[Key]:
        """(chunk, path, epoch) of each."""
        return list(zip(self.chunk.tolist(), self.path.tolist(), self.epoch.tolist(), strict=True))


class Choices:
    """What may be sent within `horizon` epochs: all that can matter, or (`free`) what is freed of the sends that are
    `placed`, and the rest of these held."""

    def __init__(self, grid: EpochGrid, horizon: int, placed: Mapping[Key, int], free: Free | None) -> None:
        self.grid = grid
        self.horizon = horizon
        self.placed = placed
        self.free = free
        self._source = np.array([path.src_rank for path in grid.paths], np.int64)
        self._target = np.array([path.dst_rank for path in grid.paths], np.int64)
        self._distance = np.array(grid.distance)
        self._arrival = np.array(grid.arrival, np.int64)

    def count(self, most: int | None = None) -> int:
        """How many the model has to decide, counted up to `most`."""
        total = 0
        for *_, counts in self._windows():
            total += int(counts.sum())
            if most is not None and total >= most:
                return most
        return total

    def sends(self) -> Sends:
        """All of them, chunk by chunk: what is to be decided by path and epoch, then what is held."""
        chunks, paths, epochs = [], [], []
        for chunk, path, first, counts in self._windows():
            window, epoch = runs(counts)
            chunks.append(chunk[window])
            paths.append(path[window])
            epochs.append(first[window] + epoch)
        decided = sum(map(len, chunks))
        held = np.array([key for key in self.placed if self._held_fast(key)], np.int64).reshape(-1, 3)
        chunk, path, epoch = (np.concatenate((*some, held[:, i])) for i, some in enumerate((chunks, paths, epochs)))
        order = np.argsort(chunk, kind="stable")
        return Sends(chunk[order], path[order], epoch[order], (np.arange(len(chunk)) >= decided)[order])

    def _held_fast(self, key: Key) -> bool:
        return self.free is not None and key[0] not in self.free.chunks and key[2] not in self.free.epochs

    def _windows(self) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
        """Chunks and paths, the first epoch from which a send is of use there, and how many from it on are: the chunk
        can be at its source, and can still reach somebody who wants it in time."""
        chunks = [chunk for chunk in self.grid.demand.chunks if self._epochs(chunk)]
        together = max(1, _TOGETHER // max(1, len(self.grid.paths)))
        for i in range(0, len(chunks), together):
            some = chunks[i : i + together]
            reach, use, allowed = self._ways(some)
            begin = np.array([[self._epochs(chunk).start] for chunk in some])
            end = np.array([[self._epochs(chunk).stop] for chunk in some])
            first = np.maximum(begin, reach)
            counts = np.minimum(end, self.horizon - self._arrival - use + 1) - first
            row, path = np.nonzero(allowed & (counts > 0))
            ids = np.array([chunk.id for chunk in some], np.int64)
            yield ids[row], path, first[row, path].astype(np.int64), counts[row, path].astype(np.int64)

    def _epochs(self, chunk: Chunk) -> range:
        return range(self.horizon + 1) if self.free is None or chunk.id in self.free.chunks else self.free.epochs

    def _ways(self, chunks: list[Chunk]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Per chunk and path: epochs until the chunk can be at the path's source, from its target to somebody who wants
        it, and whether it may go that way."""
        distance = self._distance
        n = len(distance)
        reach, use = np.full((2, len(chunks), n), inf)
        allowed = np.ones((len(chunks), len(self._target)), bool)
        for row, chunk in enumerate(chunks):
            origin = list(chunk.origin)
            reach[row] = distance[origin].min(axis=0)
            missing = [w for w in chunk.want if w not in chunk.origin]
            if missing:
                use[row] = distance[:, missing].min(axis=1)
            allowed[row] &= ~np.isin(self._target, origin)
            holders = self.grid.demand.holders(chunk)
            if holders is not None:
                allowed[row] &= np.isin(self._source, list(holders)) & np.isin(self._target, list(holders))
        reach, use = reach[:, self._source], use[:, self._target]
        return reach, use, allowed & (reach < inf) & (use < inf)
