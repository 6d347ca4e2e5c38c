"""TE-CCL's general MILP: collectives as a multi-commodity flow with copies, over epochs (arXiv 2305.13479, §3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..collective.demand import Demand
from ..schedule.schedule import Schedule, Send
from ..topology.paths import trunk
from .choices import Choices, Free, Key, Sends
from .epochs import EpochGrid, finish_epoch
from .formulation import Block, Floats, Formulation, Ints, numbered, runs
from .handover import hand_over, set_start
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

    @cached_property
    def _choices(self) -> Choices:
        return Choices(self.grid, self.horizon, self.placed, self.free)

    def columns(self, most: int | None = None) -> int:
        """How many send variables the model has to decide, counted up to `most`."""
        return self._choices.count(most)

    def improve(self, *, seconds: float, threads: int = 2, seed: int = 0) -> MilpResult:
        """Search for fewer epochs for at most `seconds`, building the model included, from the given schedule on."""
        finish_by = time.monotonic() + seconds
        formulation, sends, send, late = self._formulated()
        model = new_model(self.solver)
        hand_over(model, self.solver, formulation.matrix())
        if not self.rules.constrain:
            set_start(model, self.solver, *self._start(sends, send, late))
        outcome = solve(model, self.solver, seconds=finish_by - time.monotonic(), threads=threads, seed=seed)
        bound = self._epochs_bound(outcome)
        if outcome.objective is None:
            return MilpResult(None, outcome, None, bound)
        made = sends.held.copy()
        made[send.free] = np.asarray(outcome.values)[send.column[send.free]] > 0.5
        chosen = sends.where(made)
        epochs = int(max(chosen.epoch + self._arrivals(chosen.path, chosen.epoch), default=0))
        return MilpResult(self._read(chosen.triples()), outcome, epochs, bound)

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
        model.add(there[self._cell(sends.chunk, self._source[sends.path], sends.epoch)] >= send)
        self._links(model, sends, send)
        return model, sends, send, self._demand(model, there)

    def _cell(self, chunk: Ints, rank: Ints, epoch: Ints) -> Ints:
        """Where B[chunk, rank, epoch] is in its block."""
        return (chunk * self.grid.topology.nranks + rank) * (self.horizon + 1) + epoch

    def _buffers(self, model: Formulation, sends: Sends, send: Block) -> Block:
        """B: fixed until the first send that may be chosen can arrive, from then on a column wherever it may change."""
        chunks, nranks = self.grid.demand.chunks, self.grid.topology.nranks
        shape = (len(chunks), nranks, self.horizon + 1)
        arrives = sends.epoch + self._arrivals(sends.path, sends.epoch)
        into = self._cell(sends.chunk, self._target[sends.path], arrives)
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
        shared = [trunk(self.grid.topology, path.links) for path in self.grid.paths]
        trunks = [path.links[:n] for path, n in zip(self.grid.paths, shared, strict=True)]
        behind = [path.links[n:] for path, n in zip(self.grid.paths, shared, strict=True)]
        copied = np.flatnonzero(np.array(shared, np.int64)[sends.path]) if any(shared) else np.zeros(0, np.int64)
        alike = {links: i for i, links in enumerate(dict.fromkeys(trunks))}
        which = np.array([alike[links] for links in trunks], np.int64)[sends.path[copied]]
        copy, first = numbered((sends.chunk[copied] * len(alike) + which) * (self.horizon + 1) + sends.epoch[copied])
        one = self._copies(model, send[copied], copy, len(first))

        of_sends = self._occupied(behind, sends.path, sends.epoch)
        of_copies = self._occupied(trunks, sends.path[copied[first]], sends.epoch[copied[first]])
        user = np.concatenate((of_sends[0], of_copies[0] + len(send)))
        link, epoch = (np.concatenate(both) for both in zip(of_sends[1:], of_copies[1:], strict=True))
        window, first = numbered(link * (epoch.max(initial=0) + 1) + epoch)
        using = send.then(one)[user].sum(window, len(first))
        model.add(using <= self._capacities(link[first], epoch[first]))

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

    def _occupied(self, links: Sequence[tuple[int, ...]], which: Ints, epoch: Ints) -> tuple[Ints, Ints, Ints]:
        """Who (its number in `which`) occupies which link in which epoch, if number i goes over `links[which[i]]` from
        `epoch[i]` on."""
        lengths = np.array([len(each) for each in links], np.int64)
        flat = np.array([id for each in links for id in each], np.int64)
        user, hop = runs(lengths[which])
        link = flat[(np.cumsum(lengths) - lengths)[which][user] + hop]
        crossing, later = runs(self._spans(link, epoch[user]))
        return user[crossing], link[crossing], epoch[user[crossing]] + later

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
        arrived = {(c, self.grid.paths[p].dst_rank): k + self.grid.arrival[p] for c, p, k in self.placed}
        finish = [
            max((arrived.get((c, w), 0) for c in tenant.chunks for w in self.grid.demand.chunks[c].want), default=0)
            for tenant in self.tenants
        ]
        if len(finish) == 1:
            finish = [finish_epoch(self.grid, self.placed)]
        placed = np.array([key in self.placed for key in sends.where(send.free).triples()], float)
        unmet = np.arange(self.counted_from, self.horizon) < np.array(finish)[:, None]
        return np.concatenate((send.column[send.free], late.column.ravel())), np.concatenate((placed, unmet.ravel()))

    # -- the grid, under the rules ---------------------------------------------------------------------

    @cached_property
    def _source(self) -> Ints:
        return np.array([path.src_rank for path in self.grid.paths], np.int64)

    @cached_property
    def _target(self) -> Ints:
        return np.array([path.dst_rank for path in self.grid.paths], np.int64)

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

    def _capacity(self, link: int, epoch: int) -> int:
        """Sends that may occupy the link in that epoch."""
        capacity = self.grid.capacity[link]
        if capacity > 1 and link in self.rules.shares:
            return int(capacity * self.rules.share(link, epoch) + 1e-9)
        return capacity

    def _arrivals(self, path: Ints, epoch: Ints) -> Ints:
        return _each(self._arrival, path, epoch if self.rules.shares else np.zeros_like(epoch))

    def _spans(self, link: Ints, epoch: Ints) -> Ints:
        return _each(self._span, link, epoch if self.rules.shares else np.zeros_like(epoch))

    def _capacities(self, link: Ints, epoch: Ints) -> Floats:
        return _each(self._capacity, link, epoch if self.rules.shares else np.zeros_like(epoch)).astype(float)

    # -- the answer ------------------------------------------------------------------------------------

    def _read(self, chosen: list[Key]) -> Schedule:
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


def _each(figure: Callable[[int, int], int], what: Ints, epoch: Ints) -> Ints:
    """The figure for every pair of a link or path and an epoch, worked out once for pairs that are alike."""
    most = int(epoch.max(initial=0)) + 1
    alike, inverse = np.unique(what * most + epoch, return_inverse=True)
    return np.array([figure(*divmod(pair, most)) for pair in alike.tolist()], np.int64)[inverse]


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
