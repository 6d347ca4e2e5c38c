"""TE-CCL's A*: the MILP round by round, each nearer to the demand (arXiv 2305.13479, §5)."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import Any

from mip import BINARY, xsum

from ..collective.demand import Demand
from ..schedule.schedule import Schedule, Send
from ..topology.model import Topology
from ..topology.paths import direct_paths
from .epochs import EpochGrid, epochs_of, slow_epoch_us
from .incumbent import Incumbent
from .settings import Settings
from .solver import new_model, solve

#: What a chunk next to where it is missing is worth, one that is there being worth 1.
GAMMA = 0.9
#: Rounds without a send after which the search gives up, and seconds for a round.
MOST_IDLE = 3
ROUND_S = 5.0
#: Seconds that a send variable takes to build and hand over: a round that would not be built in time is left out.
COLUMN_S = 1e-4


def search_by_rounds(incumbent: Incumbent, settings: Settings) -> None:
    """Offer an A* schedule for every stage, for the few chunk counts that a round's model can hold."""
    incumbent.phase = "astar"
    counts = (settings.nchunks,) if settings.nchunks is not None else incumbent.problem.chunk_counts()[:2]
    for i, stage in enumerate(incumbent.stages):
        for count in counts:
            demand = stage.demand(count)
            found = schedule_by_rounds(
                EpochGrid(stage.topology, demand, round_epoch_us(stage.topology, demand, settings.epochs)),
                solver=settings.solver,
                seed=settings.seed,
                deadline=incumbent.deadline,
            )
            if found is not None:
                incumbent.offer(i, found.retimed())


def round_epoch_us(topology: Topology, demand: Demand, epochs: str) -> float:
    """The epoch that was asked for; of auto the slow one, and no shorter than any path's α: what is fine takes long and
    many rounds, and re-timing undoes what is coarse."""
    if epochs != "auto":
        return epochs_of(topology, demand, epochs)[epochs]
    return max(slow_epoch_us(topology, demand), max(path.alpha_us for path in direct_paths(topology)))


def schedule_by_rounds(grid: EpochGrid, *, solver: str, seed: int, deadline: float) -> Schedule | None:
    """A schedule on the grid's epochs, None if the time (of time.monotonic) is up before every demand is met.

    A round lasts longer than any transfer. What it sends may arrive in the next, where every arrival counts once: it is
    carried over as the epoch from which on its receiver has the chunk; and so are the links that it still occupies.
    """
    state = _State({(chunk.id, v): 0 for chunk in grid.demand.chunks for v in chunk.origin})
    length = max(grid.arrival, default=1) + 1
    begin = idle = 0
    while not state.meets(grid):
        left = deadline - time.monotonic()
        columns = len(grid.demand.chunks) * len(grid.paths) * length
        if left <= columns * COLUMN_S or idle >= MOST_IDLE:
            return None
        sent = _round(grid, state, range(begin, begin + length), solver, min(ROUND_S, left), seed)
        idle = 0 if sent else idle + 1
        begin += length
        if not sent:
            length *= 2
    sends = [Send(c, grid.paths[p].links, k * grid.tau_us) for c, p, k in sorted(state.sent, key=lambda key: key[2])]
    schedule = Schedule(grid.topology, grid.demand, tuple(sends), 0.0)
    return Schedule(grid.topology, grid.demand, tuple(sends), max(map(schedule.arrival_us, sends), default=0.0))


@dataclass
class _State:
    """From which epoch on a GPU has a chunk, what was sent, and how many sends occupy (link, epoch)."""

    since: dict[tuple[int, int], int]
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    occupied: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))

    def meets(self, grid: EpochGrid) -> bool:
        return all((chunk.id, w) in self.since for chunk in grid.demand.chunks for w in chunk.want)

    def take(self, grid: EpochGrid, key: tuple[int, int, int]) -> None:
        c, p, k = key
        self.sent.append(key)
        self.since[c, grid.paths[p].dst_rank] = k + grid.arrival[p]
        for link in grid.paths[p].links:
            for epoch in range(k, k + grid.span[link]):
                self.occupied[link, epoch] += 1


def _round(grid: EpochGrid, state: _State, epochs: range, solver: str, seconds: float, seed: int) -> bool:
    """Solve one round and add what it sends to the state; whether it sends anything.

    max  Σ_{c,w missing} Σ_v y[c,w,v] · γ/(1 + distance(v,w))  (1 at w itself)  −  ε Σ arrival · F
    s.t. Σ_v y[c,w,v] ≤ 1,   y[c,w,v] ≤ H[c,v]                  what counts is the nearest that has it or will
         F[c,p,k] ≤ B[c,src(p),k],   Σ F into v ≤ 1              as in `milp`
         occupancy, with what is carried over, ≤ capacity        on every link and epoch
    """
    model: Any = new_model(solver)
    sends = {
        (c.id, p, k): model.add_var(var_type=BINARY)
        for c in grid.demand.chunks
        if any((c.id, w) not in state.since for w in c.want)
        for p, path in enumerate(grid.paths)
        if (c.id, path.dst_rank) not in state.since and _helps(grid, c.want, path.dst_rank)
        if (holders := grid.demand.holders(c)) is None or holders.issuperset((path.src_rank, path.dst_rank))
        for k in epochs
    }
    into: dict[tuple[int, int], list[tuple[int, Any]]] = defaultdict(list)  # (chunk, GPU) → (from when, send)
    using: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for (c, p, k), send in sends.items():
        into[c, grid.paths[p].dst_rank].append((k + grid.arrival[p], send))
        for link in grid.paths[p].links:
            for epoch in range(k, k + grid.span[link]):
                using[link, epoch].append(send)
    for (c, p, k), send in sends.items():
        place = (c, grid.paths[p].src_rank)
        if state.since.get(place, inf) > k:
            model += send <= xsum(earlier for since, earlier in into[place] if since <= k)
    for arriving in into.values():
        model += xsum(send for _, send in arriving) <= 1
    for (link, epoch), window in using.items():
        model += xsum(window) <= max(0, grid.capacity[link] - state.occupied[link, epoch])
    gain = []
    for chunk in grid.demand.chunks:
        for w in chunk.want:
            if (chunk.id, w) in state.since:
                continue
            shares = []
            for v in range(grid.topology.nranks):
                held = (chunk.id, v) in state.since
                if (held or into[chunk.id, v]) and grid.distance[v][w] < inf:
                    share = model.add_var(lb=0, ub=1)
                    shares.append(share)
                    gain.append((1.0 if v == w else GAMMA / (1 + grid.distance[v][w])) * share)
                    if not held:
                        model += share <= xsum(send for _, send in into[chunk.id, v])
            model += xsum(shares) <= 1
    haste = 1e-3 / max(1, len(epochs)) / max(1, len(grid.demand.chunks) * grid.topology.nranks)
    arrivals = xsum((k - epochs.start + grid.arrival[p]) * send for (_, p, k), send in sends.items())
    model.objective = haste * arrivals - xsum(gain)
    outcome = solve(model, solver, seconds=seconds, threads=1, seed=seed)
    if outcome.objective is None:
        return False
    chosen = [key for key, send in sends.items() if outcome.chosen(send)]
    for key in chosen:
        state.take(grid, key)
    return bool(chosen)


def _helps(grid: EpochGrid, want: tuple[int, ...], at: int) -> bool:
    """Whether a chunk there can get to anybody who wants it."""
    return any(grid.distance[at][w] < inf for w in want)
