"""The two ways to say no: the input is bad, or the answer is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import index


class InputError(ValueError):
    """Input that cannot be used: unreadable, malformed, contradictory (exit code 2).

    The message is one line that names the place and the remedy.
    """


class Refused(RuntimeError):
    """Well-formed input whose answer is no: a demand that cannot be met, a program that fits no target,
    a stall, a failed check (exit code 1)."""


def whole(what: str, value: object) -> int:
    """`value`, a whole number of any type that Python counts with. Raises `InputError` that says `what` it is for."""
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"{what} {str(value)[:40]!r} is no whole number") from None


def unknown(
    what: str, name: object, known: Iterable[str], *, also: str = "", meant: Mapping[str, str] | None = None
) -> InputError:
    """The error for a `name` that is none of the `known` ones: the nearest, then all of them.

    `also` is what else may be said in their place; `meant` has further spellings, and the known name of each.
    """
    from difflib import get_close_matches  # only where something is wrong

    name = str(name)
    names = list(known)
    spellings = {each.lower(): each for each in names} | dict(meant or {})
    near = get_close_matches(name.strip().lower(), spellings, 1)
    hint = f"did you mean {spellings[near[0]]}? " if near else ""
    return InputError(f"unknown {what} {name[:80]!r}; {hint}use {', '.join(names)}{also}")


@contextmanager
def naming(file: object, name: str) -> Iterator[None]:
    """Errors about what `file` holds begin with the file, not with the `name` in it, which several files may have."""
    try:
        yield
    except (InputError, Refused) as error:
        text = str(error)
        if not text.startswith(f"{name}: "):
            raise
        raise type(error)(f"{file}{text[len(name) :]}") from None
