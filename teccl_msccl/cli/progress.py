"""A synthesis in progress, on stderr: phase, incumbent, bound, gap, time left."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from . import output

if TYPE_CHECKING:
    from rich.status import Status

    from ..synthesis.incumbent import Progress

#: What is over sooner shows nothing.
_PATIENCE_S = 1.0
#: Without a terminal: a line at most this often.
_LINE_EVERY_S = 5.0


class SynthesisProgress:
    """Shows each `Progress` it is called with; a live line on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._began = self._printed = time.monotonic()
        self._status: Status | None = None

    def __enter__(self) -> SynthesisProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._began < _PATIENCE_S:
            return
        if output.stderr.is_terminal:
            if self._status is None:
                self._status = output.stderr.status("")
                self._status.start()
            self._status.update(_sentence(progress))
        elif now - self._printed >= _LINE_EVERY_S:
            self._printed = now
            output.note(_sentence(progress))


def _sentence(progress: Progress) -> str:
    incumbent = "none yet" if progress.incumbent_us is None else f"{progress.incumbent_us:.3f} µs"
    gap = "" if progress.gap is None else f" (gap {progress.gap:.2%})"
    return (
        f"{progress.phase}: incumbent {incumbent}, bound {progress.bound_us:.3f} µs{gap}, "
        f"{progress.seconds_left:.0f} s left"
    )
