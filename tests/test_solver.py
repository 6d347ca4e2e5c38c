"""The solver in a process of its own: a crash, a hang and Ctrl-C cost its answer and no more."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from mip import BINARY, xsum

from teccl_msccl.synthesis import solver
from teccl_msccl.synthesis.solver import new_model, solve


def knapsack(n: int = 12):
    model = new_model("cbc")
    take = [model.add_var(var_type=BINARY) for _ in range(n)]
    model += xsum((3 + i % 5) * x for i, x in enumerate(take)) <= 2 * n
    model.objective = -xsum((2 + i % 7) * x for i, x in enumerate(take))
    return model, take


def best(n: int = 12) -> int:
    """By trying all."""
    weight, value = [3 + i % 5 for i in range(n)], [2 + i % 7 for i in range(n)]
    chosen = ([i for i in range(n) if bits >> i & 1] for bits in range(1 << n))
    return max(sum(value[i] for i in some) for some in chosen if sum(weight[i] for i in some) <= 2 * n)


def test_the_answer_comes_back():
    model, take = knapsack()
    outcome = solve(model, "cbc", seconds=5, threads=1)
    assert (outcome.status, outcome.columns, outcome.rows) == ("optimal", 12, 1)
    assert outcome.objective == pytest.approx(-best())
    assert sum(2 + i % 7 for i, x in enumerate(take) if outcome.chosen(x)) == best()
    again = solve(knapsack()[0], "cbc", seconds=5, threads=1)
    assert again == outcome


def test_a_solver_that_crashes_has_no_answer(monkeypatch):
    monkeypatch.setattr(solver, "_optimized", lambda *_: os.abort())
    model, take = knapsack()
    outcome = solve(model, "cbc", seconds=5, threads=1)
    assert (outcome.status, outcome.objective, outcome.dual_bound) == ("none", None, None)
    assert not any(map(outcome.chosen, take))


def test_a_solver_that_goes_on_is_ended(monkeypatch):
    monkeypatch.setattr(solver, "GRACE_S", 0.1)
    monkeypatch.setattr(solver, "_optimized", lambda *_: time.sleep(60))
    began = time.monotonic()
    assert solve(knapsack()[0], "cbc", seconds=0.2, threads=1).status == "none"
    assert time.monotonic() - began < 30


def test_an_interruption_does_not_wait_for_the_solver(monkeypatch):
    monkeypatch.setattr(solver, "_optimized", lambda *_: time.sleep(60))
    solver._prepare("cbc")
    began = time.monotonic()
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        solve(knapsack()[0], "cbc", seconds=50, threads=1)
    assert time.monotonic() - began < 30


def test_what_an_old_model_leaves_behind_is_no_obstacle():
    """Models are in cycles: their memory is freed at any allocation, even in the middle of the next one's solve."""
    before = gc.get_threshold()
    gc.set_threshold(20)
    try:
        for _ in range(10):
            assert solve(knapsack(6)[0], "cbc", seconds=5, threads=1).objective == pytest.approx(-best(6))
    finally:
        gc.set_threshold(*before)


def test_an_old_model_may_end_while_the_next_is_begun():
    """cffi looks every function up under a lock that is not reentrant; models end where garbage is collected."""
    script = """
import gc
import mip.cbc
from teccl_msccl.synthesis.solver import new_model
gc.disable()
new_model("cbc").add_var()
looked_up = mip.cbc.ffi._get_cached_btype
mip.cbc.ffi._get_cached_btype = lambda kind: (gc.collect(), looked_up(kind))[1]
mip.cbc.cbclib.Cbc_getNumCols
print(gc.collect())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "0"  # it had ended
