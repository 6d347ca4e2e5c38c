"""edge-colour: as many colours as the busiest ToR has flows, wrapped around the spines."""

from __future__ import annotations

from ..traffic import Route, Traffic
from .choice import Choice


def route(traffic: Traffic, choice: Choice) -> list[Route]:
    """A proper edge colouring of the ToR multigraph in Δ colours (König 1916); colour mod live spines. O(F·V)."""
    colours = traffic.core.edge_colours().tolist()
    spines = [traffic.spines_of(flow) if traffic.crosses(flow) else [] for flow in traffic.flows]
    return [live[colour % len(live)] if live else None for live, colour in zip(spines, colours, strict=True)]
