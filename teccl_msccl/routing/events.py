"""Events that the controller is told of, and what is wrong with a bad one."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from ..errors import InputError, unknown
from ..files import require_keys
from .exact import exact, whole
from .fabric import Link, link_from_json

#: The kinds, each with the keys it needs beside `t` and `event`.
KINDS: Mapping[str, tuple[str, ...]] = {
    "job_arrive": ("job",),
    "job_leave": ("job",),
    "collective_start": ("job", "collective"),
    "collective_end": ("job", "collective"),
    "link": ("kind", "capacity"),
    "spine": ("spine", "alive"),
    "timer": (),
    "nack": ("job", "collective", "src", "dst"),
}


class Event(NamedTuple):
    """An event of a known kind, at `t` seconds."""

    t: float
    kind: str
    fields: Mapping[str, Any]

    @property
    def job(self) -> str:
        return str(self.fields["job"])

    @property
    def collective(self) -> str:
        return str(self.fields["collective"])

    @property
    def link(self) -> tuple[Link, Fraction]:
        """The link of a `link` event, and its new capacity."""
        return link_from_json(self.fields, "link"), exact(self.fields["capacity"], "link: capacity")

    @property
    def spine(self) -> tuple[int, bool]:
        """The spine of a `spine` event, and whether it lives."""
        alive = self.fields["alive"]
        if not isinstance(alive, bool):
            raise InputError(f"spine: alive must be true or false, not {alive!r}")
        return whole(self.fields["spine"], "spine: spine"), alive


def event_from_json(value: Any) -> Event:
    """Build from a JSON object. Raises `InputError`."""
    require_keys(value, ("t", "event"), "event")
    kind = value["event"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise unknown("event", str(kind), KINDS)
    require_keys(value, KINDS[kind], kind)
    return Event(float(exact(value["t"], f"{kind}: t")), kind, value)
