"""The metric, exactly: how fast collectives run on given routes, by progressive filling over rational numbers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..errors import unknown
from .traffic import Route, Traffic

MODES = ("coll", "flow", "static")


@dataclass(frozen=True)
class Rates:
    """x_j of every collective, per unit of weight, and the rate of every flow, both relative to the link rate."""

    collectives: dict[str, Fraction]
    flows: tuple[Fraction, ...]

    @property
    def phi(self) -> list[Fraction]:
        """The collectives' rates, slowest first: routes are better iff this is lexicographically greater."""
        return sorted(self.collectives.values())


def rates(traffic: Traffic, routes: Sequence[Route], mode: str = "coll") -> Rates:
    """The rates of collectives and flows on routes. A flow without a spine loads its host links alone, as on a
    non-blocking fabric.

    - coll: two-layer max-min; every flow of collective j runs at w_f·x_j.
    - flow: network-wide max-min rates r_f of flows, as congestion control gives them; x_j = min r_f / w_f.
    - static: x_j = 1 / max over the links e of j's flows of (Σ weights on e) / c_e.

    Phases are rated apart: they do not meet. O(phases · (F + L) log L) operations on rationals (arXiv 2503.05324).
    """
    if mode not in MODES:
        raise unknown("mode", mode, MODES)
    collectives: dict[str, Fraction] = dict.fromkeys(traffic.collectives, Fraction(0))
    flows = [Fraction(0)] * len(traffic.flows)
    rate = {"coll": _two_layer, "flow": _per_flow, "static": _static}[mode]
    for phase in traffic.phases:
        places, part = traffic.of_phase(phase) if len(traffic.phases) > 1 else (range(len(flows)), traffic)
        found = rate(part, [routes[i] for i in places])
        collectives |= found.collectives
        for place, value in zip(places, found.flows, strict=True):
            flows[place] = value
    return Rates(collectives, tuple(flows))


def non_blocking(traffic: Traffic, mode: str = "coll") -> Rates:
    """The rates on a fabric that never blocks: only the hosts' own links limit. No routes can do better."""
    return rates(traffic, [None] * len(traffic.flows), mode)


def link_loads(traffic: Traffic, routes: Sequence[Route]) -> dict[int, Fraction]:
    """Σ of the weights that cross each used link; of several phases, the most that one has."""
    most: dict[int, Fraction] = {}
    for phase in traffic.phases:
        load: dict[int, Fraction] = {}
        for flow, route in zip(traffic.flows, routes, strict=True):
            if flow.phase == phase:
                for link in traffic.links_of(flow, route):
                    load[link] = load.get(link, Fraction(0)) + flow.weight
        for link, value in load.items():
            most[link] = max(most.get(link, Fraction(0)), value)
    return most


def max_load(traffic: Traffic, routes: Sequence[Route]) -> Fraction:
    """The largest load of a link between ToRs and spines, as a multiple of its capacity. Links must be alive."""
    fabric = traffic.fabric
    loads = link_loads(traffic, routes)
    return max(
        (load / fabric.capacity[link] for link, load in loads.items() if link < fabric.fabric_links),
        default=Fraction(0),
    )


