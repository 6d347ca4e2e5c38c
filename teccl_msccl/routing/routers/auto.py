"""auto: the best that the other routers find, polished, near the routes in force."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..compiled import as_spines
from ..traffic import Route, Traffic
from . import equitable, greedy
from .choice import Choice
from .polish import polish

#: Rates that differ by less than this share are rounding.
SAME = 1e-9


def route(traffic: Traffic, choice: Choice) -> list[Route]:
    """equitable (of all flows, and by weight) where the fabric is symmetric, and greedy; the best of them by φ,
    polished. Never worse than greedy.

    From routes in force: those, with flows that have none filled in (as equitable keeps them where it can) and
    polished; what moves flows is taken only where φ is better for it. With `most_moved` no more than that share of
    the routes in force is changed, but for what has failed.
    """
    fresh = [*_balanced(traffic, Choice(mode=choice.mode)), greedy.route(traffic, choice)]
    if not any(route is not None for route in choice.in_force):
        return polish(traffic, _best(traffic, fresh, choice.mode), choice)
    kept = _near(traffic, choice)
    if choice.most_moved is not None:
        room = most_moves(choice.most_moved, len(traffic.flows))
        candidates = [routes for routes in kept if moved(choice.in_force, routes) <= room] or [kept[0]]
        best = _best(traffic, candidates, choice.mode)
        polished = polish(traffic, best, choice, max(0, room - moved(choice.in_force, best)))
        return _best(traffic, [best, polished], choice.mode)
    best = _best(traffic, kept, choice.mode)
    better = [polish(traffic, routes, choice) for routes in (best, *fresh)]
    return _best(traffic, [best, *better], choice.mode)


def most_moves(share: float, flows: int) -> int:
    """How many flows may move: a share of them, but at least the two of a swap where any may."""
    return max(2, int(share * flows)) if share > 0 else 0


def moved(before: Sequence[Route], after: Sequence[Route]) -> int:
    """How many flows that had a route have another now."""
    return sum(a is not None and a != b for a, b in zip(before, after, strict=True))


def _near(traffic: Traffic, choice: Choice) -> list[list[Route]]:
    """The routes in force, completed: with nothing moved, and with as few moved as balance allows."""
    return [greedy.fill_in(traffic, choice.in_force), *_balanced(traffic, choice)]


def _balanced(traffic: Traffic, choice: Choice) -> list[list[Route]]:
    """What equitable finds, if it takes such traffic: all flows together, and by weight where weights differ."""
    if traffic.fabric.symmetric_spines is None:
        return []
    found = [equitable.route(traffic, choice)]
    if len({flow.weight for flow in traffic.flows}) > 1:
        found.append(equitable.route_by_weight(traffic, choice))
    return found


def _best(traffic: Traffic, candidates: Sequence[list[Route]], mode: str) -> list[Route]:
    """The candidate with the lexicographically greatest φ; the first of equals."""
    core = traffic.core
    best, best_phi = candidates[0], np.sort(core.rates(as_spines(candidates[0]), mode)[0])
    for candidate in candidates[1:]:
        phi = np.sort(core.rates(as_spines(candidate), mode)[0])
        if first_difference(phi, best_phi) > 0:
            best, best_phi = candidate, phi
    return best


def first_difference(phi: np.ndarray, other: np.ndarray) -> float:
    """By what share the first differing component of φ is above (or below) that of another φ; 0 if none differs."""
    for a, b in zip(phi.tolist(), other.tolist(), strict=True):
        if abs(a - b) > SAME * max(a, b):
            return float("inf") if b == 0 else (a - b) / b
    return 0.0
