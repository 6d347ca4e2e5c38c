"""PCI tree: what hangs below what, as sysfs and NCCL's topology files tell it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from .facts import Pair, pair

#: Deepest nesting of bridges that is believed; real hosts have under ten.
DEEPEST = 32

#: NCCL's figure for a PCIe lane, in GB/s × 80, by its speed in GT/s.
_LANE = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}
_GENERATIONS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
_GEN3 = 8.0
_FULL_WIDTH = 16


@dataclass(frozen=True)
class Place:
    """A place in the tree: a device (its label) or, with an empty label, a bridge; `GBps` is its link upwards."""

    label: str
    GBps: float
    below: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Root:
    """A NUMA node: what hangs from its CPU, and the bandwidth of its link to the other CPUs."""

    name: str
    socket_GBps: float | None
    places: tuple[Place, ...]


def lanes_GBps(speed_GTps: float | None, width: int) -> float:
    """Effective GB/s of a PCIe link as NCCL counts it: Gen3 where the speed is unknown, ×16 where the width is 0."""
    lane = _LANE.get(speed_GTps or _GEN3, _LANE[_GEN3])
    return (width or _FULL_WIDTH) * lane / 80


def generation_speed(generation: int) -> float | None:
    """GT/s of a PCIe generation (1 to 6), None for another."""
    return _GENERATIONS[generation - 1] if 1 <= generation <= len(_GENERATIONS) else None


def levels(roots: Sequence[Root]) -> dict[Pair, str]:
    """The relation of every two devices in the tree, as `nvidia-smi topo -m` names it. O(devices² · depth)."""
    trails = {label: (i, trail) for i, root in enumerate(roots) for label, trail in _trails(root.places, ())}
    return {pair(one, other): _level(trails[one], trails[other]) for one, other in combinations(trails, 2)}


def _trails(places: Sequence[Place], above: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for i, place in enumerate(places):
        if place.label:
            yield place.label, above
        yield from _trails(place.below, (*above, i))


def _level(one: tuple[int, tuple[int, ...]], other: tuple[int, tuple[int, ...]]) -> str:
    if one[0] != other[0]:
        return "SYS"
    shared = 0
    for here, there in zip(one[1], other[1], strict=False):
        if here != there:
            break
        shared += 1
    if not shared:
        return "PHB"
    return "PIX" if shared == len(one[1]) == len(other[1]) else "PXB"