def load_bound(traffic: Traffic) -> Fraction:
    """No routes have a smaller `max_load`: what a ToR sends or receives, over its live links' capacity; in whole flows
    where all weights and live capacities are equal (⌈Δ/m⌉)."""
    fabric = traffic.fabric
    alive = [capacity for capacity in fabric.capacity[: fabric.fabric_links] if capacity]
    most = Fraction(0)
    for phase in traffic.phases:
        flows = [flow for flow in traffic.flows if flow.phase == phase and traffic.crosses(flow)]
        if not flows:
            continue
        unit = flows[0].weight if len({flow.weight for flow in flows}) == 1 and len(set(alive)) == 1 else None
        out: dict[int, Fraction] = {}
        into: dict[int, Fraction] = {}
        for flow in flows:
            source, target = fabric.tor_of(flow.src), fabric.tor_of(flow.dst)
            out[source] = out.get(source, Fraction(0)) + flow.weight
            into[target] = into.get(target, Fraction(0)) + flow.weight
        for loads, link in ((out, fabric.up), (into, lambda tor, spine: fabric.down(spine, tor))):
            for tor, load in loads.items():
                room = [c for spine in range(fabric.spines) if (c := fabric.capacity[link(tor, spine)])]
                if not room:
                    continue
                if unit is None:
                    most = max(most, load / sum(room))
                else:
                    most = max(most, -(-(load / unit) // len(room)) * unit / room[0])
    return most


def _two_layer(traffic: Traffic, routes: Sequence[Route]) -> Rates:
    members: dict[str, list[int]] = {name: [] for name in traffic.collectives}
    for i, flow in enumerate(traffic.flows):
        members[flow.collective].append(i)
    found = _fill(traffic, routes, list(members.values()), [flow.weight for flow in traffic.flows])
    collectives = dict(zip(members, found, strict=True))
    return Rates(collectives, tuple(flow.weight * collectives[flow.collective] for flow in traffic.flows))


def _per_flow(traffic: Traffic, routes: Sequence[Route]) -> Rates:
    one = Fraction(1)
    found = _fill(traffic, routes, [[i] for i in range(len(traffic.flows))], [one] * len(traffic.flows))
    collectives: dict[str, Fraction] = {}
    for flow, rate in zip(traffic.flows, found, strict=True):
        share = rate / flow.weight
        collectives[flow.collective] = min(collectives.get(flow.collective, share), share)
    return Rates(collectives, tuple(found))


def _static(traffic: Traffic, routes: Sequence[Route]) -> Rates:
    capacity = traffic.fabric.capacity
    loads = link_loads(traffic, routes)
    most: dict[str, Fraction | None] = dict.fromkeys(traffic.collectives, Fraction(0))
    for flow, route in zip(traffic.flows, routes, strict=True):
        for link in traffic.links_of(flow, route):
            before = most[flow.collective]
            share = loads[link] / capacity[link] if capacity[link] else None
            most[flow.collective] = None if share is None or before is None else max(before, share)
    collectives = {name: 1 / load if load else Fraction(0) for name, load in most.items()}
    return Rates(collectives, tuple(flow.weight * collectives[flow.collective] for flow in traffic.flows))


def _fill(
    traffic: Traffic, routes: Sequence[Route], groups: Sequence[Sequence[int]], amount: Sequence[Fraction]
) -> list[Fraction]:
    """Progressive filling: the rates of all groups grow together, and a group stops where a link of its flows is full.

    A group's rate x makes each of its flows f run at amount[f]·x. A link's level (what is left of it over what grows
    on it) only rises as groups stop, so a heap whose levels may be stale is enough.
    """
    left = list(traffic.fabric.capacity)
    growing: dict[int, Fraction] = {}
    on: dict[int, dict[int, Fraction]] = {}  # link → group → Σ amounts
    of: list[dict[int, Fraction]] = [{} for _ in groups]  # the same by group
    for group, flows in enumerate(groups):
        for f in flows:
            for link in traffic.links_of(traffic.flows[f], routes[f]):
                of[group][link] = of[group].get(link, Fraction(0)) + amount[f]
        for link, total in of[group].items():
            on.setdefault(link, {})[group] = total
            growing[link] = growing.get(link, Fraction(0)) + total
    rate: list[Fraction | None] = [None] * len(groups)
    levels = [(left[link] / total, link) for link, total in growing.items()]
    heapq.heapify(levels)
    while levels:
        level, link = heapq.heappop(levels)
        if not growing[link]:
            continue
        if left[link] / growing[link] > level:
            heapq.heappush(levels, (left[link] / growing[link], link))
            continue
        for group in on[link]:
            if rate[group] is None:
                rate[group] = level
                for crossed, total in of[group].items():
                    left[crossed] -= total * level
                    growing[crossed] -= total
    return [value if value is not None else Fraction(0) for value in rate]
