"""Tensors as programs see them: elements or bytes in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Tensor = Any


class flat:
    """A tensor's elements in a row, as a context: its own memory if contiguous, else a copy that goes back."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()

    def __enter__(self) -> Tensor:
        self._row = self._tensor.contiguous().view(-1)
        return self._row

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None and not self._tensor.is_contiguous():
            self._tensor.copy_(self._row.view(self._tensor.shape))


def as_bytes(row: Tensor) -> Tensor:
    return row.view(torch.uint8) if row.numel() else row.new_empty(0, dtype=torch.uint8)


def listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def overlap(one: Tensor, other: Tensor) -> bool:
    a, b = one.data_ptr(), other.data_ptr()
    return bool(a < b + other.nbytes and b < a + one.nbytes)


def in_rows(tensors: Sequence[Tensor], length: int, filled: bool = True, like: Tensor | None = None) -> Tensor:
    """The tensors' bytes in rows of `length` bytes, the rest of each undefined; all of it unless `filled`."""
    whole = (tensors[0] if like is None else like).new_empty(len(tensors) * length, dtype=torch.uint8)
    if filled:
        for tensor, row in zip(tensors, whole.split(length) if length else (), strict=False):
            row[: tensor.nbytes].copy_(as_bytes(tensor.detach().contiguous().view(-1)))
    return whole


def rows_into(tensors: Sequence[Tensor], whole: Tensor, length: int) -> None:
    """What `in_rows` has put together, back into the tensors."""
    for tensor, row in zip(tensors, whole.split(length) if length else (), strict=False):
        if tensor.numel():
            tensor.detach().copy_(row[: tensor.nbytes].view(tensor.dtype).view(tensor.shape))
