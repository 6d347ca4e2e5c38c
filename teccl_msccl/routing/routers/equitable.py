"""equitable: an optimal balance on symmetric fabrics, by edge colouring."""

from __future__ import annotations

from ...errors import InputError
from ..compiled import as_routes, as_spines
from ..traffic import Route, Traffic
from .choice import Choice


def route(traffic: Traffic, choice: Choice) -> list[Route]:
    """Every link of a ToR with d flows carries ⌊d/m⌋ or ⌈d/m⌉ of them, m live spines: no largest load can be smaller.

    Each ToR vertex is split into vertices of degree ≤ m, and the bipartite multigraph of flows is edge-coloured in m
    colours (König 1916), which are the spines; routes in force are kept where the balance allows it. With nothing in
    force and m = 2^k, k Euler splits do it in O(F log m). Raises `InputError` on a fabric whose links differ.
    """
    live = traffic.fabric.symmetric_spines
    if live is None:
        raise InputError("equitable needs a symmetric fabric, and links of this one differ; use auto or greedy")
    placed = choice.in_force or (None,) * len(traffic.flows)
    return as_routes(traffic.core.equitable(as_spines(placed), list(live)))


def route_by_weight(traffic: Traffic, choice: Choice) -> list[Route]:
    """The same for each class of weights apart (within a factor of two), so that light flows do not decide where heavy
    ones meet: a link carries at most ⌈d/m⌉ of the d flows of a class."""
    heaviest = max((flow.weight for flow in traffic.flows), default=0)
    classes: dict[int, list[int]] = {}
    for i, flow in enumerate(traffic.flows):
        classes.setdefault((heaviest // flow.weight).bit_length(), []).append(i)
    routes: list[Route] = [None] * len(traffic.flows)
    for places in classes.values():
        part = Traffic(traffic.fabric, tuple(traffic.flows[i] for i in places))
        in_force = tuple(choice.in_force[i] for i in places) if choice.in_force else ()
        for place, found in zip(places, route(part, Choice(mode=choice.mode, in_force=in_force)), strict=True):
            routes[place] = found
    return routes
