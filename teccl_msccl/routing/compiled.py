"""The C++ twin of traffic: what routers and the simulator ask thousands of times, in floating point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .fabric import Clos
from .traffic import Route, Traffic

#: Weights become whole numbers, whose sums are exact, where they stay below this.
EXACT = 2**40


def compiled(traffic: Traffic) -> _core.Traffic:
    """Traffic of one phase for the core. Its collectives' rates are per scaled unit of weight: times
    `scaled_weights`'s factor they are per unit."""
    fabric, flows = traffic.fabric, traffic.flows
    number = {name: i for i, name in enumerate(traffic.collectives)}
    return _core.Traffic(
        tors=fabric.tors,
        spines=fabric.spines,
        hosts_per_tor=fabric.hosts_per_tor,
        capacity=capacities(fabric),
        src=np.array([flow.src for flow in flows], dtype=np.int32),
        dst=np.array([flow.dst for flow in flows], dtype=np.int32),
        weight=scaled_weights(traffic)[0],
        collective=np.array([number[flow.collective] for flow in flows], dtype=np.int32),
        collectives=len(number),
    )


def float_rates(traffic: Traffic, routes: Sequence[Route], mode: str) -> NDArray[np.float64]:
    """The collectives' rates per unit of weight, in their order."""
    rates, _ = traffic.core.rates(as_spines(routes), mode)
    return rates * scaled_weights(traffic)[1]


def capacities(fabric: Clos) -> NDArray[np.float64]:
    return np.array([float(capacity) for capacity in fabric.capacity])


def scaled_weights(traffic: Traffic) -> tuple[NDArray[np.float64], float]:
    """Weights times a factor, and the factor, so that sums of them are exact where they can be: ties between equal
    loads stay ties."""
    different = {flow.weight for flow in traffic.flows}
    scale = math.lcm(*(weight.denominator for weight in different))
    whole = {weight: weight.numerator * (scale // weight.denominator) for weight in different}
    shared = math.gcd(*whole.values()) or 1
    factor = Fraction(scale, shared)
    if max(different, default=Fraction(0)) * factor >= EXACT:
        factor = 1 / max(different)
    scaled = {weight: float(weight * factor) for weight in different}
    return np.array([scaled[flow.weight] for flow in traffic.flows]), float(factor)


def as_spines(routes: Sequence[Route]) -> NDArray[np.int32]:
    return np.array([-1 if route is None else route for route in routes], dtype=np.int32)


def as_routes(spines: NDArray[np.int32]) -> list[Route]:
    return [None if spine < 0 else spine for spine in spines.tolist()]
