"""What every rank should end up with, computed from the ranks' inputs alone — never from the program.

Element `index` of rank `rank`'s input is a hash of both, so data in a wrong place or from a wrong rank shows. Floats
that are to be reduced are chosen so that every order of combining them is exact, so results are compared for equality.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..collective.demand import REDUCING
from .buffers import Layout
from .elements import REDUCTIONS, Array, Dtype, averaged, from_bfloat16

#: Inputs repeat after this many elements: a prime, so that no chunk size is a multiple of it.
PERIOD = 131_071


@dataclass(frozen=True)
class Mismatch:
    """The first wrong element of a rank: its index in the output (or, `where` "input (changed)", in the input that
    should not have changed), what was expected and what is there."""

    rank: int
    where: str
    index: int
    expected: int | float
    got: int | float

    def __str__(self) -> str:
        return f"rank {self.rank} {self.where}[{self.index}]: expected {self.expected}, got {self.got}"

    def to_json(self) -> dict[str, Any]:
        """Values that JSON has no number for (infinities, NaN) are strings."""
        values = {key: v if math.isfinite(v) else str(v) for key, v in (("expected", self.expected), ("got", self.got))}
        return {"rank": self.rank, "where": self.where, "index": self.index, **values}


class Reference:
    """Inputs and expected outputs of a collective on `chunk_elements` elements a chunk.

    Arrays are of the dtype's `storage`. `reduction` is ignored by collectives that only copy.
    """

    def __init__(self, layout: Layout, chunk_elements: int, dtype: Dtype, reduction: str, root: int | None) -> None:
        self.layout, self.dtype, self.reduction, self.root = layout, dtype, reduction, root
        self.inputs = layout.input_chunks * chunk_elements
        self.outputs = layout.output_chunks * chunk_elements
        self._reduced: Array | None = None

    def input(self, rank: int) -> Array:
        """What `rank` puts in: shape (inputs,)."""
        return self._stretch(self._period(rank), 0, self.inputs)

    def output(self, rank: int) -> Array | None:
        """What `rank` should get: shape (outputs,), or None where its output is undefined."""
        share, nranks = self.outputs, self.layout.nranks
        match self.layout.collective:
            case "allgather":
                return self._gathered(range(nranks), 0, self.inputs)
            case "gather":
                return self._gathered(range(nranks), 0, self.inputs) if rank == self.root else None
            case "alltoall":
                piece = self.inputs // nranks
                return self._gathered(range(nranks), rank * piece, piece)
            case "broadcast":
                return self._gathered([self.root or 0], 0, share)
            case "scatter":
                return self._gathered([self.root or 0], rank * share, share)
            case "reduce_scatter":
                return self._stretch(self._combined(), rank * share, share)
            case "allreduce":
                return self._stretch(self._combined(), 0, share)
            case "reduce":
                return self._stretch(self._combined(), 0, share) if rank == self.root else None
        raise ValueError(f"no reference for {self.layout.collective}")

    # -- periods ------------------------------------------------------------------------------------------------

    def _stretch(self, period: Array, start: int, count: int) -> Array:
        """`count` elements of the endless repetition of `period`, from `start`."""
        return np.resize(np.roll(period, -(start % len(period))), count)

    def _gathered(self, ranks: range | list[int], start: int, count: int) -> Array:
        return np.concatenate([self._stretch(self._period(rank), start, count) for rank in ranks])

    def _period(self, rank: int) -> Array:
        return contribution(rank, self.layout.nranks, min(PERIOD, max(self.inputs, 1)), self.dtype, self._kind())

    def _kind(self) -> str:
        return self.reduction if self.layout.collective in REDUCING else "copy"

    def _combined(self) -> Array:
        """One period of the reduction of every rank's input."""
        if self._reduced is None:
            combine = REDUCTIONS[self.reduction]
            total: Array = self._wide(self._period(0))
            for rank in range(1, self.layout.nranks):
                total = combine(total, self._wide(self._period(rank)))
            if self.reduction == "avg":
                total = averaged(total, self.layout.nranks)
            self._reduced = self.dtype.from_float64(total) if self.dtype.floating else total
        return self._reduced

    def _wide(self, values: Array) -> Array:
        """Floats as float64, in which every sum and product of contributions is exact."""
        if self.dtype.name == "bfloat16":
            return from_bfloat16(values).astype(np.float64)
        return values.astype(np.float64) if self.dtype.floating else values


def contribution(rank: int, nranks: int, count: int, dtype: Dtype, kind: str) -> Array:
    """The first `count` elements of `rank`'s input for `kind` (a reduction's name, or "copy").

    Copies and integers: any bits (odd for prod, so that no factor is lost as 0). Floats: sum, nonzero integers
    small enough that all ranks' magnitudes add up to no more than the type holds exactly; prod, ±1, ±2 and ±½ with
    few enough powers of two that no order of multiplying overflows; max and min, nonzero integers; avg as sum.
    """
    index = np.arange(count, dtype=np.uint64)
    hashed = _hash(index + np.uint64((rank + 1) * 0x9E3779B97F4A7C15 % 2**64))
    if kind == "copy" or not dtype.floating:
        values: Array = (hashed >> np.uint64(64 - 8 * dtype.bytes)).astype(dtype.bits).view(dtype.storage)
        return values | dtype.storage.type(1) if kind == "prod" else values
    sign = np.where(hashed & np.uint64(1), 1.0, -1.0)
    draw = hashed >> np.uint64(11)
    if kind == "prod":
        takes_turn = (index + np.uint64(rank)) % np.uint64(-(-nranks // dtype.exponent)) == 0
        power = np.where(takes_turn, (draw % np.uint64(3)).astype(np.float64) - 1, 0.0)
        return dtype.from_float64(sign * np.exp2(power))
    limit = min(dtype.exact, 2**53)
    if kind in ("max", "min"):
        return dtype.from_float64(sign * (draw % np.uint64(limit) + np.uint64(1)).astype(np.float64))
    magnitude = (draw % np.uint64(max(1, limit // nranks)) + np.uint64(1)).astype(np.float64)
    takes_turn = (index + np.uint64(rank)) % np.uint64(-(-nranks // limit)) == 0
    return dtype.from_float64(np.where(takes_turn, sign * magnitude, 0.0))


def first_mismatch(rank: int, where: str, expected: Array, got: Array, dtype: Dtype) -> tuple[int, Mismatch | None]:
    """How many elements of `got` differ from `expected` in any bit, and the first of them."""
    wrong = np.flatnonzero(expected.view(dtype.bits) != got.view(dtype.bits))
    if not len(wrong):
        return 0, None
    index = int(wrong[0])
    return len(wrong), Mismatch(rank, where, index, dtype.to_python(expected[index]), dtype.to_python(got[index]))


def _hash(values: Array) -> Array:
    """A bijection of 64-bit integers whose every output bit depends on every input bit (splitmix64's finalizer)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Array = values ^ (values >> np.uint64(31))
    return result
