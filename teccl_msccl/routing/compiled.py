"""The C++ twin of traffic: what routers and the simulator ask thousands of times, in floating point."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .traffic import Route, Traffic

#: Weights become whole numbers, whose sums are exact, where they stay below this.
EXACT = 2**40


def compiled(traffic: Traffic) -> _core.Traffic:
    """Traffic of one phase for the core. Its rates are per unit of weight, as `weights` scales it."""
    fabric, flows = traffic.fabric, traffic.flows
    number = {name: i for i, name in enumerate(traffic.collectives)}
    return _core.Traffic(
        tors=fabric.tors,
        spines=fabric.spines,
        hosts_per_tor=fabric.hosts_per_tor,
        capacity=np.array([float(c) for c in fabric.capacity]),
        src=np.array([flow.src for flow in flows], dtype=np.int32),
        dst=np.array([flow.dst for flow in flows], dtype=np.int32),
        weight=weights(traffic),
        collective=np.array([number[flow.collective] for flow in flows], dtype=np.int32),
        collectives=len(number),
    )


def weights(traffic: Traffic) -> NDArray[np.float64]:
    """Weights scaled so that sums of them are exact where they can be: ties between equal loads stay ties."""
    scale = math.lcm(*{flow.weight.denominator for flow in traffic.flows})
    shared = math.gcd(*(flow.weight.numerator * (scale // flow.weight.denominator) for flow in traffic.flows)) or 1
    scaled = [flow.weight.numerator * (scale // flow.weight.denominator) // shared for flow in traffic.flows]
    if max(scaled, default=0) >= EXACT:
        most = max(flow.weight for flow in traffic.flows)
        return np.array([float(flow.weight / most) for flow in traffic.flows])
    return np.array(scaled, dtype=float)


def as_spines(routes: Sequence[Route]) -> NDArray[np.int32]:
    return np.array([-1 if route is None else route for route in routes], dtype=np.int32)


def as_routes(spines: NDArray[np.int32]) -> list[Route]:
    return [None if spine < 0 else spine for spine in spines.tolist()]
