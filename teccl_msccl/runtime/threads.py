"""All ranks in this process: the C++ core's worker threads advance them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from .. import _core
from ..errors import InputError
from .buffers import RankBuffers
from .world import Answer, Case, Settings, Stall


class ThreadWorld:
    """A world of `nranks` ranks in one process."""

    transport = "threads"
    speaks = True
    processes_here = 1

    def __init__(self, nranks: int) -> None:
        self.nranks = nranks
        self.local: Sequence[int] = range(nranks)

    def prepare(self, case: Case, buffers: Mapping[int, RankBuffers], settings: Settings) -> ThreadExecution:
        return ThreadExecution(case, buffers, settings)

    def attempt(self, action: Callable[[], Answer]) -> Answer:
        return action()

    def share(self, text: str) -> list[str]:
        return [text]


class ThreadExecution:
    """A case whose ranks run on `settings.workers` threads."""

    def __init__(self, case: Case, buffers: Mapping[int, RankBuffers], settings: Settings) -> None:
        self._timeout = settings.timeout
        self._workers = settings.workers or min(case.program.nranks, len(os.sched_getaffinity(0)))
        try:
            self._world = _core.World(
                case.program.core,
                dtype=case.dtype.name,
                op=case.reduction,
                chunk_elements=case.chunk_elements,
                slots=settings.slots_of(case.program),
                slot_bytes=settings.slot_bytes_of(case.program),
                buffers=[buffers[rank].arrays for rank in range(case.program.nranks)],
                root=-1 if case.root is None else case.root,
                inject=set(settings.faults),
                seed=settings.seed,
            )
        except ValueError as error:
            raise InputError(f"{case.where}: {error}") from None

    @property
    def fifo_bytes(self) -> int:
        return self._world.fifo_bytes

    def execute(self) -> float:
        seconds, blocked = self._world.run(workers=self._workers, timeout=self._timeout)
        if blocked:
            raise Stall(self._timeout, blocked)
        return seconds

    def close(self) -> None:
        pass
