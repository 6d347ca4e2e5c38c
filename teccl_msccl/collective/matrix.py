"""Alltoallv: a demand from a matrix of bytes, row = sender, as a mixture of experts has it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from numbers import Real
from pathlib import Path

from ..errors import InputError
from ..files import read_bytes
from .demand import Chunk, Demand
from .size import MOST_BYTES, parse_size

Matrix = Sequence[Sequence[float]]


def read_matrix(path: str | Path) -> list[list[float]]:
    """The matrix in a CSV file: a line a sender, a cell a receiver, each a size ("1MB" or bytes); # begins a comment.

    Raises `InputError` naming the line and the column.
    """
    data = read_bytes(path, "a matrix")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text, so not a matrix; write a CSV of bytes") from None
    rows: list[list[float]] = []
    try:
        for number, cells in enumerate(csv.reader(io.StringIO(text)), start=1):
            line = [cell.strip() for cell in cells]
            if any(line) and not line[0].startswith("#"):
                rows.append([_cell(cell, f"{path}: line {number} column {i}") for i, cell in enumerate(line, start=1)])
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV ({error}); write bytes between commas") from None
    return rows


def _cell(text: str, where: str) -> float:
    try:
        return parse_size(text)
    except InputError:
        raise InputError(f"{where}: {text!r} is no number of bytes; write 0, 4096 or 1MB") from None


def _rows(matrix: Matrix, where: str) -> list[list[float]]:
    try:
        return [list(row) for row in matrix]
    except TypeError:
        raise InputError(f"{where}: a matrix has rows of bytes, one a sender") from None


def alltoallv(matrix: Matrix, nranks: int, size_bytes: float | None = None, where: str = "matrix") -> Demand:
    """The demand of an alltoallv: rank s has `matrix[s][d]` bytes for rank d; a cell of 0 is no chunk.

    Its size is the longest row, a rank's buffer; a `size_bytes` given scales the matrix to that. Raises `InputError`
    for a matrix that is not `nranks` × `nranks` of finite numbers, zero or more.
    """
    if not all(isinstance(nbytes, Real) for row in _rows(matrix, where) for nbytes in row):
        raise InputError(f"{where}: not all cells are numbers; give rows of bytes")
    if len(matrix) != nranks:
        raise InputError(
            f"{where}: {len(matrix)} rows for {nranks} GPUs; give each a row (and 0 where it sends nothing)"
        )
    for s, row in enumerate(matrix):
        if len(row) != nranks:
            raise InputError(f"{where}: row {s} has {len(row)} columns for {nranks} GPUs; give each a column")
        for d, nbytes in enumerate(row):
            if not 0 <= nbytes <= MOST_BYTES:
                raise InputError(
                    f"{where}: row {s} column {d}: {nbytes} bytes; it must be zero or more, at most {MOST_BYTES:g}"
                )
    longest = float(max(map(sum, matrix)))
    if size_bytes is not None and longest == 0 < size_bytes:
        raise InputError(f"{where}: nothing but zeros, which no --size scales to; leave --size out")
    scale = 1.0 if size_bytes is None or longest == 0 else size_bytes / longest
    cells = [(s, d, scale * row[d]) for s, row in enumerate(matrix) for d in range(nranks) if row[d] > 0]
    chunks = tuple(Chunk(id, (s,), (d,), nbytes) for id, (s, d, nbytes) in enumerate(cells))
    return Demand("alltoallv", nranks, chunks, 1, longest * scale)
