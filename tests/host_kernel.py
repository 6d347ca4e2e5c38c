"""The GPU's kernel executed by the host's threads, as a world: what is compared with the interpreter."""

from __future__ import annotations

from collections.abc import Mapping

from teccl_msccl import _core
from teccl_msccl.errors import InputError
from teccl_msccl.runtime.buffers import RankBuffers
from teccl_msccl.runtime.threads import ThreadWorld
from teccl_msccl.runtime.world import Case, Settings, Stall


class HostKernelWorld(ThreadWorld):
    """A thread for each threadblock."""

    transport = "kernel on the host"

    def prepare(self, case: Case, buffers: Mapping[int, RankBuffers], settings: Settings) -> HostKernelExecution:
        return HostKernelExecution(case, buffers, settings)


class HostKernelExecution:
    def __init__(self, case: Case, buffers: Mapping[int, RankBuffers], settings: Settings) -> None:
        self._timeout = settings.timeout
        try:
            self.kernel = _core.HostKernel(
                case.program.core,
                dtype=case.dtype.name,
                op=case.reduction,
                chunk_elements=case.chunk_elements,
                slots=settings.slots_of(case.program),
                slot_bytes=settings.slot_bytes_of(case.program),
                buffers=[buffers[rank].arrays for rank in range(case.program.nranks)],
                root=-1 if case.root is None else case.root,
            )
        except ValueError as error:
            raise InputError(f"{case.where}: {error}") from None

    @property
    def fifo_bytes(self) -> int:
        return self.kernel.fifo_bytes

    def execute(self) -> float:
        seconds, blocked = self.kernel.run(timeout=self._timeout)
        if blocked:
            raise Stall(self._timeout, blocked)
        return seconds

    def close(self) -> None:
        pass
