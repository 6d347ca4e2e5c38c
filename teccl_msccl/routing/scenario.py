"""Scenario: jobs on a fabric, and what happens to its links."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_json, require_keys
from .events import Event, event_from_json
from .fabric import Clos
from .job import Job, jobs_from_json, traffic_of


@dataclass(frozen=True)
class Scenario:
    """Jobs on a fabric, and what happens to its links (`events`: link, spine or timer)."""

    fabric: Clos
    jobs: tuple[Job, ...]
    events: tuple[Event, ...] = ()

    @classmethod
    def from_json(cls, value: Any, where: str) -> Scenario:
        """Build from `{"fabric": …, "jobs": […], "events": […]}`. Raises `InputError`."""
        require_keys(value, ("fabric", "jobs"), where)
        fabric = Clos.from_json(value["fabric"], f"{where}: fabric")
        jobs = jobs_from_json(value["jobs"], where)
        if not isinstance(value.get("events", []), list):
            raise InputError(f"{where}: 'events' must be a list")
        events = []
        for i, item in enumerate(value.get("events", [])):
            try:
                event = event_from_json(item)
                if event.kind not in ("link", "spine", "timer"):
                    raise InputError(f"{event.kind}: jobs make such events themselves; give link, spine or timer")
            except InputError as error:
                raise InputError(f"{where}: events[{i}]: {error}") from None
            events.append(event)
        try:
            for job in jobs:
                job.check_fits(fabric)
            traffic_of(fabric, (c for job in jobs for c in job.collectives)).check_reachable()
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return cls(fabric, jobs, tuple(events))

    @classmethod
    def read(cls, path: str | Path) -> Scenario:
        return cls.from_json(read_json(path, "jobs"), str(path))
