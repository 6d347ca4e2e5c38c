"""Element types and reductions by nccl-tests' names, and how NumPy holds them.

NumPy has no bfloat16: it is carried as the upper 16 bits of a float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Refused, unknown

Array = NDArray[Any]


@dataclass(frozen=True)
class Dtype:
    """An element type. `storage` is what NumPy holds (bfloat16: its bits); `exact` is the largest n such that every
    integer in −n..n is represented, 0 for integer types, whose arithmetic wraps and is always exact;
    `exponent` bounds the powers of two 2^±exponent that are normal numbers. `copies_only`: 8-bit floats are moved as
    bytes and never reduced."""

    name: str
    storage: np.dtype[Any]
    exact: int = 0
    exponent: int = 0
    copies_only: bool = False

    @property
    def bytes(self) -> int:
        return self.storage.itemsize

    @property
    def bits(self) -> np.dtype[Any]:
        """The unsigned integer of the same width: equality of elements is equality of these."""
        return np.dtype(f"u{self.bytes}")

    @property
    def floating(self) -> bool:
        return self.exact > 0

    def from_float64(self, values: Array) -> Array:
        """Floating types only: `values`, each rounded to nearest even, as `storage`."""
        return to_bfloat16(values.astype(np.float32)) if self.name == "bfloat16" else values.astype(self.storage)

    def to_python(self, element: Any) -> int | float:
        """One element of `storage` as a Python number."""
        if self.name == "bfloat16":
            return float(from_bfloat16(np.asarray(element, np.uint16)))
        number: int | float = np.asarray(element, self.storage).item()
        return number


def to_bfloat16(values: Array) -> NDArray[np.uint16]:
    """The bits of float32 `values` rounded to nearest even bfloat16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    quiet_nan = (bits >> 16) | 0x40
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, quiet_nan, rounded).astype(np.uint16)


def from_bfloat16(bits: Array) -> NDArray[np.float32]:
    """The float32 values of bfloat16 `bits`."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def _floating(name: str, storage: str, exact: int, exponent: int) -> Dtype:
    return Dtype(name, np.dtype(storage), exact, exponent)


DTYPES: Mapping[str, Dtype] = MappingProxyType(
    {
        **{name: Dtype(name, np.dtype(name)) for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64")},
        "half": _floating("half", "float16", 2**11, 14),
        "bfloat16": _floating("bfloat16", "uint16", 2**8, 126),
        "float": _floating("float", "float32", 2**24, 126),
        "double": _floating("double", "float64", 2**53, 1022),
        **{name: Dtype(name, np.dtype(np.uint8), copies_only=True) for name in ("f8e4m3", "f8e5m2")},
    }
)
_ALIASES = MappingProxyType(
    {
        "float16": "half",
        "float32": "float",
        "float64": "double",
        "fp16": "half",
        "bf16": "bfloat16",
        **{f"{spelling}{kind}": f"f8{kind}" for spelling in ("fp8", "fp8_", "") for kind in ("e4m3", "e5m2")},
    }
)

#: Reductions, as NumPy combines them. An average is a sum that every rank divides by the number of ranks at the end.
REDUCTIONS: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "avg": np.add}
)


def averaged(total: Array, nranks: int) -> Array:
    """`total / nranks`: floats exactly rounded, integers cut towards zero as NCCL does."""
    if total.dtype.kind == "f":
        return total / nranks
    wide = total.astype(np.int64 if total.dtype.kind == "i" else np.uint64)
    down, rest = np.divmod(wide, wide.dtype.type(nranks))
    result: Array = np.where((wide < 0) & (rest != 0), down + wide.dtype.type(1), down).astype(total.dtype)
    return result


def dtypes_named(text: str, reducing: bool = False) -> tuple[Dtype, ...]:
    """The types in a comma list, or all of them ("all"): all that can be reduced, if `reducing`. Raises `InputError`,
    or `Refused` for a type that is named and cannot be reduced."""
    dtypes = tuple(DTYPES[name] for name in _names(text, DTYPES, "element type", _ALIASES))
    if not reducing:
        return dtypes
    reducible = tuple(dtype for dtype in dtypes if not dtype.copies_only)
    if len(reducible) < len(dtypes) and text.strip().lower() != "all":
        fixed = next(dtype.name for dtype in dtypes if dtype.copies_only)
        raise Refused(f"{fixed} is for copies only; reduce half or bfloat16 instead, or run a collective that copies")
    return reducible


def reductions_named(text: str) -> tuple[str, ...]:
    """The reductions in a comma list, or all of them ("all"). Raises `InputError`."""
    return _names(text, REDUCTIONS, "operation", {})


def _names(text: str, known: Mapping[str, Any], what: str, aliases: Mapping[str, str]) -> tuple[str, ...]:
    if text.strip().lower() == "all":
        return tuple(known)
    names = []
    for word in text.split(","):
        name = aliases.get(word.strip().lower(), word.strip().lower())
        if name not in known:
            raise unknown(what, word.strip(), known, also=" or all", meant={alias: alias for alias in aliases})
        names.append(name)
    return tuple(dict.fromkeys(names))
