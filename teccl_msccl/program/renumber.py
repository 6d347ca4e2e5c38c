"""Renumbering: the same program for the same machine with its ranks numbered another way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import Refused
from .program import Gpu, Program, Step

#: Buffers whose chunks are ranks' shares, by collective (none: renumbering moves no chunk).
_SHARED = {
    "allgather": "o",
    "gather": "o",
    "reduce_scatter": "i",
    "scatter": "i",
    "alltoall": "io",
}


def renumbered(program: Program, permutation: Sequence[int]) -> Program:
    """`program` with its rank permutation[r] called r; what belongs to a rank's share moves with it.

    O(steps). Raises `Refused` where a step moves several ranks' shares that are no longer neighbours, or a share is
    not whole chunks.
    """
    if sorted(permutation) != list(range(program.nranks)):
        raise Refused(f"{program.name}: {list(permutation)} does not number its {program.nranks} ranks")
    new = {old: rank for rank, old in enumerate(permutation)}
    new[-1] = -1
    shared = _SHARED.get(program.collective, "")
    share, rest = divmod(program.chunks_per_size, program.nranks) if shared else (0, 0)
    if rest:
        raise Refused(f"{program.name}: {program.chunks_per_size} chunks are no whole shares of {program.nranks} ranks")

    def moved(buffer: str, offset: int, count: int) -> int:
        if buffer not in shared or offset < 0:
            return offset
        first, last = offset // share, (offset + count - 1) // share
        if any(new[rank + 1] != new[rank] + 1 for rank in range(first, last)):
            raise Refused(f"{program.name}: a step moves the shares of ranks {first} to {last} at once; build it anew")
        return new[first] * share + offset % share

    def step(old: Step) -> Step:
        if old.type == "nop":
            return old
        count = max(old.cnt, 1)
        source = moved(old.srcbuf, old.srcoff, count) if old.type not in ("r", "rcs") else old.srcoff
        target = moved(old.dstbuf, old.dstoff, count) if old.type not in ("s", "rrs") else old.dstoff
        return old._replace(srcoff=source, dstoff=target)

    def gpu(old: Gpu) -> Gpu:
        blocks = (
            replace(tb, send=new[tb.send], recv=new[tb.recv], steps=tuple(map(step, tb.steps)))
            for tb in old.threadblocks
        )
        return replace(old, threadblocks=tuple(blocks))

    if list(permutation) == list(range(program.nranks)):
        return program
    return replace(program, gpus=tuple(gpu(program.gpus[old]) for old in permutation))
