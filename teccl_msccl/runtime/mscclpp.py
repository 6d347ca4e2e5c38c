"""Handing plans to MSCCL++: registering them before its communicator begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_json
from ..program.plan_file import is_plan


def register(
    paths: Sequence[str | Path],
    *,
    rank: int,
    world_size: int,
    ranks_per_node: int,
    tags: Mapping[str, int] | None = None,
) -> list[Any]:
    """Register the plans at `paths` with MSCCL++'s algorithm collection, for `rank` of `world_size`; call it on every
    rank, before the communicator is made (in a process under `LD_PRELOAD=libmscclpp_nccl.so`: before
    `init_process_group`). Returns MSCCL++'s algorithms, to be kept alive.

    Raises `InputError` where MSCCL++ is not installed, a file is no plan, or it is for another number of ranks.
    """
    try:
        mscclpp = import_module("mscclpp")
        core = import_module("mscclpp._mscclpp")
    except ImportError as error:
        raise InputError(f"mscclpp is not here ({error}); install it from github.com/microsoft/mscclpp") from None
    builder = mscclpp.AlgorithmCollectionBuilder()
    constraint = mscclpp.Algorithm.Constraint(world_size=world_size, n_ranks_per_node=ranks_per_node)
    algorithms = []
    for path in paths:
        plan = _plan(path, world_size)
        algorithm = mscclpp.Algorithm(
            id=f"{plan['name']}:{Path(path).name}",
            execution_plan=core.CppExecutionPlan(str(path), rank),
            constraint=constraint,
            tags=dict(tags or {}),
        )
        builder.add_algorithm_builder(algorithm)
        algorithms.append(algorithm)
    return algorithms


def _plan(path: str | Path, world_size: int) -> dict[str, Any]:
    value = read_json(path, "a plan")
    if not is_plan(value) or not isinstance(value["gpus"], list) or not isinstance(value.get("name"), str):
        raise InputError(f"{path}: is no MSCCL++ execution plan; write one with --target mscclpp")
    if len(value["gpus"]) != world_size:
        raise InputError(f"{path}: is for {len(value['gpus'])} ranks, not {world_size}; make one for this job")
    plan: dict[str, Any] = value
    return plan
