"""What ran custom and what was delegated, and why: counted, and said with TECCL_DEBUG=INFO."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from typing import Any

_lock = threading.Lock()
_custom: Counter[str] = Counter()
_delegated: Counter[str] = Counter()
_why: Counter[str] = Counter()


def debugging() -> bool:
    return os.environ.get("TECCL_DEBUG", "").upper() in ("INFO", "TRACE")


def custom(collective: str, rank: int, nbytes: int, program: str) -> None:
    """A collective runs as a program."""
    with _lock:
        _custom[collective] += 1
    _say(rank, f"{collective} of {nbytes} bytes: custom, {program}")


def delegated(collective: str, rank: int, reason: str) -> None:
    """A collective is left to the inner group."""
    with _lock:
        _delegated[collective] += 1
        _why[f"{collective}: {reason}"] += 1
    _say(rank, f"{collective}: delegated, {reason}")


def note(rank: int, text: str) -> None:
    _say(rank, text)


def _say(rank: int, text: str) -> None:
    if debugging():
        sys.stderr.write(f"teccl: rank {rank}: {text}\n")  # at once, beside other ranks' lines
        sys.stderr.flush()


def stats() -> dict[str, Any]:
    """How many collectives of this process ran custom and how many were delegated, and why: {"custom", "delegated",
    "why", "by_collective"}."""
    with _lock:
        return {
            "custom": sum(_custom.values()),
            "delegated": sum(_delegated.values()),
            "why": dict(_why),
            "by_collective": {"custom": dict(_custom), "delegated": dict(_delegated)},
        }


def reset() -> None:
    """Count from zero."""
    with _lock:
        for counter in (_custom, _delegated, _why):
            counter.clear()
