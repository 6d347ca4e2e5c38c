"""A mixed-integer program as arrays: blocks of variables, and blocks of rows that read like the formulas they state."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Linear:
    """Linear expressions side by side, each `constant[i]` + Σ coefficient · column over the terms with row i."""

    constant: Floats
    row: Ints
    column: Ints
    coefficient: Floats

    def __add__(self, other: Linear | Block | Floats | float) -> Linear:
        if not isinstance(other, (Linear, Block)):
            return Linear(self.constant + other, self.row, self.column, self.coefficient)
        more = other.linear if isinstance(other, Block) else other
        return Linear(
            self.constant + more.constant,
            np.concatenate((self.row, more.row)),
            np.concatenate((self.column, more.column)),
            np.concatenate((self.coefficient, more.coefficient)),
        )

    def __neg__(self) -> Linear:
        return Linear(-self.constant, self.row, self.column, -self.coefficient)

    def __sub__(self, other: Linear | Block | Floats | float) -> Linear:
        return self + -(other.linear if isinstance(other, Block) else other)

    def __le__(self, other: Linear | Block | Floats | float) -> Rows:
        return Rows(self - other, -inf, 0.0)

    def __ge__(self, other: Linear | Block | Floats | float) -> Rows:
        return Rows(self - other, 0.0, inf)

    def equals(self, other: Linear | Block | Floats | float) -> Rows:
        """`==`, which must be a bool."""
        return Rows(self - other, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Block:
    """Variables side by side by their columns; one that is fixed has the column −1, and its `value`."""

    column: Ints
    value: Floats

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, index: Any) -> Block:
        return Block(self.column[index], self.value[index])

    def ravel(self) -> Block:
        """In one row."""
        return Block(self.column.ravel(), self.value.ravel())

    def then(self, other: Block) -> Block:
        """Both, one after the other."""
        return Block(np.concatenate((self.column, other.column)), np.concatenate((self.value, other.value)))

    @property
    def free(self) -> NDArray[np.bool_]:
        """Which of them are not fixed."""
        return self.column >= 0

    @property
    def linear(self) -> Linear:
        """Each of them an expression."""
        return self.sum(np.arange(len(self)), len(self))

    def sum(self, into: Ints, count: int) -> Linear:
        """`count` sums: variable i is added to the sum `into[i]`."""
        fixed = np.bincount(into, np.where(self.free, 0.0, self.value), count).astype(float)
        row = into[self.free]
        return Linear(fixed, row, self.column[self.free], np.ones(len(row)))

    def __add__(self, other: Linear | Block | Floats | float) -> Linear:
        return self.linear + other

    def __sub__(self, other: Linear | Block | Floats | float) -> Linear:
        return self.linear - other

    def __rsub__(self, other: Floats | float) -> Linear:
        return -self.linear + other

    def __le__(self, other: Linear | Block | Floats | float) -> Rows:
        return self.linear <= other

    def __ge__(self, other: Linear | Block | Floats | float) -> Rows:
        return self.linear >= other

    def equals(self, other: Linear | Block | Floats | float) -> Rows:
        """`==`, which must be a bool."""
        return self.linear.equals(other)


@dataclass(frozen=True, eq=False)
class Rows:
    """`least` ≤ each of the expressions ≤ `most`."""

    linear: Linear
    least: float
    most: float


@dataclass(frozen=True, eq=False)
class Matrix:
    """A minimisation as solvers take it: bounds, costs and kinds of the columns, bounds of the rows, and the rows one
    after the other, row i the entries `starts[i]` to `starts[i + 1]`."""

    lower: Floats
    upper: Floats
    cost: Floats
    integer: NDArray[np.bool_]
    row_lower: Floats
    row_upper: Floats
    starts: Ints
    columns: Ints
    coefficients: Floats


class Formulation:
    """A minimisation over variables from 0 to 1, put together block by block."""

    def __init__(self) -> None:
        self._lower: list[Floats] = []
        self._cost: list[Floats] = []
        self._integer: list[NDArray[np.bool_]] = []
        self._rows: list[Rows] = []
        self._count = 0

    def variables(
        self, count: int, *, integer: bool = False, cost: Floats | float = 0.0, lower: Floats | float = 0.0
    ) -> Block:
        """`count` new variables, each with what one of it costs."""
        block = Block(np.arange(self._count, self._count + count), np.zeros(count))
        self._count += count
        self._lower.append(np.broadcast_to(np.asarray(lower, float), (count,)))
        self._cost.append(np.broadcast_to(np.asarray(cost, float), (count,)))
        self._integer.append(np.full(count, integer))
        return block

    def variables_where(self, free: NDArray[np.bool_], value: Floats, **kind: Any) -> Block:
        """A block with new variables where `free`, and fixed at `value` elsewhere."""
        column = np.full(len(free), -1)
        column[free] = self.variables(int(free.sum()), **kind).column
        return Block(column, value)

    def add(self, rows: Rows) -> None:
        """Demand that the rows hold. Those that hold whatever the variables are, are left out."""
        self._rows.append(rows)

    def matrix(self) -> Matrix:
        """What it all comes to, columns and rows in the order in which they were added."""
        lower = _joined(self._lower)
        blocks = [self._needed(rows, lower) for rows in self._rows]
        starts = np.zeros(1 + sum(len(counts) for counts, *_ in blocks), np.int64)
        np.cumsum(_joined([counts for counts, *_ in blocks]), out=starts[1:])
        return Matrix(
            lower,
            np.ones(self._count),
            _joined(self._cost),
            _joined(self._integer).astype(bool),
            _joined([least for _, least, *_ in blocks]),
            _joined([most for _, _, most, *_ in blocks]),
            starts,
            _joined([columns for *_, columns, _ in blocks]).astype(np.int64),
            _joined([coefficients for *_, coefficients in blocks]),
        )

    def _needed(self, rows: Rows, lower: Floats) -> tuple[Ints, Floats, Floats, Ints, Floats]:
        """Of the rows that some values of the variables break: lengths, bounds, and columns and coefficients by row."""
        line, count = rows.linear, len(rows.linear.constant)
        positive = line.coefficient > 0
        at_most = np.bincount(
            line.row, np.where(positive, line.coefficient, line.coefficient * lower[line.column]), count
        )
        at_least = np.bincount(
            line.row, np.where(positive, line.coefficient * lower[line.column], line.coefficient), count
        )
        least, most = rows.least - line.constant, rows.most - line.constant
        lengths = np.bincount(line.row, minlength=count)
        needed = (at_least < least) | (at_most > most)
        order = np.argsort(line.row, kind="stable")
        order = order[needed[line.row[order]]]
        return lengths[needed], least[needed], most[needed], line.column[order], line.coefficient[order]


def _joined(parts: list[Any]) -> Any:
    return np.concatenate(parts) if parts else np.zeros(0)


def runs(counts: Ints) -> tuple[Ints, Ints]:
    """Of `counts[i]` places for every i, one after the other: whose a place is, and its number among those."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


def numbered(keys: Ints) -> tuple[Ints, Ints]:
    """The number of every key among the different ones, in the order in which they first appear, and where they do."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[inverse], first[order]
