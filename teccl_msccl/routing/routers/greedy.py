"""greedy: the paper's kind of router, at most twice the optimum load on a symmetric fabric."""

from __future__ import annotations

from collections.abc import Sequence

from ..compiled import as_routes, as_spines
from ..traffic import Route, Traffic
from .choice import Choice


def route(traffic: Traffic, choice: Choice) -> list[Route]:
    """ToR by ToR, the one with most flows first, each flow to the spine over which the more loaded of its two hops is
    least loaded.

    Groups are out[u] and in[v] (ties: out before in, then the number); inside, flows go by (collective, place); the
    spine is argmin (max((n_up + w)/c_up, (n_down + w)/c_down), n_up + n_down, s). With equal weights and m live
    spines the largest load is ≤ ⌊1 + (2Δ − 2)/m⌋ ≤ 2·OPT, in any order. O(F (log F + M)).
    """
    return fill_in(traffic, [None] * len(traffic.flows))


def fill_in(traffic: Traffic, placed: Sequence[Route]) -> list[Route]:
    """The same for the flows that have no spine yet; the others stay."""
    return as_routes(traffic.core.greedy(as_spines(placed)))
