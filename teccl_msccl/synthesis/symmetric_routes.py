"""Routes on the quotient of a symmetric topology: one part's chunks are routed, all others' the same, moved round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .. import _core
from ..schedule.schedule import Schedule
from .quotient import Quotient, QuotientSends, wanted
from .routes import Router, Routes, RouteSearch, turns
from .symmetry import SymmetricSearch


@dataclass
class SymmetricRouter(RouteSearch):
    """Routes of part 0's chunks of an allgather or alltoall."""

    search: SymmetricSearch

    def __post_init__(self) -> None:
        chunks = self.search.chunks(self.demand)
        self.paths = self.search.quotient.ways
        self.turns = turns(
            origin if self.demand.collective == "allgather" else i for i, (_, origin, _) in enumerate(chunks)
        )
        self._network = self.search.quotient.core
        self._demand = wanted(chunks)

    def routes(self, schedule: Schedule) -> Routes | None:
        """Those of the greedy search, whatever the schedule."""
        found = self.search.found.get(schedule.demand.nchunks)
        return None if found is None else Routes(found.chunk, found.way, found.start_us, found.arrival_us)

    def schedule(self, routes: Routes) -> Schedule:
        return self.search.lifted(
            self.demand, QuotientSends(routes.chunk, routes.way, routes.start_us, routes.arrival_us)
        )


@dataclass
class FreeRootsRouter(RouteSearch):
    """Routes of an allreduce's chunks, gathered at any GPU and spread from there: of every part's share, as many as
    there are parts, the first; the others have the moved roots."""

    quotient: Quotient

    def __post_init__(self) -> None:
        chunk, n = self.demand.chunks[0], self.topology.nranks
        count = len(self.demand.chunks) // self.quotient.translations.count
        self.paths = self.quotient.ways
        self.turns = turns([None] * count)
        self._network = self.quotient.core
        self._demand = _core.Demanded(chunks=[(chunk.bytes, True, list(range(n)), list(range(n)))] * count)

    @cached_property
    def _whole(self) -> Router:
        return Router(self.topology, self.demand, self.paths)

    def schedule(self, routes: Routes) -> Schedule:
        count = self.quotient.translations.count
        place = {path: i for i, path in enumerate(self._whole.paths)}
        ways = np.array([place[path] for path in self.paths])
        path, part = np.divmod(routes.way, count)
        way = ways[path[:, None] * count + self.quotient.translations.table[:, part].T]
        chunk = routes.chunk[:, None] * count + np.arange(count)
        times = (np.repeat(column, count) for column in (routes.start_us, routes.arrival_us))
        lifted = Routes(chunk.reshape(-1), way.reshape(-1), *times)
        order = np.argsort(lifted.start_us, kind="stable")
        lifted = Routes(lifted.chunk[order], lifted.way[order], lifted.start_us[order], lifted.arrival_us[order])
        return self._whole.schedule(self._whole.justified(lifted, shared=self.quotient.sharing > 1))
