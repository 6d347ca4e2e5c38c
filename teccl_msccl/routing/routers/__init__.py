"""Routers: one small file each, from traffic to a spine for every flow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...errors import unknown
from ..traffic import Route, Traffic
from . import anneal, auto, ecmp, edge_colour, equitable, greedy, ilp
from .choice import Choice

#: All of them take reachable traffic of one phase and give a live spine to each flow that leaves its ToR.
ROUTERS: dict[str, Callable[[Traffic, Choice], list[Route]]] = {
    "auto": auto.route,
    "greedy": greedy.route,
    "equitable": equitable.route,
    "edge-colour": edge_colour.route,
    "ecmp": ecmp.route,
    "anneal": anneal.route,
    "ilp": ilp.route,
}


@dataclass(frozen=True)
class Routing:
    """Routes found by a router, in how many seconds."""

    router: str
    routes: tuple[Route, ...]
    seconds: float


def optimize(traffic: Traffic, router: str = "auto", choice: Choice | None = None) -> Routing:
    """Choose a spine for each flow that leaves its ToR; phases are routed apart, since they do not meet.

    Deterministic: the same traffic and choice give the same routes. Raises `InputError` for an unknown router, an
    unreachable pair, and where a router does not take such traffic.
    """
    if router not in ROUTERS:
        raise unknown("router", router, ROUTERS)
    choice = choice or Choice()
    traffic.check_reachable()
    start = time.perf_counter()
    routes: list[Route] = [None] * len(traffic.flows)
    for phase in traffic.phases:
        places, part = traffic.of_phase(phase) if len(traffic.phases) > 1 else (range(len(routes)), traffic)
        in_force = alive(part, [choice.in_force[i] for i in places]) if choice.in_force else ()
        for place, route in zip(places, ROUTERS[router](part, replace(choice, in_force=in_force)), strict=True):
            routes[place] = route
    return Routing(router, tuple(routes), time.perf_counter() - start)


def alive(traffic: Traffic, routes: Sequence[Route]) -> tuple[Route, ...]:
    """Routes without those that have a failed hop."""
    spines = {
        pair: set(traffic.fabric.spines_between(*pair)) for pair in {_tors(traffic, i) for i in range(len(routes))}
    }
    return tuple(route if route in spines[_tors(traffic, i)] else None for i, route in enumerate(routes))


def _tors(traffic: Traffic, flow: int) -> tuple[int, int]:
    return traffic.fabric.tor_of(traffic.flows[flow].src), traffic.fabric.tor_of(traffic.flows[flow].dst)
