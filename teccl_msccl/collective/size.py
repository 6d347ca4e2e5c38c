"""Sizes as people write them: 64MB (10⁶), 64MiB (2²⁰), bare bytes."""

from __future__ import annotations

import math
import re

from ..errors import InputError

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
#: An exabyte: more than any machine holds, and than finish times in µs can be told apart from.
MOST_BYTES = 1e18
_ONE_LETTER = {"k": 2**10, "m": 2**20, "g": 2**30}
_SIZE = re.compile(r"\s*([0-9]+\.?[0-9]*(?:e[+]?[0-9]+)?|\.[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str | float, *, one_letter: bool = False) -> float:
    """Bytes in `text`: "64MB", "1.5 GiB", "4096", or a number already.

    `one_letter` also takes nccl-tests' K, M and G, which are binary. Raises `InputError`.
    """
    if not isinstance(text, str):
        try:
            nbytes = float(text)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"size: this {type(text).__name__} is no finite number of bytes; use such or 64MB"
            ) from None
        return _usable(nbytes, str(text))
    match = _SIZE.fullmatch(text)
    units = _UNITS | _ONE_LETTER if one_letter else _UNITS
    if match is None or match.group(2).lower() not in units:
        raise InputError(f"size {text!r} is not understood; write 64MB, 1GiB or a number of bytes")
    return _usable(float(match.group(1)) * units[match.group(2).lower()], text)


def _usable(nbytes: float, text: str) -> float:
    if not math.isfinite(nbytes) or nbytes < 0:
        raise InputError(f"size {text!r} must be a finite number of bytes, zero or more")
    if nbytes > MOST_BYTES:
        raise InputError(f"size {text!r} is more than any machine holds; use at most {MOST_BYTES:g} bytes")
    return nbytes


def format_size(nbytes: float) -> str:
    """`nbytes` in the largest decimal unit that keeps it at 1 or more, up to 4 digits."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes:.4g} B"
