"""The pictures of a report, by name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError
from ..topology.picture import draw, rendered
from .facts import Facts
from .figures import bars_figure, gantt_figure, sweep_figure

_BARS = 60


def pictures(facts: Facts, ending: str, warn: Callable[[str], None], *, all_of_them: bool = False) -> dict[str, bytes]:
    """Those that the page shows ("topology", "sweep"), or all (also "gantt", "links", "threadblocks"); what cannot
    be drawn is said and left out."""
    found: dict[str, bytes] = {}
    try:
        found["topology"] = _topology(facts, ending)
    except InputError as error:
        warn(str(error))
    try:
        if facts.sweep:
            found["sweep"] = rendered(sweep_figure(facts.sweep, facts.title), ending)
        if all_of_them:
            rows = sorted(facts.gantt.rows, key=lambda row: -row.used)[:_BARS]
            found["gantt"] = rendered(gantt_figure(facts.gantt, facts.title), ending)
            names, used = [row.name for row in rows], [row.used for row in rows]
            found["links"] = rendered(bars_figure(names, used, f"{facts.title}: links"), ending)
        if all_of_them and facts.timing is not None:
            busiest = sorted(facts.timing.threadblocks, key=lambda use: -use.utilisation)[:_BARS]
            names, used = [f"GPU {use.gpu} tb {use.tb}" for use in busiest], [use.utilisation for use in busiest]
            found["threadblocks"] = rendered(bars_figure(names, used, f"{facts.title}: threadblocks"), ending)
    except InputError as error:
        warn(str(error))
    return found


def _topology(facts: Facts, ending: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"topology.{ending}"
        try:
            draw(facts.topology, path)
        except InputError as error:
            raise InputError(str(error).replace(f"{path}: ", "")) from None
        return path.read_bytes()
