"""MSCCL++ plans for tests: their files, what they must do by definition, and plans with one fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import hand_made
import numpy as np
from plan_interpreter import ELEMENTS, Machine

from teccl_msccl.program.check_plan import check_plan
from teccl_msccl.program.mscclpp import execution_plan
from teccl_msccl.program.program import Program

COLLECTIVES = ("allgather", "allreduce", "reduce_scatter", "broadcast", "alltoall", "reduce", "gather", "scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")


def plan_of(program: Program, **options: Any) -> dict[str, Any]:
    """The plan as its file has it."""
    return json.loads(json.dumps(execution_plan(program, **options).value))


def number(launch: int, rank: int, chunk: int) -> np.ndarray:
    return (launch + 1) * 10**6 + rank * 10**4 + chunk * 10 + np.arange(ELEMENTS)


def expected(plan: dict[str, Any], launch: int, rank: int, root: int) -> np.ndarray:
    """By the collective's definition; nccl-tests' layout of the buffers."""
    n, outputs = len(plan["gpus"]), plan["gpus"][rank]["output_chunks"]
    match plan["collective"]:
        case "allgather":
            return np.array([number(launch, k // (outputs // n), k % (outputs // n)) for k in range(outputs)])
        case "allreduce":
            return np.array([sum(number(launch, r, k) for r in range(n)) for k in range(outputs)])
        case "reducescatter":
            return np.array([sum(number(launch, r, rank * outputs + k) for r in range(n)) for k in range(outputs)])
        case "alltoall":
            share = outputs // n
            return np.array([number(launch, k // share, rank * share + k % share) for k in range(outputs)])
        case "broadcast":
            return np.array([number(launch, root, k) for k in range(outputs)])
        case "reduce":
            return np.array([sum(number(launch, r, k) for r in range(n)) for k in range(outputs)])
        case "gather":
            return np.array([number(launch, k // (outputs // n), k % (outputs // n)) for k in range(outputs)])
        case "scatter":
            return np.array([number(launch, root, rank * outputs + k) for k in range(outputs)])
    raise AssertionError


def execute(plan: dict[str, Any], seed: int, root: int = 0, launches: int = 0) -> None:
    """Several launches; more where packets use the halves of scratch in turns."""
    launches = launches or (4 if plan["protocol"] == "LL" else 2)
    chunks = [gpu["input_chunks"] for gpu in plan["gpus"]]

    def inputs(launch: int, rank: int) -> np.ndarray:
        return np.array([number(launch, rank, k) for k in range(chunks[rank])]).reshape(-1, ELEMENTS)

    def check(launch: int, rank: int, output: np.ndarray) -> None:
        if plan["collective"] in ("reduce", "gather") and rank != root:
            return
        np.testing.assert_array_equal(output, expected(plan, launch, rank, root))

    Machine(plan, inputs, check, seed, root).run(launches)


def require_right(plan: dict[str, Any], root: int = 0, seeds: int = 3) -> None:
    verdict = check_plan(plan)
    assert verdict.ok, verdict.findings
    assert [proof.outcome for proof in verdict.proofs] == ["proved"] * 4
    assert verdict.root == (root if plan["collective"] in ROOTED else None)
    for seed in range(seeds):
        execute(plan, seed, root)


def codes(plan: Any) -> set[str]:
    return {finding.code for finding in check_plan(plan).findings if finding.level == "error"}


def ring_plan() -> dict[str, Any]:
    return plan_of(hand_made.ring("allreduce", 3, 1), inplace=True, hosts=[0, 0, 1])


def mutants(plan: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """One fault each: an operation left out, or twice, or before its neighbour; a number one off."""
    found = []
    for g, gpu in enumerate(plan["gpus"]):
        for t, block in enumerate(gpu["threadblocks"]):
            for i, op in enumerate(block["ops"]):

                def edited(change: Callable[[list[Any]], Any], g: int = g, t: int = t) -> dict[str, Any]:
                    mutant = copy.deepcopy(plan)
                    change(mutant["gpus"][g]["threadblocks"][t]["ops"])
                    return mutant

                found.append((f"{g}.{t}.{i} without {op['name']}", edited(lambda ops, i=i: ops.pop(i))))
                if op["name"] != "nop":
                    found.append((f"{g}.{t}.{i} twice {op['name']}", edited(lambda ops, i=i: ops.insert(i, ops[i]))))
                if i:
                    found.append(
                        (f"{g}.{t}.{i} earlier {op['name']}", edited(lambda ops, i=i: ops.insert(i - 1, ops.pop(i))))
                    )
                for key in ("src_buff", "dst_buff"):
                    for p in range(len(op.get(key, []))):

                        def move(ops: list[Any], i: int = i, key: str = key, p: int = p) -> None:
                            part = ops[i][key][p]
                            part["index"] += 1 if part["index"] == 0 else -1

                        if op["name"] != "flush":
                            found.append((f"{g}.{t}.{i} other {key} of {op['name']}", edited(move)))
    return found
