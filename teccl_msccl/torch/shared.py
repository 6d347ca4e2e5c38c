"""Messages between ranks of one host, through memory that they share: nothing goes through the system's sockets.

Every rank has a segment without a name (it goes when its last user does, however that ends), which the others open
through /proc. Where one of them cannot, as between containers, the group sends messages over its inner group instead.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import _core
from .exchange import Move, exchanges_of
from .messages import Tracer
from .programs import Served

Tensor = Any

#: "0" has ranks of one host exchange messages over the inner group, too.
VARIABLE = "TECCL_SHARED_MEMORY"
#: Bytes that a rank publishes in a round: so few that what one rank writes is still in the cache when others read it.
BANK_BYTES = 1 << 20
#: How often to look for a message before sleeping, where every rank has a core.
EAGER = 2000

#: torch's types in the C++ core's words, for what is reduced; anything else is messages' and torch's work.
ELEMENTS = {
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.float32: "float",
    torch.float64: "double",
}
REDUCTIONS = frozenset({"", "sum", "prod", "min", "max"})


class SharedMemory:
    """The segments of a group whose ranks are all on this host."""

    def __init__(self, rank: int, segments: Sequence[mmap.mmap], pidfds: Sequence[int], timeout: timedelta) -> None:
        self._rank, self._timeout, self._pidfds = rank, timeout.total_seconds(), pidfds
        crowded = len(segments) > len(os.sched_getaffinity(0))
        memory = [np.frombuffer(segment, np.uint8) for segment in segments]
        self._ranks = _core.SharedRanks(rank, memory, pidfds=list(pidfds), eager=0 if crowded else EAGER)
        self._exchanges: dict[int, tuple[Served, _core.Exchange, list[Move]]] = {}
        self._scratch: Tensor = torch.empty(0, dtype=torch.uint8)

    def close(self) -> None:
        for pidfd in self._pidfds:
            if pidfd >= 0:
                with suppress(OSError):
                    os.close(pidfd)
        self._pidfds = ()

    def run(
        self, served: Served, share: int, source: Tensor, output: Tensor, operation: str, trace: Tracer | None
    ) -> bool:
        """Execute a program on flat tensors with shares of `share` elements; False, and nothing done, for one with more
        messages than segments have slots. Raises RuntimeError when a rank is gone or silent for the timeout."""
        _, exchange, moves = self._exchange(served)
        size = output.element_size()
        rounds = self._ranks.rounds_for(exchange, share, size)
        if rounds == 0:
            return False
        scratch = self._room_for(exchange.scratch_bytes(share, rounds, size))
        dtype = ELEMENTS[output.dtype] if operation else _COPIED[size]
        told = self._ranks.run(
            exchange,
            share=share,
            rounds=rounds,
            dtype=dtype,
            op=operation,
            input=(source.data_ptr(), source.nbytes),
            output=(output.data_ptr(), output.nbytes),
            scratch=(scratch.data_ptr(), scratch.nbytes),
            timeout=self._timeout,
            traced=trace is not None,
        )
        if trace is not None:
            self._tell(moves, told, trace)
        return True

    def _tell(self, moves: Sequence[Move], told: Sequence[tuple[int, int, float, float]], trace: Tracer) -> None:
        rounds: Counter[int] = Counter()
        for number, nbytes, begin, end in told:
            move = moves[number]
            at = move.at if move.kind == "send" else move.sources[0] if move.kind == "receive" else None
            message = f"{at[0] - 3}:{at[1]}:{rounds[number]}" if at is not None else ""
            rounds[number] += 1
            trace(move.kind, move.peer, nbytes, begin, end, message)

    def _exchange(self, served: Served) -> tuple[Served, _core.Exchange, list[Move]]:
        known = self._exchanges.get(id(served))
        if known is None:  # `served` is kept, so that its id stays its own
            known = self._exchanges[id(served)] = (served, *exchanges_of(served.plans(buffered=True), self._rank))
        return known

    def _room_for(self, nbytes: int) -> Tensor:
        if self._scratch.numel() < nbytes:
            self._scratch = torch.empty(nbytes, dtype=torch.uint8)
        return self._scratch


_COPIED = {1: "uint8", 2: "half", 4: "int32", 8: "int64"}


def serves(operation: str, dtype: Any) -> bool:
    """Whether the C++ core reduces this; copies are bytes to it."""
    return not operation or (operation in REDUCTIONS and dtype in ELEMENTS)


def met(
    rank: int, size: int, timeout: timedelta, tell: Callable[[str, bytes], None], ask: Callable[[str], bytes]
) -> tuple[SharedMemory | None, str]:
    """The segments of all ranks if every rank sees all of them; else None and why not. All ranks must call this, and
    get the same. Costs 2 · size questions to the group's store."""
    segment, said = _offered()
    tell(f"segment/{rank}", json.dumps(said).encode())
    offers = [json.loads(ask(f"segment/{other}")) for other in range(size)]
    segments: list[mmap.mmap] = []
    pidfds: list[int] = []
    problem = ""
    try:
        for other, offer in enumerate(offers):
            if offer.get("reason"):
                raise OSError(f"rank {other}: {offer['reason']}")
            if offer["host"] != said["host"]:
                raise OSError(f"ranks {other} and {rank} are on different hosts")
            mine = other == rank and segment is not None
            segments.append(segment if mine and segment is not None else _opened(offer))
            pidfds.append(-1 if mine else _pidfd(offer["pid"]))
    except (OSError, ValueError, KeyError) as error:
        problem = str(error) or type(error).__name__
    tell(f"seen/{rank}", problem.encode() or b"-")
    verdicts = [ask(f"seen/{other}").decode() for other in range(size)]
    if segment is not None:  # everyone has opened it that will
        os.close(said["handle"])
    problems = [verdict for verdict in verdicts if verdict != "-"]
    if problems:
        for pidfd in pidfds:
            if pidfd >= 0:
                os.close(pidfd)
        return None, problems[0]
    return SharedMemory(rank, segments, pidfds, timeout), ""


def _offered() -> tuple[mmap.mmap | None, dict[str, Any]]:
    """This rank's segment, and how the others find it."""
    if os.environ.get(VARIABLE) == "0":
        return None, {"reason": f"{VARIABLE}=0", "host": ""}
    try:
        handle = os.memfd_create("teccl", os.MFD_CLOEXEC)
        os.ftruncate(handle, _core.segment_bytes(BANK_BYTES) + _TOKEN_BYTES)
        segment = mmap.mmap(handle, 0)
        token = secrets.token_hex(_TOKEN_BYTES // 2)
        segment[-_TOKEN_BYTES:] = token.encode()
        return segment, {"host": _host(), "pid": os.getpid(), "handle": handle, "token": token}
    except (OSError, AttributeError, ValueError) as error:
        return None, {"reason": f"no shared memory ({error})", "host": ""}


_TOKEN_BYTES = 32


def _host() -> str:
    """The same for processes that see each other in /proc."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() + os.readlink(
        "/proc/self/ns/pid"
    )


def _opened(offer: dict[str, Any]) -> mmap.mmap:
    with open(f"/proc/{offer['pid']}/fd/{offer['handle']}", "r+b", buffering=0) as stream:
        segment = mmap.mmap(stream.fileno(), 0)
    if segment[-_TOKEN_BYTES:] != offer["token"].encode():
        raise OSError(f"process {offer['pid']} has another segment than it says")
    return segment


def _pidfd(pid: int) -> int:
    """What tells that a process has ended; −1 where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1
