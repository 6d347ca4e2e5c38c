"""A thin layer on python-mip: which solver, how long, and what came of it in our words."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import inf
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import mip

from ..errors import InputError, unknown
from .handover import solution

# What python-mip logs of a library that it cannot load is said by our error, in one line.
logging.getLogger("mip").addHandler(logging.NullHandler())

SOLVERS = {"cbc": mip.CBC, "highs": mip.HIGHS}
#: Seconds, and the share of its time, that a solver may take beyond what it was given before it is ended.
GRACE_S = 1.0
GRACE_SHARE = 0.05
#: What ends python-mip's models: its module, the library there, and the library's functions.
_ENDS = {
    "cbc": ("mip.cbc", "cbclib", ("Cbc_deleteModel", "Osi_deleteSolver")),
    "highs": ("mip.highs", "highslib", ("Highs_destroy",)),
}


@dataclass(frozen=True)
class Outcome:
    """How a solve ended. `status` is optimal, feasible, infeasible or none (nothing found in time, or the solver
    failed); objective and dual bound are None where the solver has none. `values`: the best solution, by column."""

    solver: str
    status: str
    columns: int
    rows: int
    objective: float | None
    dual_bound: float | None
    values: tuple[float, ...] = field(default=(), repr=False)

    def chosen(self, variable: Any) -> bool:
        """Whether the solution has the binary variable at one."""
        return bool(self.values) and self.values[variable.idx] > 0.5


def new_model(solver: str) -> Any:
    """An empty minimisation model. Raises `InputError` for a solver that is unknown or not installed."""
    if solver not in SOLVERS:
        raise unknown("solver", solver, SOLVERS)
    try:
        _know_the_end(solver)
        model = mip.Model(sense=mip.MINIMIZE, solver_name=SOLVERS[solver])
    except (mip.exceptions.MipBaseException, OSError, ImportError, NameError) as error:
        reason = " ".join(str(error).split()).split(". ")[0]
        raise InputError(f"solver {solver} cannot be used ({reason}); install highsbox or use --solver cbc") from None
    model.verbose = 0
    return model


@cache
def _know_the_end(solver: str) -> None:
    """Look up what ends a model before there is any. Models end when garbage is collected, maybe while cffi looks
    up another function: a first look-up then would wait for ever for the lock that this one holds."""
    module, library, names = _ENDS[solver]
    found = getattr(importlib.import_module(module), library, None)
    for name in names:
        getattr(found, name, None)


def solve(model: Any, solver: str, *, seconds: float, threads: int, seed: int = 0) -> Outcome:
    """Optimize for at most `seconds` and say how it ended, with the best solution found.

    The solver runs in a process of its own: if it crashes (CBC has been seen to corrupt its heap) or does not keep its
    time, that costs its answer and no more, and Ctrl-C need not wait for it.
    """
    model.threads = 1 if solver == "cbc" else threads  # CBC's parallel search has been seen to hang past its limit
    model.seed = seed % 2**31
    nothing = Outcome(solver, "none", model.solver.num_cols(), model.solver.num_rows(), None, None)
    if "fork" not in multiprocessing.get_all_start_methods():
        return _optimized(model, solver, seconds)
    _prepare(solver)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_answer, args=(theirs, model, solver, seconds), daemon=True
    )
    with _ended(process):
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: the child runs none of their code
            process.start()
        theirs.close()
        with ours:
            try:
                in_time = ours.poll(seconds * (1 + GRACE_SHARE) + GRACE_S)
                return ours.recv() if in_time else nothing
            except EOFError:  # it died
                return nothing


@contextmanager
def _ended(process: BaseProcess) -> Iterator[None]:
    """Leave nothing running, whatever happens."""
    try:
        yield
    finally:
        if process.pid is not None:
            process.kill()
            process.join()


@cache
def _prepare(solver: str) -> None:
    """What python-mip works out when it first calls CBC, once for all processes."""
    if solver == "cbc":
        model = new_model(solver)
        model.add_var()  # of a model without columns CBC is not asked
        solve_linear(model)


def _answer(answer: Connection, model: Any, solver: str, seconds: float) -> None:
    """In the solver's own process: Ctrl-C is its parent's, and what it says when it dies nobody's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # what the parent no longer needs is not ours to tidy up
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    answer.send(_optimized(model, solver, seconds))


def _optimized(model: Any, solver: str, seconds: float) -> Outcome:
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
        columns=model.solver.num_cols(),
        rows=model.solver.num_rows(),
        objective=float(model.objective_value) if found else None,
        dual_bound=float(model.objective_bound) if word in ("optimal", "feasible") else None,
        values=solution(model, solver) if found else (),
    )


def solve_linear(model: Any, seconds: float = inf) -> bool:
    """Solve a linear program (dual simplex) for at most `seconds`; whether its optimum was found, which is then
    readable in the model."""
    if seconds <= 0:
        return False
    model.lp_method = mip.LP_Method.DUAL
    with _silence():
        status = model.optimize(max_seconds=seconds, relax=True)
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
