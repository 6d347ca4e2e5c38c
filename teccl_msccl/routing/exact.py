"""Exact numbers, out of JSON files and into them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from ..errors import InputError

#: Numbers that are larger, or closer to 0, are no bytes, seconds or capacities.
MOST = Fraction(10**30)


def whole(value: Any, where: str) -> int:
    """A whole number of a JSON file."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}: must be a whole number, not {value!r}")
    return value


def exact(value: Any, where: str) -> Fraction:
    """The exact value of a JSON number as it is written (0.1 is a tenth), or of a string such as "1/3"."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Fraction)):
        raise InputError(f"{where}: must be a number, not {value!r}")
    if isinstance(value, int) and abs(value) > MOST:
        raise InputError(f"{where}: a number of absurd size; use another unit")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}: must be a finite number, not {value!r}")
    try:
        number = Fraction(str(value)) if len(str(value)) <= 100 else Fraction(0)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{where}: must be a number, not {str(value)[:40]!r}") from None
    if len(str(value)) > 100 or (number and not 1 / MOST <= abs(number) <= MOST):
        raise InputError(f"{where}: {str(value)[:40]} is out of all proportion; use another unit")
    return number


def plain(value: Fraction) -> int | float | str:
    """A number that JSON can say and `exact` reads back as it was."""
    if value.denominator == 1:
        return value.numerator
    return float(value) if Fraction(str(float(value))) == value else str(value)
