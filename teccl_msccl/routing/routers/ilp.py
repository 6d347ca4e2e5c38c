"""ilp: the smallest largest load, by integer programming."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ...errors import InputError, Refused
from ..traffic import Route, Traffic
from . import greedy
from .choice import Choice

#: What CBC solves in a minute or so.
MOST_BINARIES = 1024


def route(traffic: Traffic, choice: Choice) -> list[Route]:
    """min α, with x_fs = 1 where flow f takes spine s:

        Σ_s x_fs = 1            for every flow that leaves its ToR
        Σ_f w_f·x_fs ≤ α·c_e    for every link e between ToRs and spines

    Weights are in units of the lightest flow's; where all weights and all capacities are equal α is a whole number.
    CBC starts from greedy's routes. Raises `InputError` beyond `MOST_BINARIES`, `Refused` if no optimum is proved in
    `time_limit` seconds.
    """
    from mip import BINARY, CONTINUOUS, INTEGER, xsum  # only this router pays for the solver

    from ...synthesis.solver import new_model, solve

    crossing = [i for i, flow in enumerate(traffic.flows) if traffic.crosses(flow)]
    spines = {i: traffic.spines_of(traffic.flows[i]) for i in crossing}
    binaries = sum(map(len, spines.values()))
    if binaries > MOST_BINARIES:
        raise InputError(f"ilp: {binaries} binaries, more than the {MOST_BINARIES} that CBC can take; use auto")
    if not crossing:
        return [None] * len(traffic.flows)
    fabric = traffic.fabric
    unit = min(traffic.flows[i].weight for i in crossing)
    model = new_model("cbc")
    x = {(i, s): model.add_var(var_type=BINARY) for i in crossing for s in spines[i]}
    on: dict[int, list[Any]] = defaultdict(list)
    for i in crossing:
        flow = traffic.flows[i]
        model += xsum(x[i, s] for s in spines[i]) == 1
        for s in spines[i]:
            for link in (fabric.up(fabric.tor_of(flow.src), s), fabric.down(s, fabric.tor_of(flow.dst))):
                on[link].append(float(flow.weight / unit) * x[i, s])
    alike = len({traffic.flows[i].weight for i in crossing}) == 1 and {fabric.capacity[link] for link in on} == {1}
    alpha = model.add_var(var_type=INTEGER if alike else CONTINUOUS, lb=0)
    for link, terms in on.items():
        model += xsum(terms) <= float(fabric.capacity[link]) * alpha
    model.objective = alpha
    start = greedy.route(traffic, choice)
    model.start = [(variable, float(start[i] == s)) for (i, s), variable in x.items()]
    outcome = solve(model, "cbc", seconds=choice.time_limit, threads=1, seed=choice.seed)
    if outcome.status != "optimal":
        raise Refused(f"ilp: CBC proved no optimum in {choice.time_limit:g} s; give --time-limit more, or use auto")
    routes: list[Route] = [None] * len(traffic.flows)
    for (i, s), variable in x.items():
        if outcome.chosen(variable):
            routes[i] = s
    return routes
