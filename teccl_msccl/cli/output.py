"""Where a command's words go: the answer to stdout (one JSON object with --json), all else to stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    stderr: Console
    stdout: Console

#: Set once by `main` when --json stands anywhere on the command line.
as_json = False


def __getattr__(name: str) -> Any:
    """`stdout` and `stderr` are made when they are first written to: `--help` does without rich."""
    if name in ("stdout", "stderr"):
        return _console(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _console(name: str) -> Console:
    from rich.console import Console

    return Console(stderr=name == "stderr", highlight=False)


def answer(value: Mapping[str, Any], show: Callable[[], None]) -> None:
    """Print the command's answer: `value` as one JSON object with --json, else whatever `show` prints."""
    if as_json:
        sys.stdout.write(json.dumps(_finite(value)) + "\n")
        sys.stdout.flush()
    else:
        show()


def warn(text: str) -> None:
    """One line on stderr that does not change the outcome."""
    _console("stderr").print(f"warning: {text}", markup=False, soft_wrap=True)


def note(text: str) -> None:
    """One line of progress on stderr."""
    _console("stderr").print(text, markup=False, soft_wrap=True)


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity: null instead."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
