"""The two ways to say no: the input is bad, or the answer is."""

from __future__ import annotations


class InputError(ValueError):
    """Input that cannot be used: unreadable, malformed, contradictory (exit code 2).

    The message is one line that names the place and the remedy.
    """


class Refused(RuntimeError):
    """Well-formed input whose answer is no: a demand that cannot be met, a program that fits no target,
    a stall, a failed check (exit code 1)."""
