"""A model handed to python-mip's solvers as arrays, at once, instead of term by term."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .formulation import Floats, Ints, Matrix

#: Where python-mip has a solver's functions: the module, and the library in it.
_MODULES = {"cbc": ("mip.cbc", "cbclib"), "highs": ("mip.highs", "highslib")}
#: CBC's function that takes all at once, column by column, which python-mip does not declare.
_LOAD_PROBLEM = """
    void Cbc_loadProblem(Cbc_Model *model, const int numcols, const int numrows, const int *start, const int *index,
        const double *value, const double *collb, const double *colub, const double *obj,
        const double *rowlb, const double *rowub);
"""


def hand_over(model: Any, solver: str, matrix: Matrix) -> None:
    """Fill a model of python-mip's that is empty. It then has no `vars` and `constrs`: see `solution`."""
    _HAND_OVER[solver](model.solver, matrix)


def solution(model: Any, solver: str) -> tuple[float, ...]:
    """The best solution found, by column."""
    if solver == "highs":
        return tuple(model.solver._x)
    ffi, library = _library(solver)
    return tuple(ffi.unpack(library.Cbc_getColSolution(model.solver._model), model.solver.num_cols()))


def set_start(model: Any, solver: str, columns: Ints, values: Floats) -> None:
    """Have the search begin with a solution in which these columns have these values."""
    ffi, library = _library(solver)
    handle = model.solver._model
    if solver == "cbc":
        library.Cbc_setMIPStartI(handle, len(columns), _ints(ffi, columns), _doubles(ffi, values))
        return
    solution = np.zeros(model.solver.num_cols())
    solution[columns] = values
    library.Highs_setSolution(handle, _doubles(ffi, solution), ffi.NULL, ffi.NULL, ffi.NULL)


def _to_cbc(solver: Any, matrix: Matrix) -> None:
    ffi, library = _library("cbc")
    by_column = np.argsort(matrix.columns, kind="stable")
    lengths = np.bincount(matrix.columns, minlength=len(matrix.cost))
    row = np.repeat(np.arange(len(matrix.row_lower)), np.diff(matrix.starts))
    library.Cbc_loadProblem(
        solver._model,
        len(matrix.cost),
        len(matrix.row_lower),
        _ints(ffi, np.concatenate(([0], np.cumsum(lengths)))),
        _ints(ffi, row[by_column]),
        _doubles(ffi, matrix.coefficients[by_column]),
        *(_doubles(ffi, figures) for figures in (matrix.lower, matrix.upper, matrix.cost)),
        *(_doubles(ffi, np.nan_to_num(bounds)) for bounds in (matrix.row_lower, matrix.row_upper)),  # ∞: the largest
    )
    for column in np.flatnonzero(matrix.integer).tolist():
        library.Cbc_setInteger(solver._model, column)


def _to_highs(solver: Any, matrix: Matrix) -> None:
    ffi, library = _library("highs")
    count, rows = len(matrix.cost), len(matrix.row_lower)
    cost, lower, upper = (_doubles(ffi, figures) for figures in (matrix.cost, matrix.lower, matrix.upper))
    least, most = _doubles(ffi, matrix.row_lower), _doubles(ffi, matrix.row_upper)
    starts, columns = _ints(ffi, matrix.starts), _ints(ffi, matrix.columns)
    coefficients = _doubles(ffi, matrix.coefficients)
    library.Highs_addCols(solver._model, count, cost, lower, upper, 0, ffi.NULL, ffi.NULL, ffi.NULL)
    library.Highs_changeColsIntegralityByRange(solver._model, 0, count - 1, _ints(ffi, matrix.integer))
    library.Highs_addRows(solver._model, rows, least, most, len(matrix.columns), starts, columns, coefficients)
    solver._col_committed, solver._row_committed = count, rows
    solver._num_int_vars = int(matrix.integer.sum())


_HAND_OVER = {"cbc": _to_cbc, "highs": _to_highs}


@cache
def _library(solver: str) -> tuple[Any, Any]:
    """cffi's way into the solver's library, and the library."""
    module, name = _MODULES[solver]
    found = importlib.import_module(module)
    if solver == "cbc":
        found.ffi.cdef(_LOAD_PROBLEM)
    return found.ffi, getattr(found, name)


def _ints(ffi: Any, figures: NDArray[Any]) -> Any:
    return ffi.from_buffer("int[]", np.ascontiguousarray(figures, np.int32)) if len(figures) else ffi.new("int[]", 1)


def _doubles(ffi: Any, figures: Floats) -> Any:
    return ffi.from_buffer("double[]", np.ascontiguousarray(figures, float)) if len(figures) else ffi.new("double[]", 1)
