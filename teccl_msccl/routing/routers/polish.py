"""polish: moves and swaps of flows that improve given routes."""

from __future__ import annotations

from collections.abc import Sequence

from ..compiled import as_routes, as_spines
from ..traffic import Route, Traffic
from .choice import Choice

#: Link visits that polishing may cost: a fraction of a second.
WORK = 5_000_000


def polish(traffic: Traffic, routes: Sequence[Route], choice: Choice, most_changes: int | None = None) -> list[Route]:
    """Take the best move of a flow, or swap of two that share a source or destination ToR, as long as one improves
    (φ, −Σ over links of (collectives on it − 1)).

    The budget is a number of evaluations of the metric, so that the answer does not depend on the machine.
    """
    evaluations = choice.evaluations
    if evaluations is None:
        evaluations = WORK // (4 * max(1, len(routes)) + traffic.fabric.nlinks)
    changes = len(routes) * max(1, evaluations) if most_changes is None else most_changes
    polished, _, _ = traffic.core.polish(as_spines(routes), choice.mode, evaluations, min(changes, 2**31 - 1))
    return as_routes(polished)
