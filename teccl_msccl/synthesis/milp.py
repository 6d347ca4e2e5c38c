"""TE-CCL's general MILP: collectives as a multi-commodity flow with copies, over epochs (arXiv 2305.13479, §3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

from mip import BINARY, CONTINUOUS, xsum

from ..schedule.schedule import Schedule, Send
from .epochs import EpochGrid, finish_epoch
from .solver import Outcome, new_model, solve


@dataclass(frozen=True)
class MilpResult:
    """The schedule read from the solver (re-timed; None if it found none) and how the solve ended.

    On the grid the collective takes `epochs` epochs; no schedule on the grid takes fewer than `epochs_bound`.
    """

    schedule: Schedule | None
    outcome: Outcome
    epochs: int | None
    epochs_bound: int


class Milp:
    """The model for one grid, from its warm start down to a lower bound on the number of epochs.

    F[c,p,k] ∈ {0,1}: chunk c starts on path p in epoch k. A path runs from GPU to GPU through switches, which
    do not store: α of its links summed, β once, every link occupied; so the paper's switch constraints are met by
    construction. B[c,v,k] ∈ [0,1]: chunk c is at GPU v at the beginning of epoch k. late[k]: some demand is unmet
    at the beginning of epoch k.

        min   Σ_k late[k]
        s.t.  F[c,p,k] ≤ B[c,src(p),k]                                          copy and store-and-forward
              B[c,v,k] = B[c,v,k−1] + Σ_{p into v} F[c,p,k−arrival(p)] ≤ 1      buffers; one receipt at most
              Σ_{c, p ∋ l, k−span(l) < e ≤ k} F[c,p,e] ≤ capacity(l)            links
              late[k] ≥ 1 − B[c,v,k]  for v that want c;   B[c,v,K] = 1         demand

    Variables before a chunk can have come, or too late to be of use, are left out. Columns: about
    chunks · paths · (K − diameter).
    """

    def __init__(self, grid: EpochGrid, start: Schedule, solver: str) -> None:
        self.grid = grid
        self.solver = solver
        self.placed = grid.discretized(start)
        self.horizon = finish_epoch(grid, self.placed)
        self.first_late = min(self.horizon, grid.least_epochs())
        self.start = start

    def columns(self, most: int | None = None) -> int:
        """How many send variables the model has, counted up to `most`."""
        return sum(1 for _ in islice(self._keys(), most))

    def improve(self, *, seconds: float, threads: int = 2, seed: int = 0) -> MilpResult:
        """Search for fewer epochs for at most `seconds`, starting from the given schedule."""
        model, sends = self._build()
        outcome = solve(model, self.solver, seconds=seconds, threads=threads, seed=seed)
        bound = self._epochs_bound(outcome)
        if outcome.objective is None:
            return MilpResult(None, outcome, None, bound)
        chosen = [key for key, variable in sends.items() if variable.x is not None and variable.x > 0.5]
        schedule = self._read(chosen)
        return MilpResult(schedule, outcome, finish_epoch(self.grid, dict.fromkeys(chosen, 1)), bound)

    def _epochs_bound(self, outcome: Outcome) -> int:
        if outcome.status == "optimal" and outcome.objective is not None:
            return self.first_late + round(outcome.objective)
        return self.first_late

    # -- the model -------------------------------------------------------------------------------------

    def _keys(self) -> Iterator[tuple[int, int, int]]:
        """(chunk, path, epoch) that can matter: the chunk can be there, and can still be of use afterwards."""
        distance = self.grid.distance
        for chunk in self.grid.demand.chunks:
            reach = [min(distance[o][v] for o in chunk.origin) for v in range(self.grid.topology.nranks)]
            use = [
                min((distance[v][w] for w in chunk.want if w not in chunk.origin), default=inf)
                for v in range(self.grid.topology.nranks)
            ]
            holders = self.grid.demand.holders(chunk)
            for p, path in enumerate(self.grid.paths):
                if holders is not None and not holders.issuperset((path.src_rank, path.dst_rank)):
                    continue
                if path.dst_rank in chunk.origin or use[path.dst_rank] == inf or reach[path.src_rank] == inf:
                    continue
                latest = self.horizon - self.grid.arrival[p] - use[path.dst_rank]
                for k in range(int(reach[path.src_rank]), int(latest) + 1):
                    yield chunk.id, p, k

    def _build(self) -> tuple[Any, Mapping[tuple[int, int, int], Any]]:
        model = new_model(self.solver)
        sends = {key: model.add_var(var_type=BINARY) for key in self._keys()}
        buffers = self._buffers(model, sends)
        self._links(model, sends)
        late = self._demand(model, buffers)
        model.objective = xsum(late.values()) + 1e-5 / max(1, len(self.placed)) * xsum(sends.values())
        lateness = finish_epoch(self.grid, self.placed)
        model.start = [(variable, self.placed.get(key, 0)) for key, variable in sends.items()] + [
            (variable, int(k < lateness)) for k, variable in late.items()
        ]
        return model, sends

    def _buffers(self, model: Any, sends: Mapping[tuple[int, int, int], Any]) -> dict[tuple[int, int, int], Any]:
        """B as columns that grow by what arrives, and sends held below them."""
        arriving: dict[tuple[int, int, int], list[Any]] = defaultdict(list)
        for (c, p, k), send in sends.items():
            arriving[c, self.grid.paths[p].dst_rank, k + self.grid.arrival[p]].append(send)
        buffers: dict[tuple[int, int, int], Any] = {}
        for chunk in self.grid.demand.chunks:
            for v in range(self.grid.topology.nranks):
                before: Any = 1.0 if v in chunk.origin else 0.0
                for k in range(self.horizon + 1):
                    arrivals = arriving.get((chunk.id, v, k))
                    if arrivals:
                        now = model.add_var(var_type=CONTINUOUS, lb=0, ub=1)
                        model += now == before + xsum(arrivals)
                        before = now
                    buffers[chunk.id, v, k] = before
        for (c, p, k), send in sends.items():
            held = buffers[c, self.grid.paths[p].src_rank, k]
            if not isinstance(held, float):
                model += send <= held
            elif held == 0.0:
                model += send == 0
        return buffers

    def _links(self, model: Any, sends: Mapping[tuple[int, int, int], Any]) -> None:
        using: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for (_, p, k), send in sends.items():
            for link in self.grid.paths[p].links:
                using[link, k].append(send)
        for link, k in using:
            span = self.grid.span[link]
            window = [send for e in range(k - span + 1, k + 1) for send in using.get((link, e), ())]
            if len(window) > self.grid.capacity[link]:
                model += xsum(window) <= self.grid.capacity[link]

    def _demand(self, model: Any, buffers: Mapping[tuple[int, int, int], Any]) -> dict[int, Any]:
        late = {k: model.add_var(var_type=BINARY) for k in range(self.first_late, self.horizon)}
        for chunk in self.grid.demand.chunks:
            for v in chunk.want:
                if v in chunk.origin:
                    continue
                model += buffers[chunk.id, v, self.horizon] >= 1
                for k, some_late in late.items():
                    model += some_late >= 1 - buffers[chunk.id, v, k]
        for k in range(self.first_late, self.horizon - 1):
            model += late[k] >= late[k + 1]
        return late

    # -- the answer ------------------------------------------------------------------------------------

    def _read(self, chosen: list[tuple[int, int, int]]) -> Schedule:
        """The chosen sends that serve somebody, re-timed in continuous time."""
        needed = {(c.id, v) for c in self.grid.demand.chunks for v in c.want}
        sends = []
        for c, p, k in sorted(chosen, key=lambda key: (-key[2], key)):
            path = self.grid.paths[p]
            if (c, path.dst_rank) in needed:
                needed.add((c, path.src_rank))
                sends.append(Send(c, path.links, k * self.grid.tau_us))
        sends.reverse()
        return Schedule(self.grid.topology, self.grid.demand, tuple(sends), 0.0).retimed()
