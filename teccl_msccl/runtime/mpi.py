"""One rank per process: the C++ core advances the rank, and this driver carries its messages over MPI.

A connection is (source, destination, channel): its messages have tag 2·channel, and for each that the receiver has
consumed a credit goes back with tag 2·channel + 1. A sender's slot is free when its credit is back, so that a
program has exactly the credits in flight that its protocol grants, however much MPI itself buffers.

Nothing here blocks inside MPI: ranks usually outnumber the cores that test them, and MPI's own waits spin.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from .. import _core
from ..errors import InputError, Refused
from .agreement import attempt
from .buffers import RankBuffers
from .world import Answer, Case, Settings, Stall

#: Seconds between two rounds of the pulse while a rank still works.
_PULSE_SECONDS = 0.05
_TEXT_BYTES = 1024


class Patience:
    """Waiting that is quick to notice a message: it looks `eager` times, letting others run in between if `polite`, and
    then leaves the core to other ranks. (A core that is given away comes back a whole time slice later.)"""

    def __init__(self, eager: int = 10, polite: bool = True) -> None:
        self._eager, self._polite = eager, polite
        self._idle = 0

    def reset(self) -> None:
        self._idle = 0

    def wait(self) -> None:
        self._idle += 1
        if self._idle > self._eager:
            time.sleep(min(1e-3, 1e-5 * (self._idle - self._eager)))
        elif self._polite:
            os.sched_yield()


class MpiWorld:
    """The processes of MPI_COMM_WORLD, one rank each.

    As a context manager it makes sure that no process is left waiting: an error that all processes have agreed on
    (see `attempt`) passes through, any other is printed and aborts them all.
    """

    transport = "mpi"

    def __init__(self, MPI: Any) -> None:
        self.MPI = MPI
        self.comm = MPI.COMM_WORLD.Dup()
        self.rank: int = self.comm.Get_rank()
        self.nranks: int = self.comm.Get_size()
        self.local: Sequence[int] = (self.rank,)
        self.speaks = self.rank == 0
        self._agreed: BaseException | None = None
        host = self.gather(MPI.Get_processor_name().encode())
        self.processes_here = host.count(host[self.rank])
        self._crowded = self.processes_here > len(os.sched_getaffinity(0))

    def __enter__(self) -> MpiWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or error is self._agreed or isinstance(error, SystemExit):
            return
        line = " ".join(str(error).split()) or type(error).__name__
        print(f"error: rank {self.rank}: {line}", file=sys.stderr, flush=True)
        self.comm.Abort(2 if isinstance(error, InputError) else 1)

    def patience(self) -> Patience:
        """How to wait for messages. A wake-up costs as much as a message takes, so with a core for every rank look for
        some milliseconds first."""
        return Patience() if self._crowded else Patience(eager=1000, polite=False)

    # -- agreement --------------------------------------------------------------------------------------------

    def wait(self, request: Any) -> None:
        """Wait for a request without spinning."""
        patience = Patience()
        while not request.Test():
            patience.wait()

    def gather(self, text: bytes) -> list[bytes]:
        """Every process' `text`, cut to 1024 bytes."""
        mine = np.zeros(_TEXT_BYTES, np.uint8)
        text = text[:_TEXT_BYTES]
        mine[: len(text)] = np.frombuffer(text, np.uint8)
        everyone = np.empty((self.nranks, _TEXT_BYTES), np.uint8)
        self.wait(self.comm.Iallgather([mine, self.MPI.BYTE], [everyone, self.MPI.BYTE]))
        return [row.tobytes().rstrip(b"\0") for row in everyone]

    def attempt(self, action: Callable[[], Answer]) -> Answer:
        answer, error = attempt(action, self.gather)
        if error is not None:
            raise self.agree(error)
        return answer  # type: ignore[return-value]

    def agree(self, error: Exception) -> Exception:
        """Remember that every process raises this error."""
        self._agreed = error
        return error

    def share(self, text: str) -> list[str]:
        return [said.decode(errors="replace") for said in self.gather(text.encode())]

    # -- execution --------------------------------------------------------------------------------------------

    def prepare(self, case: Case, buffers: Mapping[int, RankBuffers], settings: Settings) -> MpiExecution:
        layout = case.layout
        try:
            endpoint = _core.Endpoint(
                case.program.core,
                self.rank,
                dtype=case.dtype.name,
                op=case.reduction,
                chunk_elements=case.chunk_elements,
                slots=settings.slots_of(case.program),
                slot_bytes=settings.slot_bytes_of(case.program),
                buffers=buffers[self.rank].arrays,
                chunks=[(layout.input_chunks, layout.output_chunks, gpu.scratch_chunks) for gpu in case.program.gpus],
                root=-1 if case.root is None else case.root,
                inject=set(settings.faults),
                seed=settings.seed,
            )
        except ValueError as error:
            raise InputError(f"{case.where}: {error}") from None
        return MpiExecution(self, endpoint, settings.timeout)

    def stalled(self, timeout: float, blocked: Sequence[str]) -> Exception:
        """The `Stall` of every rank (to be raised in each). Its messages can never be completed, so the job ends in
        an abort once rank 0 has said what it has to say."""
        lines = self.comm.gather(list(blocked), 0)
        if self.speaks:
            atexit.register(self.comm.Abort, 1)
        return self.agree(Stall(timeout, [line for rank in lines or () for line in rank]))


