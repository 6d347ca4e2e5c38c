"""TE-CCL's general MILP: collectives as a multi-commodity flow with copies, over epochs (arXiv 2305.13479, §3)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import inf
from typing import Any

from mip import BINARY, CONTINUOUS, xsum

from ..collective.demand import Chunk, Demand
from ..schedule.schedule import Schedule, Send
from ..topology.paths import trunk
from .epochs import EpochGrid, finish_epoch
from .rules import Rules, Tenant
from .solver import Outcome, new_model, solve

NO_RULES = Rules()


@dataclass(frozen=True)
class MilpResult:
    """The schedule read from the solver (re-timed; None if it found none) and how the solve ended.

    On the grid the collective takes `epochs` epochs; no schedule on the grid takes fewer than `epochs_bound`.
    """

    schedule: Schedule | None
    outcome: Outcome
    epochs: int | None
    epochs_bound: int


@dataclass(frozen=True)
class Free:
    """What of the start a model may change: the sends of these `chunks`, and those that begin in these `epochs`."""

    chunks: frozenset[int] = frozenset()
    epochs: range = range(0)


class Milp:
    """The model for one grid, from its warm start down to a lower bound on the number of epochs.

    F[c,p,k] ∈ {0,1}: chunk c starts on path p in epoch k. A path runs from GPU to GPU through switches, which
    do not store: α of its links summed, β once, every link occupied; so the paper's switch constraints, and its
    hyper-edges (as many transfers at a time as the switch has ports, one per GPU and direction), are met by
    construction. B[c,v,k] ∈ [0,1]: chunk c is at GPU v at the beginning of epoch k. U[c,q,k]: chunk c starts on the way
    q to a switch that multicasts. late[t,k]: some demand of tenant t is unmet at the beginning of epoch k.

        min   Σ_t weight(t) Σ_k late[t,k]
        s.t.  F[c,p,k] ≤ B[c,src(p),k]                                          copy and store-and-forward
              B[c,v,k] = B[c,v,k−1] − X[c,v,k−1] + Σ_{p into v} F[c,p,k−arrival(p)] ≤ 1     buffers
              Σ_c B[c,v,k] ≤ relay_chunks  over c that v only passes on         limited buffers (else X = 0)
              F[c,p,k] ≤ U[c,trunk(p),k]                                        copies made by a switch
              Σ_{c, p ∋ l, e ≤ k < e+span(l,e)} F[c,p,e] ≤ capacity(l,k)        links (on a trunk U for F)
              late[t,k] ≥ 1 − B[c,v,k]  for v that want c;   B[c,v,K] = 1       demand

    Variables before a chunk can have come, or too late to be of use, are left out. Columns: about
    chunks · paths · (K − diameter). `free`: all else of the start is held fast. With `rules` that `constrain` it
    starts from nothing, within `horizon` epochs.
    """

    def __init__(
        self,
        grid: EpochGrid,
        start: Schedule,
        solver: str,
        rules: Rules = NO_RULES,
        horizon: int | None = None,
        free: Free | None = None,
    ) -> None:
        self.grid = grid
        self.solver = solver
        self.rules = rules
        placed = grid.discretized(start)
        self.placed = {} if rules.constrain else placed
        self.horizon = horizon or finish_epoch(grid, placed)
        self.first_late = min(self.horizon, grid.least_epochs())
        self.start = start
        self.free = free
        self.tenants = rules.tenants or _tenants(grid.demand)
        self.counted_from = self.first_late if len(self.tenants) == 1 else 0  # one tenant may be done before the other

    def columns(self, most: int | None = None) -> int:
        """How many send variables the model has to decide, counted up to `most`."""
        return sum(1 for _ in islice((key for key in self._keys() if not self._held_fast(key)), most))

    def improve(self, *, seconds: float, threads: int = 2, seed: int = 0) -> MilpResult:
        """Search for fewer epochs for at most `seconds`, building the model included, from the given schedule on."""
        finish_by = time.monotonic() + seconds
        model, sends = self._build()
        outcome = solve(model, self.solver, seconds=finish_by - time.monotonic(), threads=threads, seed=seed)
        bound = self._epochs_bound(outcome)
        if outcome.objective is None:
            return MilpResult(None, outcome, None, bound)
        chosen = [key for key, send in sends.items() if isinstance(send, int) or outcome.chosen(send)]
        schedule = self._read(chosen)
        epochs = max((k + self._arrival(p, k) for _, p, k in chosen), default=0)
        return MilpResult(schedule, outcome, epochs, bound)

    def _epochs_bound(self, outcome: Outcome) -> int:
        if (
            self.free is None
            and len(self.tenants) == 1
            and outcome.status == "optimal"
            and outcome.objective is not None
        ):
            return self.first_late + round(outcome.objective / self.tenants[0].weight)
        return self.first_late

    # -- the model -------------------------------------------------------------------------------------

    def _span(self, link: int, epoch: int) -> int:
        """Epochs from `epoch` on in which a send that starts then keeps others off the link."""
        if link not in self.rules.shares:
            return self.grid.span[link]
        beta_us = self.grid.topology.link_by_id[link].beta_us(self.grid.chunk_bytes)
        return self.rules.span(link, epoch, beta_us / self.grid.tau_us)

    def _arrival(self, path: int, epoch: int) -> int:
        """Epochs until a chunk that starts on the path in `epoch` is there."""
        if not self.rules.shares:
            return self.grid.arrival[path]
        slower = max(self._span(link, epoch) - self.grid.span[link] for link in self.grid.paths[path].links)
        return self.grid.arrival[path] + max(0, slower)

    def _keys(self) -> Iterator[tuple[int, int, int]]:
        """The sends that may be: all that can matter, or those that are freed and those that are held fast."""
        everything = range(self.horizon + 1)
        for chunk in self.grid.demand.chunks:
            if self.free is None or chunk.id in self.free.chunks:
                yield from self._useful(chunk, everything)
            else:
                yield from self._useful(chunk, self.free.epochs)
                yield from (key for key in self._placed_of.get(chunk.id, ()) if key[2] not in self.free.epochs)

    @cached_property
    def _placed_of(self) -> dict[int, list[tuple[int, int, int]]]:
        placed: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for key in self.placed:
            placed[key[0]].append(key)
        return placed

    def _held_fast(self, key: tuple[int, int, int]) -> bool:
        return self.free is not None and key[0] not in self.free.chunks and key[2] not in self.free.epochs

    def _useful(self, chunk: Chunk, epochs: range) -> Iterator[tuple[int, int, int]]:
        """(chunk, path, epoch) of these epochs that can matter: the chunk can be there, and can still be of use
        afterwards."""
        if not epochs:
            return
        distance = self.grid.distance
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
            for k in range(max(epochs.start, int(reach[path.src_rank])), min(epochs.stop - 1, int(latest)) + 1):
                yield chunk.id, p, k

    def _build(self) -> tuple[Any, Mapping[tuple[int, int, int], Any]]:
        model = new_model(self.solver)
        sends = {key: 1 if self._held_fast(key) else model.add_var(var_type=BINARY) for key in self._keys()}
        buffers = self._buffers(model, sends)
        self._links(model, sends)
        late = self._demand(model, buffers)
        lateness = xsum(self.tenants[t].weight * some_late for (t, _), some_late in late.items())
        model.objective = lateness + 1e-5 / max(1, len(self.placed)) * xsum(sends.values())
        if not self.rules.constrain:
            self._warm_start(model, sends, late)
        return model, sends

    def _warm_start(
        self, model: Any, sends: Mapping[tuple[int, int, int], Any], late: Mapping[tuple[int, int], Any]
    ) -> None:
        arrived = {(c, self.grid.paths[p].dst_rank): k + self.grid.arrival[p] for c, p, k in self.placed}
        finish = [
            max((arrived.get((c, w), 0) for c in tenant.chunks for w in self.grid.demand.chunks[c].want), default=0)
            for tenant in self.tenants
        ]
        if len(finish) == 1:
            finish = [finish_epoch(self.grid, self.placed)]
        decided = [(send, self.placed.get(key, 0)) for key, send in sends.items() if not isinstance(send, int)]
        model.start = decided + [(variable, int(k < finish[t])) for (t, k), variable in late.items()]

    def _buffers(self, model: Any, sends: Mapping[tuple[int, int, int], Any]) -> dict[tuple[int, int, int], Any]:
        """B as columns that grow by what arrives, and sends held below them."""
        arriving: dict[tuple[int, int, int], list[Any]] = defaultdict(list)
        for (c, p, k), send in sends.items():
            arriving[c, self.grid.paths[p].dst_rank, k + self._arrival(p, k)].append(send)
        buffers: dict[tuple[int, int, int], Any] = {}
        passed_on: dict[tuple[int, int], list[Any]] = defaultdict(list)  # (GPU, epoch) → what it holds for others
        for chunk in self.grid.demand.chunks:
            for v in range(self.grid.topology.nranks):
                before: Any = 1.0 if v in chunk.origin else 0.0
                relayed = self.rules.relay_chunks is not None and v not in chunk.origin and v not in chunk.want
                for k in range(self.horizon + 1):
                    arrivals = arriving.get((chunk.id, v, k), [])
                    fast = sum(send for send in arrivals if isinstance(send, int))
                    arrivals = [send for send in arrivals if not isinstance(send, int)]
                    if isinstance(before, float):
                        before, fast = min(1.0, before + fast), 0
                    if fast or arrivals or (relayed and not isinstance(before, float)):
                        now = model.add_var(var_type=CONTINUOUS, lb=0, ub=1)
                        removed = model.add_var(lb=0, ub=1) if relayed else 0
                        model += now == before + xsum(arrivals) + fast - removed
                        before = now
                        if relayed:
                            passed_on[v, k].append(now)
                    buffers[chunk.id, v, k] = before
        for held in passed_on.values():
            model += xsum(held) <= self.rules.relay_chunks
        for (c, p, k), send in sends.items():
            at_source = buffers[c, self.grid.paths[p].src_rank, k]
            if not isinstance(at_source, float):
                model += at_source >= send
            elif at_source == 0.0 and not isinstance(send, int):
                model += send == 0
        return buffers

    def _links(self, model: Any, sends: Mapping[tuple[int, int, int], Any]) -> None:
        using: dict[tuple[int, int], list[Any]] = defaultdict(list)  # (link, epoch) → what occupies it
        copies: dict[tuple[int, tuple[int, ...], int], list[Any]] = defaultdict(list)
        for (c, p, k), send in sends.items():
            links = self.grid.paths[p].links
            shared = trunk(self.grid.topology, links)
            if shared:
                copies[c, links[:shared], k].append(send)
            self._occupy(using, links[shared:], k, send)
        for (_, links, k), made in copies.items():
            one = made[0]
            if any(isinstance(send, int) for send in made):
                one = 1
            elif len(made) > 1:
                one = model.add_var(lb=0, ub=1)
                for send in made:
                    model += send <= one
            self._occupy(using, links, k, one)
        for (link, k), window in using.items():
            capacity = self.grid.capacity[link]
            if capacity > 1 and link in self.rules.shares:
                capacity = int(capacity * self.rules.share(link, k) + 1e-9)
            if len(window) > capacity and not all(isinstance(send, int) for send in window):
                model += xsum(window) <= capacity

    def _occupy(self, using: dict[tuple[int, int], list[Any]], links: tuple[int, ...], epoch: int, send: Any) -> None:
        for link in links:
            for k in range(epoch, epoch + self._span(link, epoch)):
                using[link, k].append(send)

    def _demand(self, model: Any, buffers: Mapping[tuple[int, int, int], Any]) -> dict[tuple[int, int], Any]:
        epochs = range(self.counted_from, self.horizon)
        late = {(t, k): model.add_var(var_type=BINARY) for t in range(len(self.tenants)) for k in epochs}
        for t, tenant in enumerate(self.tenants):
            for c in sorted(tenant.chunks):
                chunk = self.grid.demand.chunks[c]
                for v in set(chunk.want) - set(chunk.origin):
                    there = [buffers[c, v, k] for k in range(self.horizon + 1)]
                    if not isinstance(there[-1], float):
                        model += there[-1] >= 1
                    for k in epochs:
                        if not isinstance(there[k], float):
                            model += late[t, k] >= 1 - there[k]
                        elif there[k] < 1:
                            late[t, k].lb = 1
            for k in epochs[:-1]:
                model += late[t, k] >= late[t, k + 1]
        return late

    # -- the answer ------------------------------------------------------------------------------------

    def _read(self, chosen: list[tuple[int, int, int]]) -> Schedule:
        """The chosen sends that serve somebody, re-timed in continuous time unless rules bind them to their epochs."""
        needed = {(c.id, v) for c in self.grid.demand.chunks for v in c.want}
        sends = []
        for c, p, k in sorted(chosen, key=lambda key: (-key[2], key)):
            path = self.grid.paths[p]
            if (c, path.dst_rank) in needed:
                needed.add((c, path.src_rank))
                sends.append(Send(c, path.links, k * self.grid.tau_us))
        sends.reverse()
        schedule = Schedule(self.grid.topology, self.grid.demand, tuple(sends), 0.0)
        if not self.rules.constrain:
            return schedule.retimed()
        return replace(schedule, finish_us=max((schedule.arrival_us(send) for send in sends), default=0.0))


def _tenants(demand: Demand) -> tuple[Tenant, ...]:
    """The demand's groups, if they have weights that differ; else all chunks are one's."""
    weights = [group.weight for group in demand.groups]
    if len(set(weights)) < 2:
        return (Tenant(frozenset(chunk.id for chunk in demand.chunks)),)
    chunks = [frozenset(chunk.id for chunk in demand.chunks if chunk.group == g) for g in range(len(weights))]
    return tuple(Tenant(of, weight) for of, weight in zip(chunks, weights, strict=True) if of)


def fewest_epochs(
    grid: EpochGrid, start: Schedule, solver: str, rules: Rules, *, seconds: float, seed: int = 0
) -> MilpResult:
    """The K search: the model under `rules` within more and more epochs, until it has a schedule or the time is up.

    `start` says how many epochs to begin with; it need not keep the rules.
    """
    horizon = max(grid.least_epochs(), finish_epoch(grid, grid.discretized(start)))
    deadline = time.monotonic() + seconds
    while True:
        model = Milp(grid, start, solver, rules, horizon)
        result = model.improve(seconds=max(0.1, deadline - time.monotonic()), threads=1, seed=seed)
        if result.outcome.status != "infeasible" or time.monotonic() >= deadline:
            return result
        horizon += max(1, horizon // 2)
