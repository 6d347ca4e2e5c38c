"""Program: what every threadblock of every GPU does — exactly what an MSCCL XML file can say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import _core
from ..errors import InputError

STEP_TYPES = ("s", "r", "cpy", "re", "rcs", "rrc", "rrs", "rrcs", "nop")
RECEIVING = frozenset({"r", "rcs", "rrc", "rrs", "rrcs"})
SENDING = frozenset({"s", "rcs", "rrs", "rrcs"})
READING = frozenset({"s", "cpy", "re", "rrc", "rrs", "rrcs"})
WRITING = frozenset({"r", "cpy", "re", "rcs", "rrc", "rrcs"})
BUFFERS = ("i", "o", "s")
PROTOCOLS = ("Simple", "LL", "LL128")
INT32_MAX = 2**31 - 1


class Step(NamedTuple):
    """One step of a threadblock. Offsets and `cnt` are in chunks; `depid`/`deps` name the threadblock and step
    that must have finished (−1: none); `hasdep` says that some step waits for this one."""

    type: str
    srcbuf: str = "i"
    srcoff: int = 0
    dstbuf: str = "o"
    dstoff: int = 0
    cnt: int = 1
    depid: int = -1
    deps: int = -1
    hasdep: bool = False


def _packable(step: Step) -> bool:
    type, srcbuf, srcoff, dstbuf, dstoff, cnt, depid, deps, _ = step
    small = min(srcoff, dstoff, cnt, depid, deps) >= -INT32_MAX and max(srcoff, dstoff, cnt, depid, deps) <= INT32_MAX
    return small and type in STEP_TYPES and srcbuf in BUFFERS and dstbuf in BUFFERS


@dataclass(frozen=True)
class Threadblock:
    """A threadblock with at most one peer to send to and one to receive from (−1: none), on one channel."""

    send: int
    recv: int
    chan: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Gpu:
    """One rank's buffers, in chunks, and its threadblocks (the id is the position)."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...]


