"""TE-CCL's general MILP: collectives as a multi-commodity flow with copies, over epochs (arXiv 2305.13479, §3)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from ..collective.demand import Demand
from ..errors import InputError
from ..schedule.schedule import Schedule, Send
from ..topology.paths import trunk
from .choices import Choices, Free, Key, Sends
from .epochs import EpochGrid
from .formulation import Block, Floats, Formulation, Ints, numbered, runs
from .handover import hand_over, set_start
from .ruled import paced, placed_under
from .rules import NO_RULES, Rules
from .solver import Outcome, new_model, solve
from .timing import Timing


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
class Tenant:
    """Chunks that belong together, and what an epoch in which some of them are missing costs against other tenants'."""

    chunks: frozenset[int]
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Raise `InputError` for a weight that means nothing."""
        if not 0 < self.weight < inf:
            raise InputError(f"a tenant's weight is {self.weight}; it must be positive")


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
    chunks · paths · (K − diameter). `free`: all else of the start is held fast. With `rules` that constrain,
    arrival and span depend on the epoch, and the start is first made to keep them (`ruled`; it may raise `Refused`).
    """

    def __init__(
        self,
        grid: EpochGrid,
        start: Schedule,
        solver: str,
        rules: Rules = NO_RULES,
        tenants: tuple[Tenant, ...] = (),
        free: Free | None = None,
    ) -> None:
        self.grid = grid
        self.solver = solver
        self.rules = rules
        self.timing = Timing(grid, rules)
        self.placed = placed_under(self.timing, start) if rules.constrain else grid.discretized(start)
        self.horizon = self._finish_epoch(self.placed)
        self.first_late = min(self.horizon, grid.least_epochs())
        self.start = start
        self.free = free
        self.tenants = tenants or _tenants(grid.demand)
        self.counted_from = self.first_late if len(self.tenants) == 1 else 0  # one tenant may be done before the other

    @cached_property
    def _choices(self) -> Choices:
        return Choices(self.grid, self.horizon, self.placed, self.free)

    def columns(self, most: int | None = None) -> int:
        """How many send variables the model has to decide, counted up to `most`."""
        return self._choices.count(most)

    @property
    def longest(self) -> int:
        """Epochs that a send takes at most, of those at the beginning and those of the start."""
        first = [self.timing.arrival(path, 0) for path in range(len(self.grid.paths))]
        return max([*first, *(self.timing.arrival(path, epoch) for _, path, epoch in self.placed)], default=1)

    def improve(self, *, seconds: float, threads: int = 2, seed: int = 0) -> MilpResult:
        """Search for fewer epochs for at most `seconds`, building the model included, from the given schedule on."""
        finish_by = time.monotonic() + seconds
        formulation, sends, send, late = self._formulated()
        model = new_model(self.solver)
        hand_over(model, self.solver, formulation.matrix())
        set_start(model, self.solver, *self._start(sends, send, late))
        outcome = solve(model, self.solver, seconds=finish_by - time.monotonic(), threads=threads, seed=seed)
        bound = self._epochs_bound(outcome)
        if outcome.objective is None:
            return MilpResult(None, outcome, None, bound)
        made = sends.held.copy()
        made[send.free] = np.asarray(outcome.values)[send.column[send.free]] > 0.5
        chosen = sends.where(made)
        keys = chosen.triples()
        return MilpResult(self._read(keys), outcome, self._finish_epoch(keys), bound)

    def started(self) -> Schedule:
        """The start as the model has it: in epochs, under the rules."""
        return self._read(list(self.placed))

    def _finish_epoch(self, sends: Iterable[Key]) -> int:
        return max((epoch + self.timing.arrival(path, epoch) for _, path, epoch in sends), default=0)

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

    def _formulated(self) -> tuple[Formulation, Sends, Block, Block]:
        """The model, with F of all sends and late of all tenants and epochs."""
        model = Formulation()
        sends = self._choices.sends()
        tie_break = 1e-5 / max(1, len(self.placed))  # of schedules that are as short the one with the fewest sends
        send = model.variables_where(~sends.held, np.ones(len(sends)), integer=True, cost=tie_break)
        there = self._buffers(model, sends, send)
        model.add(there[self._cell(sends.chunk, self._ranks[sends.path, 0], sends.epoch)] >= send)
        self._links(model, sends, send)
        return model, sends, send, self._demand(model, there)

    @cached_property
    def _ranks(self) -> Ints:
        """Source and destination of each path."""
        return np.array([(path.src_rank, path.dst_rank) for path in self.grid.paths], np.int64).reshape(-1, 2)

    def _cell(self, chunk: Ints, rank: Ints, epoch: Ints) -> Ints:
        """Where B[chunk, rank, epoch] is in its block."""
        return (chunk * self.grid.topology.nranks + rank) * (self.horizon + 1) + epoch

    def _buffers(self, model: Formulation, sends: Sends, send: Block) -> Block:
        """B: fixed until the first send that may be chosen can arrive, from then on a column wherever it may change."""
        chunks, nranks = self.grid.demand.chunks, self.grid.topology.nranks
        shape = (len(chunks), nranks, self.horizon + 1)
        arrives = sends.epoch + self.timing.arrivals(sends.path, sends.epoch)
        into = self._cell(sends.chunk, self._ranks[sends.path, 1], arrives)
        chosen, held = (kind & (arrives <= self.horizon) for kind in (send.free, sends.held))
        may_come = (np.bincount(into[chosen], minlength=np.prod(shape)) > 0).reshape(shape)
        must_come = np.bincount(into[held], minlength=np.prod(shape)).reshape(shape)
        at_first, relays = np.zeros(shape[:2]), np.ones(shape[:2], bool)
        for c, chunk in enumerate(chunks):
            at_first[c, list(chunk.origin)] = 1
            relays[c, [*chunk.origin, *chunk.want]] = False
        relays &= self.rules.relay_chunks is not None
        known = np.minimum(1, at_first[:, :, None] + np.cumsum(must_come, axis=2))
        open_ = np.logical_or.accumulate(may_come, axis=2)
        opened_before = np.concatenate((np.zeros((*shape[:2], 1), bool), open_[:, :, :-1]), axis=2)
        changes = may_come | (opened_before & ((must_come > 0) | relays[:, :, None]))
        gained = np.where(opened_before, must_come, np.diff(known, axis=2, prepend=at_first[:, :, None]))

        cells = np.arange(np.prod(shape)).reshape(shape)
        changed = np.maximum.accumulate(np.where(changes, cells, -1), axis=2)
        now = model.variables_where(changes.ravel(), known.ravel())
        there = now[np.where(changed < 0, cells, changed).ravel()]

        here = np.flatnonzero(changes)
        number = np.zeros(np.prod(shape), np.int64)
        number[here] = np.arange(len(here))
        arriving = send[chosen].sum(number[into[chosen]], len(here)) + gained.ravel()[here]
        relay = np.broadcast_to(relays[:, :, None], shape).ravel()[here]
        removed = model.variables_where(relay, np.zeros(len(here)))
        model.add(there[here].equals(there[here - 1] + arriving - removed))
        if self.rules.relay_chunks is not None:
            at, places = numbered(here[relay] % (nranks * (self.horizon + 1)))  # GPU and epoch
            model.add(there[here[relay]].sum(at, len(places)) <= self.rules.relay_chunks)
        return there

    def _links(self, model: Formulation, sends: Sends, send: Block) -> None:
        paths = self.grid.paths
        shared = np.array([trunk(self.grid.topology, path.links) for path in paths], np.int64)  # its first links
        copied = np.flatnonzero(shared[sends.path])
        trunks = [path.links[:count] for path, count in zip(paths, shared.tolist(), strict=True)]
        alike = {links: i for i, links in enumerate(dict.fromkeys(trunks))}
        which = np.array([alike[links] for links in trunks], np.int64)[sends.path[copied]]
        copy, first = numbered((sends.chunk[copied] * len(alike) + which) * (self.horizon + 1) + sends.epoch[copied])
        one = self._copies(model, send[copied], copy, len(first))

        of_sends = self._occupied(sends.path, sends.epoch, shared, self.timing.hops)
        of_copies = self._occupied(sends.path[copied[first]], sends.epoch[copied[first]], np.zeros_like(shared), shared)
        user = np.concatenate((of_sends[0], of_copies[0] + len(send)))
        link, epoch = (np.concatenate(both) for both in zip(of_sends[1:], of_copies[1:], strict=True))
        window, first = numbered(link * (epoch.max(initial=0) + 1) + epoch)
        using = send.then(one)[user].sum(window, len(first))
        model.add(using <= np.array([self.timing.capacity(each) for each in link[first].tolist()], float))

    def _copies(self, model: Formulation, send: Block, copy: Ints, count: int) -> Block:
        """U: what makes a copy at all. Where one send alone does, it is that send."""
        makers = np.bincount(copy, minlength=count)
        made = np.bincount(copy, ~send.free, count) > 0
        several = (makers > 1) & ~made
        one = model.variables_where(several, np.ones(count))
        alone = (makers[copy] == 1) & send.free
        one.column[copy[alone]] = send.column[alone]
        by_copy = np.argsort(copy, kind="stable")
        by_copy = by_copy[several[copy[by_copy]]]
        model.add(send[by_copy] <= one[copy[by_copy]])
        return one

    def _occupied(self, path: Ints, epoch: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """Who (its number in `path`) occupies which link in which epoch, if number i starts on `path[i]` in `epoch[i]`:
        of path p the hops from `begin[p]` up to `end[p]`."""
        hops = self.timing.hops
        user, hop = runs((end - begin)[path])
        crossing = (np.cumsum(hops) - hops + begin)[path][user] + hop
        first, lasting = self.timing.windows(crossing, epoch[user])
        occupied, later = runs(lasting)
        return user[occupied], self.timing.links[crossing][occupied], (epoch[user] + first)[occupied] + later

    def _demand(self, model: Formulation, there: Block) -> Block:
        """late, with a column of zeros for epoch K in front: then nothing may be late."""
        counted = np.arange(self.counted_from, self.horizon)
        epochs = np.concatenate(([self.horizon], counted))
        wanted = [
            (t, c, v)
            for t, tenant in enumerate(self.tenants)
            for c in sorted(tenant.chunks)
            for v in sorted(set(self.grid.demand.chunks[c].want) - set(self.grid.demand.chunks[c].origin))
        ]
        t, c, v = np.array(wanted, np.int64).reshape(-1, 3).T
        here = there[self._cell(c[:, None], v[:, None], epochs)]
        surely = np.zeros((len(self.tenants), len(epochs)))
        np.maximum.at(surely, t, ~here.free & (here.value < 1))
        may_be = np.broadcast_to(epochs < self.horizon, surely.shape)
        weight = np.broadcast_to(np.array([[tenant.weight] for tenant in self.tenants]), surely.shape)
        late = model.variables_where(
            may_be.ravel(), np.zeros(surely.size), integer=True, cost=weight[may_be], lower=surely[may_be]
        )
        late = late[np.arange(surely.size).reshape(surely.shape)]
        model.add(late[t].ravel() >= 1 - here.ravel())
        model.add(late[:, 1:-1].ravel() >= late[:, 2:].ravel())
        return late[:, 1:]

    def _start(self, sends: Sends, send: Block, late: Block) -> tuple[Ints, Floats]:
        """The columns of F and late, and their values in the schedule that it starts from."""
        arrived = {(c, self.grid.paths[p].dst_rank): k + self.timing.arrival(p, k) for c, p, k in self.placed}
        finish = [
            max((arrived.get((c, w), 0) for c in tenant.chunks for w in self.grid.demand.chunks[c].want), default=0)
            for tenant in self.tenants
        ]
        if len(finish) == 1:
            finish = [self.horizon]
        placed = np.array([key in self.placed for key in sends.where(send.free).triples()], float)
        unmet = np.arange(self.counted_from, self.horizon) < np.array(finish)[:, None]
        return np.concatenate((send.column[send.free], late.column.ravel())), np.concatenate((placed, unmet.ravel()))

    # -- the answer ------------------------------------------------------------------------------------

    def _read(self, chosen: list[Key]) -> Schedule:
        """The chosen sends that serve somebody, re-timed in continuous time unless rules bind them to their
        epochs."""
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
        if self.rules.relay_chunks in (None, 0) and not schedule.multicasts():
            return paced(schedule, self.rules)
        return replace(schedule, finish_us=max((self.timing.arrival_us(schedule, send) for send in sends), default=0.0))


def _tenants(demand: Demand) -> tuple[Tenant, ...]:
    """The demand's groups, if they have weights that differ; else all chunks are one's."""
    weights = [group.weight for group in demand.groups]
    if len(set(weights)) < 2:
        return (Tenant(frozenset(chunk.id for chunk in demand.chunks)),)
    chunks = [frozenset(chunk.id for chunk in demand.chunks if chunk.group == g) for g in range(len(weights))]
    return tuple(Tenant(of, weight) for of, weight in zip(chunks, weights, strict=True) if of)
