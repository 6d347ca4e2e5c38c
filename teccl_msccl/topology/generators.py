"""Generated topologies: ring, line, full, star, mesh, torus and hypercube, of any size."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from itertools import combinations, product

from ..errors import InputError
from .builder import Builder
from .model import Topology

GBPS = 50.0  # per direction
ALPHA_US = 0.5
STAR_ALPHA_US = 0.25  # per hop, so that crossing the switch costs what a direct link does

MOST_GPUS = 4096
MOST_LINKS = 100_000

#: How each generator's name is written.
SPELLINGS = ("ring-N", "line-N", "full-N", "star-N", "mesh-AxB", "torus-AxB[xC]", "hypercube-N")

_NAME = re.compile(r"(ring|line|full|star|hypercube)-(\d{1,9})|(mesh|torus)-(\d{1,9}(?:x\d{1,9}){1,2})")

Wires = Iterator[tuple[int, int]]


def generate(name: str) -> Topology | None:
    """The topology that `name` ("ring-8", "torus-4x4x2") spells, or None where it spells none.

    50 GB/s per direction and 0.5 µs per link (star: 0.25 µs per hop). Ranks run through a grid's last axis fastest.
    O(nodes + links). Raises `InputError` for a size that is too small, too large or no power of two.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    shape, size, grid, extents = match.groups()
    if grid:
        return _grid(name, grid, tuple(int(extent) for extent in extents.split("x")))
    n = int(size)
    _check_size(name, n)
    if shape == "hypercube":
        return _grid(name, "hypercube", (2,) * _dimensions(name, n))
    if shape == "star":
        return _star(name, n)
    return _direct(name, [str(i) for i in range(n)], _SHAPES[shape](n), f"{shape} of {n}")


def _line(n: int) -> Wires:
    return ((i, i + 1) for i in range(n - 1))


def _ring(n: int) -> Wires:
    yield from _line(n)
    if n > 2:  # two GPUs have one wire between them, not two
        yield n - 1, 0


def _full(n: int) -> Wires:
    return combinations(range(n), 2)


_SHAPES: dict[str, Callable[[int], Wires]] = {"line": _line, "ring": _ring, "full": _full}


def _grid(name: str, shape: str, extents: tuple[int, ...]) -> Topology:
    if min(extents) < 1:
        raise InputError(f"{name}: every extent must be at least 1; for example {shape}-4x4")
    _check_size(name, math.prod(extents))
    along = _line if shape == "mesh" else _ring
    strides = [math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
    wires = (
        (first + a * stride, first + b * stride)
        for extent, stride in zip(extents, strides, strict=True)
        for first in range(math.prod(extents))
        if first // stride % extent == 0
        for a, b in along(extent)
    )
    labels = [str(place) for place in product(*map(range, extents))]
    return _direct(name, labels, wires, f"{shape} {'×'.join(map(str, extents))}")


def _direct(name: str, labels: list[str], wires: Wires, what: str) -> Topology:
    builder = Builder()
    for label in labels:
        builder.gpu(label)
    for one, other in wires:
        builder.wire(one, other, GBPS, ALPHA_US)
        if len(builder.links) > MOST_LINKS:
            raise InputError(f"{name}: more than {MOST_LINKS} links; choose a smaller one")
    return builder.topology(name, f"generated: {what}, {GBPS:g} GB/s per direction, α {ALPHA_US:g} µs")


def _star(name: str, n: int) -> Topology:
    builder = Builder()
    gpus = [builder.gpu(str(i)) for i in range(n)]
    switch = builder.node("switch", "switch")
    for gpu in gpus:
        builder.wire(gpu, switch, GBPS, STAR_ALPHA_US)
    return builder.topology(name, f"generated: {n} GPUs on one switch, {GBPS:g} GB/s, α {STAR_ALPHA_US:g} µs per hop")


def _dimensions(name: str, n: int) -> int:
    if n & (n - 1):
        raise InputError(f"{name}: a hypercube's number of GPUs is a power of two; for example hypercube-8")
    return n.bit_length() - 1


def _check_size(name: str, n: int) -> None:
    if n < 2:
        raise InputError(f"{name}: {n} GPU{'s' * (n != 1)}; a collective needs at least 2")
    if n > MOST_GPUS:
        raise InputError(f"{name}: {n} GPUs; at most {MOST_GPUS} can be generated")
