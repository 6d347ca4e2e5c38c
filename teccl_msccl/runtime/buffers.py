"""The buffers of a collective: how many chunks each rank has, which alias in place, and guards around them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..collective.demand import COLLECTIVES
from ..errors import InputError
from ..program.program import Program

#: Collectives of which every rank's input (output) is its 1/nranks share of the size.
_SHARED_INPUT = frozenset({"allgather", "gather"})
_SHARED_OUTPUT = frozenset({"reduce_scatter", "scatter"})

GUARD_BYTES = 4096
_GUARD = 0xA5
_ALIGNMENT = 64


@dataclass(frozen=True)
class Layout:
    """Input and output of every rank in chunks, and where one lies inside the other in place.

    The size of a collective is `nchunks` chunks (nccl-tests' convention, see `teccl_msccl.collective.demand`).
    """

    collective: str
    nranks: int
    nchunks: int
    input_chunks: int
    output_chunks: int

    @classmethod
    def of(cls, program: Program, where: str) -> Layout:
        """The layout of `program`'s collective. Raises `InputError` if it has none or the chunks don't divide."""
        if program.collective not in COLLECTIVES:
            raise InputError(
                f"{where}: collective {program.collective!r} has no reference to compare with; "
                f"run takes {', '.join(COLLECTIVES)}"
            )
        nranks, nchunks = program.nranks, program.chunks_per_size
        if program.nchunks < 1:
            raise InputError(f"{where}: nchunksperloop is {program.nchunks}; use 1 or more")
        shared = program.collective in _SHARED_INPUT | _SHARED_OUTPUT or program.collective == "alltoall"
        if shared and nchunks % nranks:
            raise InputError(
                f"{where}: nchunksperloop {nchunks} is not a multiple of the {nranks} ranks, so their shares of "
                f"{program.collective} are not whole chunks; write a multiple of {nranks}"
            )
        return cls(
            program.collective,
            nranks,
            nchunks,
            nchunks // nranks if program.collective in _SHARED_INPUT else nchunks,
            nchunks // nranks if program.collective in _SHARED_OUTPUT else nchunks,
        )

    def input_offset(self, rank: int) -> int:
        """In place: the chunk of the larger buffer at which `rank`'s input begins."""
        return rank * self.input_chunks if self.collective in _SHARED_INPUT else 0

    def output_offset(self, rank: int) -> int:
        """In place: the chunk of the larger buffer at which `rank`'s output begins."""
        return rank * self.output_chunks if self.collective in _SHARED_OUTPUT else 0

    def has_output(self, rank: int, root: int | None) -> bool:
        """Whether `rank`'s output is defined: reduce and gather leave it to the root."""
        return self.collective not in ("reduce", "gather") or rank == root


class Guarded:
    """`nbytes` of memory with guards on both sides that no rank may touch."""

    def __init__(self, nbytes: int) -> None:
        whole = np.empty(nbytes + 2 * GUARD_BYTES + _ALIGNMENT, np.uint8)
        start = GUARD_BYTES + -(whole.ctypes.data + GUARD_BYTES) % _ALIGNMENT
        self.data: NDArray[np.uint8] = whole[start : start + nbytes]
        self._guards = (whole[:start], whole[start + nbytes :])
        for guard in self._guards:
            guard.fill(_GUARD)

    def overrun(self) -> int:
        """How many guard bytes have changed."""
        return sum(int(np.count_nonzero(guard != _GUARD)) for guard in self._guards)


class RankBuffers:
    """One rank's input, output and scratch; in place, input and output are views of one buffer."""

    def __init__(self, layout: Layout, rank: int, scratch_chunks: int, chunk_bytes: int, in_place: bool) -> None:
        inputs, outputs = layout.input_chunks * chunk_bytes, layout.output_chunks * chunk_bytes
        scratch = Guarded(scratch_chunks * chunk_bytes)
        if in_place:
            shared = Guarded(max(inputs, outputs))
            i, o = layout.input_offset(rank) * chunk_bytes, layout.output_offset(rank) * chunk_bytes
            self.input, self.output = shared.data[i : i + inputs], shared.data[o : o + outputs]
            self._all: tuple[Guarded, ...] = (shared, scratch)
        else:
            separate = (Guarded(inputs), Guarded(outputs))
            self.input, self.output = (each.data for each in separate)
            self._all = (*separate, scratch)
        self.scratch = scratch.data

    @property
    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
        return self.input, self.output, self.scratch

    def overrun(self) -> int:
        """Guard bytes changed around any of the buffers."""
        return sum(each.overrun() for each in self._all)


def require_memory(nbytes: int, what: str) -> None:
    """Raise `InputError` unless this machine has `nbytes` to spare."""
    available = _available_bytes()
    if nbytes > available:
        raise InputError(
            f"{what} need {nbytes / 1e9:.3g} GB and this machine has {available / 1e9:.3g} GB to spare; "
            "choose a smaller --size, or a program with fewer chunks"
        )


def _available_bytes() -> int:
    """Memory that can be had without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def scratch_chunks(program: Program, rank: int, where: str) -> int:
    """How much scratch `rank` declares. Raises `InputError` if negative."""
    chunks: Any = program.gpus[rank].scratch_chunks
    if chunks < 0:
        raise InputError(f"{where}: gpu {rank}: s_chunks is {chunks}; use 0 or more")
    return int(chunks)
