"""Large-neighbourhood search: the MILP on a piece of the incumbent, the rest of it held fast."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from ..schedule.schedule import Schedule
from .choices import Free
from .epochs import EpochGrid, finish_epoch, slow_epoch_us
from .incumbent import Incumbent
from .milp import Milp
from .settings import Settings

#: Send variables of a piece, seconds for one solve, seconds for all in `auto`, and pieces in a row that bring nothing.
MOST_COLUMNS = 4_000
PIECE_S = 2.0
AUTO_S = 4.0
PATIENCE = 12
#: Seconds that building and reading a piece takes, with a margin: less than that left is too little to begin.
LEAST_S = 0.3
#: Seconds for each send that is written down in epochs.
SEND_S = 2e-4
#: Sends beyond which a schedule is not written down in epochs.
MOST_SENDS = 20_000


def polish(incumbent: Incumbent, settings: Settings) -> None:
    """Improve the best schedule of every stage piece by piece: a few chunks are freed, those that come last and others
    at random, or a window of time; the MILP finds them better sends and ways while all other sends stay where they are.

    Deterministic for a seed, apart from what the time allows. Nothing is begun that cannot end in time.
    """
    incumbent.phase = "polish"
    deadline = min(incumbent.deadline, time.monotonic() + AUTO_S)
    for i, parts in enumerate(incumbent.parts):
        if not parts:
            continue
        best = min(parts.values(), key=lambda part: part.finish_us)
        if len(best.sends) > MOST_SENDS:
            continue
        share = (deadline - time.monotonic()) / (len(incumbent.parts) - i)
        if share < LEAST_S + len(best.sends) * SEND_S:
            continue
        polished = polished_schedule(
            best,
            solver=settings.solver,
            seed=settings.seed,
            deadline=time.monotonic() + share,
            enough=incumbent.closed,
        )
        if polished.finish_us < best.finish_us:
            incumbent.offer(i, polished)


def polished_schedule(
    schedule: Schedule, *, solver: str, seed: int, deadline: float, enough: Callable[[], bool] = lambda: False
) -> Schedule:
    """The schedule after as many pieces as `deadline` (of time.monotonic) allows; never a slower one."""
    best, idle = schedule, 0
    rng = random.Random(seed)
    tau = slow_epoch_us(best.topology, best.demand)
    while idle < PATIENCE and not enough():
        grid = EpochGrid(best.topology, best.demand, tau)
        for free in _pieces(grid, best, rng):
            if deadline - time.monotonic() < LEAST_S or idle >= PATIENCE:
                return best
            model = _small_enough(grid, best, solver, free)
            if model is None:
                idle += 1
                continue
            left = deadline - time.monotonic()
            if left < LEAST_S:
                return best
            found = model.improve(seconds=min(PIECE_S, left - LEAST_S / 2), threads=1, seed=seed).schedule
            if found is not None and found.finish_us < best.finish_us * (1 - 1e-9):
                best, idle = found, 0
                break  # other chunks come last now
            idle += 1
    return best


def _small_enough(grid: EpochGrid, schedule: Schedule, solver: str, free: Free) -> Milp | None:
    """The model of the piece, or of half of it, and so on; None if even one chunk or epoch is too much."""
    while free.chunks or free.epochs:
        model = Milp(grid, schedule, solver, free=free)
        if model.columns(MOST_COLUMNS + 1) <= MOST_COLUMNS:
            return model
        chunks, epochs = sorted(free.chunks), free.epochs
        free = Free(frozenset(chunks[::2] if len(chunks) > 1 else ()), epochs[len(epochs) // 2 + 1 :])
    return None


def _pieces(grid: EpochGrid, schedule: Schedule, rng: random.Random) -> Iterator[Free]:
    """What to free, again and again: the latest chunks with random others, then windows of time from the end."""
    arrival: dict[int, float] = {}
    for send in schedule.sends:
        arrival[send.chunk] = max(arrival.get(send.chunk, 0.0), schedule.arrival_us(send))
    latest = sorted(arrival, key=lambda chunk: (-arrival[chunk], chunk))
    epochs = finish_epoch(grid, grid.discretized(schedule))
    size = max(2, len(latest) // 4)
    for _ in range(4):
        yield Free(chunks=frozenset(latest[: max(1, size // 2)] + rng.sample(latest, min(size, len(latest)))))
    for share in (0.6, 0.3):
        yield Free(epochs=range(int(epochs * share), epochs + 1))
