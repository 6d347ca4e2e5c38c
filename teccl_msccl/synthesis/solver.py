"""A thin layer on python-mip: which solver, how long, and what came of it in our words."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mip

from ..errors import InputError

# What python-mip logs of a library that it cannot load is said by our error, in one line.
logging.getLogger("mip").addHandler(logging.NullHandler())

SOLVERS = {"cbc": mip.CBC, "highs": mip.HIGHS}


@dataclass(frozen=True)
class Outcome:
    """How a solve ended. `status` is optimal, feasible, infeasible or none (nothing found in time); objective and
    dual bound are None where the solver has none."""

    solver: str
    status: str
    columns: int
    rows: int
    objective: float | None
    dual_bound: float | None


def new_model(solver: str) -> Any:
    """An empty minimisation model. Raises `InputError` for a solver that is unknown or not installed."""
    if solver not in SOLVERS:
        raise InputError(f"unknown solver {solver!r}; use {', '.join(SOLVERS)}")
    try:
        model = mip.Model(sense=mip.MINIMIZE, solver_name=SOLVERS[solver])
    except (mip.exceptions.MipBaseException, OSError, ImportError, NameError) as error:
        reason = " ".join(str(error).split()).split(". ")[0]
        raise InputError(f"solver {solver} cannot be used ({reason}); install highsbox or use --solver cbc") from None
    model.verbose = 0
    return model


def solve(model: Any, solver: str, *, seconds: float, threads: int, seed: int = 0) -> Outcome:
    """Optimize for at most `seconds` and say how it ended; the best solution found stays readable in the model."""
    model.threads = 1 if solver == "cbc" else threads  # CBC's parallel search has been seen to hang past its limit
    model.seed = seed % 2**31
    with _silence():
        status = model.optimize(max_seconds=max(0.1, seconds))
    words = {
        mip.OptimizationStatus.OPTIMAL: "optimal",
        mip.OptimizationStatus.FEASIBLE: "feasible",
        mip.OptimizationStatus.INFEASIBLE: "infeasible",
        mip.OptimizationStatus.INT_INFEASIBLE: "infeasible",
    }
    found = model.num_solutions > 0
    word = words.get(status, "feasible" if found else "none")
    return Outcome(
        solver=solver,
        status=word,
        columns=model.num_cols,
        rows=model.num_rows,
        objective=float(model.objective_value) if found else None,
        dual_bound=float(model.objective_bound) if word in ("optimal", "feasible") else None,
    )


def solve_linear(model: Any) -> bool:
    """Solve a linear program (dual simplex); whether it has an optimum, which is then readable in the model."""
    model.lp_method = mip.LP_Method.DUAL
    with _silence():
        status = model.optimize(relax=True)
    return bool(status == mip.OptimizationStatus.OPTIMAL)


@contextmanager
def _silence() -> Iterator[None]:
    """Send what the solvers print from C, verbose or not, to nowhere: stdout is for answers."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
