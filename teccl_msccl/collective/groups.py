"""Process groups as people write them: 0-3, 0,2,4, 0-15/4 (every fourth), each with a priority if need be."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import InputError
from .demand import Group

_PART = re.compile(r"\s*(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?\s*")


def parse_group(text: str) -> Group:
    """The group that `text` names: ranks and ranges of them between commas, ":WEIGHT" after them.

    "0-3" is 0, 1, 2, 3; "0-14/4" is 0, 4, 8, 12; "0,1,6,7:2" goes before others where it contends with them.
    Raises `InputError`.
    """
    ranks, colon, weight = text.partition(":")
    try:
        priority = float(weight) if colon else 1.0
    except ValueError:
        raise InputError(f"group {text!r}: weight {weight!r} is no number; write RANKS:2") from None
    return Group(tuple(rank for part in ranks.split(",") for rank in _part(part, text)), priority)


def _part(part: str, text: str) -> Iterator[int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise InputError(f"group {text!r}: {part.strip()!r} is no rank or range; write 0,1,2 or 0-3 or 0-12/4")
    first, last, stride = (int(number) if number else None for number in match.groups())
    assert first is not None, "the pattern begins with a number"
    last = first if last is None else last
    if last < first or stride == 0 or last - first > 1_000_000:
        raise InputError(f"group {text!r}: {part.strip()!r} is no range; write 0-3 or 0-12/4")
    yield from range(first, last + 1, stride or 1)
