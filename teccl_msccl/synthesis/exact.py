"""The MILP as a searcher: every stage's schedules improved by the exact model, smallest models first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..topology.paths import direct_paths
from .bounds import whole_chunks_us
from .epochs import EpochGrid, epochs_of
from .incumbent import CLOSED, INDIFFERENCE, Incumbent
from .milp import Milp
from .settings import Settings
from .solver import Outcome

#: Where `auto` takes the MILP for worth its while: gaps above this, models of up to so many send variables, so many
#: seconds for each and for all.
AUTO_GAP = 5e-3
AUTO_COLUMNS = 8_000
AUTO_MODEL_S = 4.0
AUTO_MILP_S = 12.0
#: Send variables beyond which a model would not fit in memory.
MAX_COLUMNS = 1_000_000
#: Seconds that a send variable takes to build and hand over, and more: what would not be built in time is left out.
COLUMN_S = 1e-5


@dataclass(frozen=True)
class MilpReport:
    """One MILP solve: the chunk count and grid it was for, how it ended, and the finish before and after."""

    nchunks: int
    grid: str
    epochs: int | None
    epochs_bound: int
    outcome: Outcome
    start_us: float
    finish_us: float | None


def search_exactly(incumbent: Incumbent, settings: Settings, solved: Callable[[MilpReport], None]) -> None:
    """Improve each stage's schedules by TE-CCL's MILP until the time is up or the gap is closed; every solve is told.

    Thorough settings give every model all the time that is left; else models are small and their time short.
    """
    incumbent.phase = "milp"
    thorough = settings.thorough
    deadline = incumbent.deadline if thorough else min(incumbent.deadline, time.monotonic() + AUTO_MILP_S)
    for i, model, name, columns in _models(incumbent, settings, MAX_COLUMNS if thorough else AUTO_COLUMNS):
        left = deadline - time.monotonic()
        if left <= columns * COLUMN_S or incumbent.closed(CLOSED if thorough else AUTO_GAP):
            return
        seconds = left if thorough else min(AUTO_MODEL_S, left)
        solved(improve(incumbent, settings, i, model, name, model.start.finish_us, seconds))


def _models(incumbent: Incumbent, settings: Settings, most: int) -> list[tuple[int, Milp, str, int]]:
    """The models with at most `most` columns that may improve on the best of their stage, smallest first; of a chunk
    count that was asked for also those that can only prove that their start is optimal."""
    models = []
    proofs = settings.thorough and settings.nchunks is not None
    for i, stage in enumerate(incumbent.stages):
        best_us = min((part.finish_us for part in incumbent.parts[i].values()), default=0.0)
        for part in incumbent.parts[i].values():
            if incumbent.seconds_left <= 0:
                return []
            if len(part.demand.chunks) * stage.topology.nranks > most:  # a way into every GPU at the least
                continue
            choices = len(part.demand.chunks) * len(direct_paths(stage.topology))  # about the columns of an epoch
            if choices > most:
                continue
            if not proofs and whole_chunks_us(stage.topology, part.demand) >= best_us * (1 - INDIFFERENCE):
                continue
            for name, tau in epochs_of(stage.topology, part.demand, settings.epochs).items():
                model = Milp(EpochGrid(stage.topology, part.demand, tau), part, settings.solver)
                columns = model.columns(most + 1)
                if (proofs or model.horizon > model.first_late) and columns <= most:
                    models.append((columns, i, model, name))
    return [(i, model, name, columns) for columns, i, model, name in sorted(models, key=lambda entry: entry[0])]


def improve(
    incumbent: Incumbent, settings: Settings, stage: int, model: Milp, grid: str, before: float, seconds: float
) -> MilpReport:
    """Have the model improve on its start, which takes `before` µs, and offer what is faster for the stage."""
    incumbent.tell()
    result = model.improve(seconds=seconds, threads=settings.jobs, seed=settings.seed)
    better = result.schedule if result.schedule is not None and result.schedule.finish_us < before else None
    if better is not None:
        incumbent.offer(stage, better)
    finish = None if better is None else better.finish_us
    nchunks = model.start.demand.nchunks
    return MilpReport(nchunks, grid, result.epochs, result.epochs_bound, result.outcome, before, finish)