@dataclass(frozen=True)
class Program:
    """A program for `len(gpus)` ranks.

    `collective` has the design's spelling (`reduce_scatter`); targets spell it their own way in the file.
    `nchunks` is the format's nchunksperloop: chunk bytes = size / nchunks, where runtimes count the size of a gather
    or scatter by one rank's share (see `chunks_per_size`). `target` names the runtime that the file is for: its
    spelling, and its meaning of the byte limits (`Target.takes_bytes`) and of the modes.
    """

    name: str
    collective: str
    protocol: str
    nchannels: int
    nchunks: int
    inplace: bool
    outofplace: bool
    gpus: tuple[Gpu, ...]
    min_bytes: int = 0
    max_bytes: int = 0
    target: str = "executor"

    def __post_init__(self) -> None:
        self.validate()

    @property
    def nranks(self) -> int:
        return len(self.gpus)

    @property
    def chunks_per_size(self) -> int:
        """Chunks in a size as nccl-tests count it, which for gather and scatter is all ranks' shares.

        Runtimes multiply a size by the ranks for allgather, reduce_scatter and alltoall only, so `nchunks` divides
        one rank's share of a gather or scatter. A file that divides the whole instead is taken as it means it:
        its buffers tell.
        """
        if self.collective not in ("gather", "scatter"):
            return self.nchunks
        inputs = max(gpu.input_chunks for gpu in self.gpus)
        outputs = max(gpu.output_chunks for gpu in self.gpus)
        share, whole = (inputs, outputs) if self.collective == "gather" else (outputs, inputs)
        divides_the_whole = (share or whole // self.nranks) * self.nranks == self.nchunks
        return self.nchunks if divides_the_whole else self.nchunks * self.nranks

    def steps(self) -> Iterator[tuple[int, int, int, Step]]:
        """Every step as (gpu, threadblock, position, step)."""
        for rank, gpu in enumerate(self.gpus):
            for tb, threadblock in enumerate(gpu.threadblocks):
                for position, step in enumerate(threadblock.steps):
                    yield rank, tb, position, step

    def validate(self) -> None:
        """Raise `InputError` for what cannot be packed at all. Whether it is *right* is the checker's business."""
        if self.protocol not in PROTOCOLS:
            raise InputError(f"{self.name}: proto {self.protocol!r}; use {', '.join(PROTOCOLS)}")
        if not self.gpus:
            raise InputError(f"{self.name}: no gpu; a program needs at least one")
        for rank, tb, position, step in self.steps():
            if _packable(step):
                continue
            where = f"{self.name}: gpu {rank} tb {tb} step {position}"
            if step.type not in STEP_TYPES:
                raise InputError(f"{where}: type {step.type!r}; use {', '.join(STEP_TYPES)}")
            for buffer in (step.srcbuf, step.dstbuf):
                if buffer not in BUFFERS:
                    raise InputError(f"{where}: buffer {buffer!r}; use i, o or s")
            for value in (step.srcoff, step.dstoff, step.cnt, step.depid, step.deps):
                if abs(value) > INT32_MAX:
                    raise InputError(f"{where}: {value} does not fit in 32 bits")

    def require_places(self) -> None:
        """Raise `InputError` for the first step that moves no chunk, or one where its buffer has none."""
        for rank, tb, position, step in self.steps():
            if step.type == "nop":
                continue
            where = f"{self.name}: gpu {rank} tb {tb} step {position}"
            if step.cnt < 1:
                raise InputError(f"{where}: cnt is {step.cnt}; use 1..71")
            gpu = self.gpus[rank]
            has = {"i": gpu.input_chunks, "o": gpu.output_chunks, "s": gpu.scratch_chunks}
            for takes_part, buffer, first in (
                (step.type in READING, step.srcbuf, step.srcoff),
                (step.type in WRITING, step.dstbuf, step.dstoff),
            ):
                if takes_part and not 0 <= first <= has[buffer] - step.cnt:
                    raise InputError(
                        f"{where}: {buffer}[{first}..{first + step.cnt - 1}], but {buffer} has {has[buffer]} chunks; "
                        f"mend the offset, cnt or {buffer}_chunks"
                    )

    def require_channels(self) -> None:
        """Raise `InputError` for the first threadblock on a channel that the program does not declare: loaders take it,
        and hang or corrupt data later."""
        for rank, gpu in enumerate(self.gpus):
            for tb, threadblock in enumerate(gpu.threadblocks):
                if not 0 <= threadblock.chan < self.nchannels:
                    raise InputError(
                        f"{self.name}: gpu {rank} tb {tb}: chan is {threadblock.chan}, but nchannels is "
                        f"{self.nchannels}; use 0..{self.nchannels - 1}, or mend nchannels"
                    )

    def _require_32_bits(self) -> None:
        numbers = [(self.nchannels, "nchannels"), (self.nchunks, "nchunksperloop")]
        for rank, gpu in enumerate(self.gpus):
            chunks = (gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks)
            numbers += [(value, f"gpu {rank}: chunks") for value in chunks]
            for tb, threadblock in enumerate(gpu.threadblocks):
                ends = (threadblock.send, threadblock.recv, threadblock.chan)
                numbers += [(value, f"gpu {rank} tb {tb}") for value in ends]
        for value, where in numbers:
            if abs(value) > INT32_MAX:
                raise InputError(f"{self.name}: {where}: {value} does not fit in 32 bits")

    def write(self, path: str | Path) -> None:
        """Write the program as MSCCL XML in its target's spelling, atomically."""
        from . import xml  # xml builds Programs, so it imports this file

        xml.write(self, path)

    @cached_property
    def core(self) -> _core.Program:
        """The same program in the C++ core. Raises `InputError` for numbers that it has no room for."""
        self._require_32_bits()
        op = {name: i for i, name in enumerate(STEP_TYPES)}
        buffer = {name: i for i, name in enumerate(BUFFERS)}
        gpus = [(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks) for gpu in self.gpus]
        threadblocks: list[tuple[int, ...]] = []
        steps: list[tuple[int, ...]] = []
        for rank, gpu in enumerate(self.gpus):
            for tb in gpu.threadblocks:
                row = len(threadblocks)
                threadblocks.append((rank, tb.send, tb.recv, tb.chan))
                steps += [
                    (row, op[s.type], buffer[s.srcbuf], s.srcoff, buffer[s.dstbuf], s.dstoff, s.cnt, s.depid, s.deps,
                     s.hasdep)
                    for s in tb.steps
                ]  # fmt: skip
        return _core.Program(
            collective=self.collective,
            protocol=self.protocol,
            channels=self.nchannels,
            chunks_per_loop=self.nchunks,
            in_place=self.inplace,
            out_of_place=self.outofplace,
            gpus=np.array(gpus, dtype=np.int64).reshape(-1, 3),
            threadblocks=np.array(threadblocks, dtype=np.int64).reshape(-1, 4),
            steps=np.array(steps, dtype=np.int64).reshape(-1, 10),
        )
