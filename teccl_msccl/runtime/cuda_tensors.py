"""Where a tensor's elements lie, and of what type they are: of torch, cupy, numba, jax…, without importing them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

from ..errors import InputError
from .elements import DTYPES, Dtype

#: DLPack's kDLCUDA and kDLCUDAManaged.
_CUDA = (2, 13)
#: DLPack's type codes and bits (dlpack.h, DLDataTypeCode).
_DLPACK: Mapping[tuple[int, int], str] = MappingProxyType(
    {(0, 8): "int8", (0, 32): "int32", (0, 64): "int64", (1, 8): "uint8", (1, 32): "uint32", (1, 64): "uint64",
     (2, 16): "half", (2, 32): "float", (2, 64): "double", (4, 16): "bfloat16", (8, 8): "f8e4m3", (10, 8): "f8e4m3",
     (12, 8): "f8e5m2"}
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """`elements` of `dtype` from `address` on, on GPU `device` (None: not on a GPU). `owner` keeps them there."""

    address: int
    elements: int
    dtype: Dtype
    device: int | None
    owner: Any = field(default=None, compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.bytes


class _Tensor(ctypes.Structure):
    """dlpack.h's DLTensor, with which DLManagedTensor begins."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def place_of(tensor: Any, where: str) -> Place:
    """Where `tensor` (called `where` in errors) lies, by DLPack. Raises `InputError` for what is no tensor, is not
    contiguous, or has elements that no program moves."""
    if not hasattr(tensor, "__dlpack__"):
        return _by_interface(tensor, where)
    try:
        capsule = tensor.__dlpack__()
    except Exception as error:  # every library has its own for gradients, read-only memory and conjugates
        raise InputError(f"{where}: cannot be shared ({error}); give a plain contiguous tensor") from None
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    view = _Tensor.from_address(read(capsule, b"dltensor"))
    name = _DLPACK.get((view.code, view.bits)) if view.lanes == 1 else None
    if name is None:
        raise InputError(f"{where}: its elements (DLPack type {view.code}, {view.bits} bits) are none of a program's")
    shape = view.shape[: view.ndim]
    if view.strides:
        _require_contiguous(shape, view.strides[: view.ndim], 1, where)
    device = view.device_id if view.device_type in _CUDA else None
    return Place((view.data or 0) + view.byte_offset, prod(shape), DTYPES[name], device, (tensor, capsule))


def _by_interface(tensor: Any, where: str) -> Place:
    """By `__cuda_array_interface__` (numba, older cupy), which has no device: the current one."""
    interface = getattr(tensor, "__cuda_array_interface__", None)
    if not isinstance(interface, Mapping):
        raise InputError(f"{where}: {type(tensor).__name__} is no tensor; give one of torch, cupy, numba or jax")
    typestr = str(interface["typestr"])
    known = {f"<{dtype.storage.str[1:]}": dtype for dtype in DTYPES.values() if dtype.name != "bfloat16"}
    known |= {each.replace("<", "|"): dtype for each, dtype in known.items() if each.endswith("1")}
    known |= {"|u1": DTYPES["uint8"], "<u1": DTYPES["uint8"]}
    if typestr not in known:
        raise InputError(f"{where}: its elements ({typestr}) are none of a program's")
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    dtype = known[typestr]
    if strides is not None:
        _require_contiguous(shape, strides, dtype.bytes, where)
    return Place(int(interface["data"][0]), prod(shape), dtype, 0, tensor)


def _require_contiguous(shape: Any, strides: Any, unit: int, where: str) -> None:
    expected = unit
    for length, stride in zip(reversed(list(shape)), reversed(list(strides)), strict=True):
        if length != 1 and stride != expected:
            raise InputError(f"{where}: is not contiguous; give tensor.contiguous()")
        expected *= length
