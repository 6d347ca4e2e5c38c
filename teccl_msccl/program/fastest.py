"""The choice between schedules: a schedule is worth what its program delivers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from math import inf

from ..errors import Refused
from ..schedule.schedule import Schedule
from .program import Program
from .simulate import simulate
from .tune import Interrupted


def fastest(
    schedules: Iterable[Schedule], build: Callable[[Schedule], Program], seconds: float = inf
) -> tuple[Schedule, Program]:
    """Of `schedules`, nearly equal ones, that whose program (made by `build`) is simulated to be the fastest from the
    call to the end; and that program.

    Those of few sends come first, being lowered soonest. Those for which there is no program are passed over, and none
    is made of a schedule that takes longer than the best program so far, or, once there is one, when `seconds` are
    over, or at Ctrl-C. Raises the last `Refused` where there is no program at all, `ValueError` for no schedules.
    """
    ends = time.monotonic() + seconds
    best: tuple[Schedule, Program] | None = None
    best_us = inf
    refusal: Refused | None = None
    for schedule in sorted(schedules, key=lambda each: len(each.sends)):
        if schedule.finish_us >= best_us or (best is not None and time.monotonic() >= ends):
            continue
        try:
            program = build(schedule)
        except Refused as error:
            refusal = error
            continue
        except Interrupted as stop:
            program, ends = stop.program, -inf
        except KeyboardInterrupt:
            if best is None:
                raise
            return best
        timing = simulate(program, schedule.topology, schedule.demand.size_bytes)
        if best is None or timing.launch_us + timing.finish_us < best_us:
            best, best_us = (schedule, program), timing.launch_us + timing.finish_us
    if best is None:
        raise refusal or ValueError("no schedules")
    return best
