"""Models as arrays: against every assignment of their variables, and against python-mip's own expressions."""

from __future__ import annotations

import importlib.util
from itertools import product

import numpy as np
import pytest
from mip import BINARY, xsum

from teccl_msccl.synthesis.formulation import Block, Formulation, numbered, runs
from teccl_msccl.synthesis.handover import hand_over, set_start
from teccl_msccl.synthesis.solver import new_model, solve

SOLVERS = ["cbc", *(["highs"] if importlib.util.find_spec("highsbox") else [])]


def random_cover(seed: int) -> tuple[Formulation, np.ndarray, np.ndarray]:
    """Some of a few variables have to be chosen for every row: costs, and who counts in which row."""
    rng = np.random.default_rng(seed)
    members = rng.random((5, 7)) < 0.5
    cost = rng.integers(1, 9, 7).astype(float)
    model = Formulation()
    some = model.variables_where(np.array([True] * 6 + [False]), np.ones(7), integer=True, cost=cost[:6])
    row, column = np.nonzero(members)
    model.add(some[column].sum(row, 5) >= np.minimum(2, members.sum(axis=1)))
    model.add(some[:3] <= some[3:6])
    return model, members, cost


def cheapest(members: np.ndarray, cost: np.ndarray) -> float:
    """By trying all; the last is chosen for nothing."""
    best = np.inf
    for chosen in (np.array([*some, 1]) for some in product((0, 1), repeat=6)):
        if (members @ chosen >= np.minimum(2, members.sum(axis=1))).all() and (chosen[:3] <= chosen[3:6]).all():
            best = min(best, float(cost[:6] @ chosen[:6]))
    return best


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_is_the_cheapest_of_all_assignments(solver, seed):
    formulation, members, cost = random_cover(seed)
    model = new_model(solver)
    hand_over(model, solver, formulation.matrix())
    set_start(model, solver, np.arange(6), np.ones(6))
    outcome = solve(model, solver, seconds=5, threads=1)
    assert outcome.status == "optimal"
    assert outcome.objective == pytest.approx(cheapest(members, cost))
    assert outcome.objective == pytest.approx(cost[:6] @ np.array(outcome.values))


@pytest.mark.parametrize("seed", range(4))
def test_the_matrix_is_what_pythons_expressions_come_to(seed):
    formulation, members, cost = random_cover(seed)
    matrix = formulation.matrix()
    model = new_model("cbc")
    some = [*(model.add_var(var_type=BINARY, obj=each) for each in cost[:6]), 1]
    for row in members:
        model += xsum(some[i] for i in np.flatnonzero(row)) >= min(2, row.sum())
    for one, other in zip(some[:3], some[3:6], strict=True):
        model += one <= other
    rows = []
    for constraint in model.constrs:
        sign = -1 if constraint.expr.sense == "<" else 1
        terms = sorted((variable.idx, sign * c) for variable, c in constraint.expr.expr.items())
        rows.append((terms, sign * constraint.rhs))
    ours = []
    for i, (begin, end) in enumerate(zip(matrix.starts[:-1], matrix.starts[1:], strict=True)):
        sign, bound = (1, matrix.row_lower[i]) if np.isinf(matrix.row_upper[i]) else (-1, -matrix.row_upper[i])
        terms = zip(matrix.columns[begin:end].tolist(), sign * matrix.coefficients[begin:end], strict=True)
        ours.append((sorted(terms), bound))
    needed = [(terms, bound) for terms, bound in rows if sum(min(0, c) for _, c in terms) < bound]
    assert ours == needed


def test_rows_that_hold_anyway_are_left_out_and_none_that_cannot_hold():
    model = Formulation()
    three = model.variables(3, lower=np.array([1.0, 0.0, 0.0]))
    fixed = Block(np.array([-1, -1]), np.array([0.0, 1.0]))
    model.add(three <= 1.0)
    model.add(three[1:] <= three[:2])  # the first is at most one that is one
    model.add(fixed >= 1.0)
    matrix = model.matrix()
    assert matrix.starts.tolist() == [0, 2, 2]
    assert (matrix.columns.tolist(), matrix.coefficients.tolist()) == ([2, 1], [1.0, -1.0])
    assert matrix.row_lower.tolist() == [-np.inf, 1.0]
    for solver in SOLVERS:
        broken = new_model(solver)
        hand_over(broken, solver, matrix)
        assert solve(broken, solver, seconds=5, threads=1).status == "infeasible"


def test_runs_and_numbers():
    owner, place = runs(np.array([2, 0, 3]))
    assert (owner.tolist(), place.tolist()) == ([0, 0, 2, 2, 2], [0, 1, 0, 1, 2])
    number, first = numbered(np.array([7, 5, 7, 9, 5]))
    assert (number.tolist(), first.tolist()) == ([0, 1, 0, 2, 1], [0, 1, 3])
