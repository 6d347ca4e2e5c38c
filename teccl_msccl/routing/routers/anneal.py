"""anneal: simulated annealing of one spine per destination host, as Hedera does it."""

from __future__ import annotations

from ..compiled import as_routes
from ..traffic import Route, Traffic
from .choice import Choice

#: Swaps that are tried: about as long as the other routers' slowest takes on 2,048 flows.
ITERATIONS = 20_000


def route(traffic: Traffic, choice: Choice) -> list[Route]:
    """All flows to a host share a spine, at first a random one; the spines of two destinations are swapped, and kept
    if Σ over links of the load beyond one flow's falls, or by luck (Hedera, NSDI 2010, §5.2)."""
    return as_routes(traffic.core.anneal(choice.seed, ITERATIONS))
