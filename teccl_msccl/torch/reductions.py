"""torch's reductions in a program's words: what is summed, and what is scaled before or after."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

Tensor = Any

_OPERATIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "sum",
    dist.ReduceOp.PREMUL_SUM: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}
_NOT_REDUCED = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "bool")
    if hasattr(torch, name)
)


def reduction_of(opts: Any) -> str:
    """The name of a call's reduction, "unknown" for one that no program does."""
    return next((name for kind, name in _OPERATIONS.items() if opts.reduceOp == kind), "unknown")


def irreducible(reduction: str, dtype: Any) -> str:
    """Why tensors of `dtype` cannot be reduced; nothing if they can."""
    if reduction == "unknown":
        return "operation without a program"
    return f"{dtype} is not reduced by torch" if reduction and dtype in _NOT_REDUCED else ""


def scale_before(flat: Tensor, opts: Any) -> None:
    """PREMUL_SUM's factor, in place."""
    if is_premultiplied(opts):
        with torch.no_grad():
            flat.mul_(opts.reduceOp.factor)


def is_premultiplied(opts: Any) -> bool:
    return bool(opts.reduceOp == dist.ReduceOp.PREMUL_SUM)


def scale_after(flat: Tensor, opts: Any, nranks: int) -> None:
    """AVG's division, in place; of integers towards zero."""
    if opts.reduceOp == dist.ReduceOp.AVG:
        with torch.no_grad():
            if flat.dtype.is_floating_point or flat.dtype.is_complex:
                flat.div_(nranks)
            else:
                flat.copy_(torch.div(flat, nranks, rounding_mode="trunc"))
