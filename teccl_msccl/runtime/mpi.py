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
    """Waiting that is quick to notice a message: `eager` looks, the first few without letting anyone else run, and then
    the core is left to other ranks."""

    def __init__(self, eager: int = 10) -> None:
        self._eager = eager
        self._idle = 0

    def reset(self) -> None:
        self._idle = 0

    def wait(self) -> None:
        self._idle += 1
        if self._idle < self._eager // 50:
            return
        if self._idle < self._eager:
            os.sched_yield()
        else:
            time.sleep(min(1e-3, 1e-5 * (self._idle - self._eager)))


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
        # A wake-up costs as much as a message takes, so with a core for every rank look for some milliseconds first.
        crowded = self.processes_here > len(os.sched_getaffinity(0))
        self.eager_looks = 10 if crowded else 1000

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
        return MpiExecution(self, endpoint, settings.slots_of(case.program), settings.timeout)

    def stalled(self, timeout: float, blocked: Sequence[str]) -> Exception:
        """The `Stall` of every rank (to be raised in each). Its messages can never be completed, so the job ends in
        an abort once rank 0 has said what it has to say."""
        lines = self.comm.gather(list(blocked), 0)
        if self.speaks:
            atexit.register(self.comm.Abort, 1)
        return self.agree(Stall(timeout, [line for rank in lines or () for line in rank]))


class MpiExecution:
    """A case whose rank in this process exchanges messages with the others'."""

    def __init__(self, world: MpiWorld, endpoint: _core.Endpoint, slots: int, timeout: float) -> None:
        self._world, self._endpoint, self._timeout = world, endpoint, timeout
        comm, byte, nothing = world.comm, world.MPI.BYTE, bytearray(0)
        self._departures = [
            _Departures(
                [endpoint.outgoing_slot(line, slot) for slot in range(slots)],
                [None] * slots,
                comm.Recv_init([nothing, byte], peer, 2 * channel + 1),
                peer,
                2 * channel,
            )
            for line, (peer, channel) in enumerate(endpoint.outgoing)
        ]
        self._arrivals = [
            _Arrivals(
                [
                    comm.Recv_init([endpoint.incoming_slot(line, slot), byte], peer, 2 * channel)
                    for slot in range(slots)
                ],
                [comm.Send_init([nothing, byte], peer, 2 * channel + 1) for _ in range(slots)],
                taken,
            )
            for line, (peer, channel, taken) in enumerate(endpoint.incoming)
        ]
        self._statuses = [world.MPI.Status() for _ in range(len(self._departures) + len(self._arrivals))]

    @property
    def fifo_bytes(self) -> int:
        return self._endpoint.fifo_bytes

    def execute(self) -> float:
        world, endpoint = self._world, self._endpoint
        endpoint.restart()
        for line in self._arrivals:
            line.expect()
        world.wait(world.comm.Ibarrier())
        pulse = _Pulse(world, self._timeout)
        patience = Patience(world.eager_looks)
        start = time.perf_counter()
        seconds: float | None = None
        while not pulse.everyone_finished:
            moved = endpoint.advance()
            if moved:
                self._carry()
            moved += self._exchange()
            if seconds is None and endpoint.finished:
                seconds = time.perf_counter() - start
            pulse.beat(endpoint.progress, seconds is not None)
            if pulse.stalled:
                raise world.stalled(self._timeout, endpoint.blocked())
            patience.reset() if moved else patience.wait()
        return seconds or 0.0

    def _carry(self) -> None:
        """Start sending what the rank has pushed, and give back credits for what it has consumed."""
        for line, slot, nbytes in self._endpoint.departures():
            self._departures[line].send(self._world, slot, nbytes)
        for line, slot in self._endpoint.credits():
            self._arrivals[line].give_credit(slot)

    def _exchange(self) -> int:
        """Take in the messages and credits that have come; how many."""
        requests = [line.credit for line in self._departures] + [line.head for line in self._arrivals]
        done = self._world.MPI.Request.Testsome(requests, self._statuses) or ()
        outgoing = len(self._departures)
        for position, index in enumerate(done):
            if index < outgoing:
                self._endpoint.credited(index)
                self._departures[index].credited()
            else:
                self._endpoint.landed(index - outgoing, self._statuses[position].Get_count(self._world.MPI.BYTE))
                self._arrivals[index - outgoing].landed()
        return len(done)

    def close(self) -> None:
        for departures in self._departures:
            departures.close()
        for arrivals in self._arrivals:
            arrivals.close()


class _Departures:
    """An outgoing connection: its slots, their sends under way, and the wait for the next credit."""

    def __init__(self, slots: list[memoryview], sends: list[Any], credit: Any, peer: int, tag: int) -> None:
        self._slots, self._sends, self.credit, self._peer, self._tag = slots, sends, credit, peer, tag
        self._outstanding = 0

    def send(self, world: MpiWorld, slot: int, nbytes: int) -> None:
        if self._sends[slot] is not None:
            self._sends[slot].Wait()  # its credit is back, so it has arrived
        message = [self._slots[slot][:nbytes], world.MPI.BYTE]
        self._sends[slot] = world.comm.Isend(message, self._peer, self._tag)
        self._outstanding += 1
        if self._outstanding == 1:
            self.credit.Start()

    def credited(self) -> None:
        self._outstanding -= 1
        if self._outstanding:
            self.credit.Start()

    def close(self) -> None:
        for send in self._sends:
            if send is not None:
                send.Wait()
        self.credit.Free()


class _Arrivals:
    """An incoming connection: a receive posted into every free slot, as long as messages are due."""

    def __init__(self, receives: list[Any], credits: list[Any], taken: int) -> None:
        self._receives, self._credits, self._taken = receives, credits, taken
        self._due = self._posted = self._landed = 0

    @property
    def head(self) -> Any:
        """The receive of the next message in order."""
        return self._receives[self._landed % len(self._receives)]

    def expect(self) -> None:
        """A run begins: its messages are due."""
        self._due += self._taken
        for _ in range(min(len(self._receives), self._taken)):
            self._post()

    def _post(self) -> None:
        self._receives[self._posted % len(self._receives)].Start()
        self._posted += 1

    def landed(self) -> None:
        self._landed += 1

    def give_credit(self, slot: int) -> None:
        self._credits[slot].Wait()
        self._credits[slot].Start()
        if self._posted < self._due:
            self._post()

    def close(self) -> None:
        for credit in self._credits:
            credit.Wait()
            credit.Free()
        for receive in self._receives:
            receive.Free()


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