class MpiExecution:
    """A case whose rank in this process exchanges messages with the others'."""

    def __init__(self, world: MpiWorld, endpoint: _core.Endpoint, timeout: float) -> None:
        self._world, self._endpoint, self._timeout = world, endpoint, timeout
        comm, byte, nothing = world.comm, world.MPI.BYTE, bytearray(0)
        self._outgoing, self._incoming = endpoint.outgoing, endpoint.incoming
        self._sends: list[deque[Any]] = [deque() for _ in self._outgoing]
        self._receives: list[deque[Any]] = [deque() for _ in self._incoming]
        self._credits = [comm.Send_init([nothing, byte], peer, 2 * channel + 1) for peer, channel in self._incoming]
        # What to look for: the next credit of every outgoing line, then the next message of every incoming one.
        self._awaited: list[Any] = [
            *(comm.Recv_init([nothing, byte], peer, 2 * channel + 1) for peer, channel in self._outgoing),
            *(world.MPI.REQUEST_NULL for _ in self._incoming),
        ]

    @property
    def fifo_bytes(self) -> int:
        return self._endpoint.fifo_bytes

    def execute(self) -> float:
        world, endpoint = self._world, self._endpoint
        endpoint.restart()
        self._receive()
        world.wait(world.comm.Ibarrier())
        pulse = _Pulse(world, self._timeout)
        patience = world.patience()
        start = time.perf_counter()
        seconds: float | None = None
        while not pulse.everyone_finished:
            moved = endpoint.advance()
            if moved:
                self._send()
            self._receive()
            moved += self._look()
            if seconds is None and endpoint.finished:
                seconds = time.perf_counter() - start
            pulse.beat(endpoint.progress, seconds is not None)
            if pulse.stalled:
                raise world.stalled(self._timeout, endpoint.blocked())
            patience.reset() if moved else patience.wait()
        return seconds or 0.0

    def _send(self) -> None:
        """Start sending what the rank has pushed, and give back credits for what it has consumed."""
        comm, byte = self._world.comm, self._world.MPI.BYTE
        for line, message in self._endpoint.departures():
            peer, channel = self._outgoing[line]
            self._sends[line].append(comm.Isend([message, byte], peer, 2 * channel))
            if len(self._sends[line]) == 1:
                self._awaited[line].Start()
        for line in self._endpoint.credits():
            self._credits[line].Wait()
            self._credits[line].Start()

    def _receive(self) -> None:
        """Start receiving wherever the rank can take a message in."""
        comm, byte, first = self._world.comm, self._world.MPI.BYTE, len(self._outgoing)
        for line, place in self._endpoint.landings():
            peer, channel = self._incoming[line]
            request = comm.Irecv([place, byte], peer, 2 * channel)
            if not self._receives[line]:
                self._awaited[first + line] = request
            self._receives[line].append(request)

    def _look(self) -> int:
        """Take in the messages and credits that have come; how many."""
        done = self._world.MPI.Request.Testsome(self._awaited) or ()
        outgoing = len(self._outgoing)
        for index in done:
            if index < outgoing:
                self._endpoint.credited(index)
                self._sends[index].popleft().Wait()  # it has arrived
                if self._sends[index]:
                    self._awaited[index].Start()
            else:
                self._endpoint.landed(index - outgoing)
                waiting = self._receives[index - outgoing]
                waiting.popleft()
                if waiting:
                    self._awaited[index] = waiting[0]
        return len(done)

    def close(self) -> None:
        for credit in self._credits:
            credit.Wait()
            credit.Free()
        for request in self._awaited[: len(self._outgoing)]:
            request.Free()


class _Pulse:
    """Rounds of a non-blocking allreduce in which every rank says how far it is: so all ranks learn together that
    everyone has finished, or that nothing has moved anywhere for `timeout` seconds."""

    def __init__(self, world: MpiWorld, timeout: float) -> None:
        self._world, self._timeout = world, timeout
        self._mine, self._all = np.zeros(3, np.int64), np.zeros(3, np.int64)
        self._request: Any = None
        self._seen = -1
        self._began = self._moved = self._next = time.monotonic()
        self.everyone_finished = self.stalled = False

    def beat(self, progress: int, finished: bool) -> None:
        """Take part in the current round, or begin the next when it is time to."""
        now = time.monotonic()
        if self._request is None:
            if finished or now >= self._next:
                self._mine[:] = progress, finished, now - self._moved > self._timeout
                self._request = self._world.comm.Iallreduce(self._mine, self._all, self._world.MPI.SUM)
                self._began = now
        elif self._request.Test():
            self._request = None
            self._next = now + min(_PULSE_SECONDS, self._timeout / 10)
            if self._all[0] != self._seen:
                self._seen, self._moved = int(self._all[0]), now
            self.everyone_finished = int(self._all[1]) == self._world.nranks
            self.stalled = not self.everyone_finished and self._all[2] > 0
        elif now - self._began > 2 * self._timeout:
            raise Refused(f"another rank has not answered for {2 * self._timeout:g} s; see its own output")
