"""ecmp: what the network does by itself."""

from __future__ import annotations

import random

from ..enforcement import ends_of
from ..hash_model import CrcHash
from ..rocev2 import derived_udp_sport
from ..traffic import Route, Traffic
from .choice import Choice


def route(traffic: Traffic, choice: Choice) -> list[Route]:
    """The spine that a CRC-32 over the five-tuple picks, with the UDP source port that Linux derives from the queue
    pair numbers: those that flows give (src_qpn, dst_qpn), else drawn by `seed` and the flow."""
    model = CrcHash(choice.seed)
    routes: list[Route] = []
    for key, flow in zip(traffic.keys, traffic.flows, strict=True):
        if not traffic.crosses(flow):
            routes.append(None)
            continue
        known, drawn = dict(flow.extra), random.Random(f"{choice.seed} {key}")
        numbers = [known.get(name, drawn.getrandbits(24)) for name in ("src_qpn", "dst_qpn")]
        sport = derived_udp_sport(*numbers)
        routes.append(model.spine(ends_of(flow), sport, traffic.spines_of(flow)))
    return routes
