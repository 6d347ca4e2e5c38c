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
    pair numbers: those that flows give (src_qpn, dst_qpn), else drawn by `seed`."""
    model, draw = CrcHash(choice.seed), random.Random(choice.seed)
    routes: list[Route] = []
    for flow in traffic.flows:
        drawn = draw.getrandbits(24), draw.getrandbits(24)
        if not traffic.crosses(flow):
            routes.append(None)
            continue
        known = dict(flow.extra)
        sport = derived_udp_sport(known.get("src_qpn", drawn[0]), known.get("dst_qpn", drawn[1]))
        routes.append(model.spine(ends_of(flow), sport, traffic.spines_of(flow)))
    return routes
