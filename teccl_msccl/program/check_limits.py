"""What a target's loader refuses, or accepts and then hangs on (MSCCL XML reference §2–§4, §9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from .finding import Finding, error, warning
from .program import INT32_MAX, RECEIVING, SENDING, Gpu, Program
from .targets import FEWEST_SMS, MAX_NODES_PER_RANK, MOST_SCRATCH_BYTES, Target

_FUSED = RECEIVING & SENDING | {"rrc"}
_MAX_NAME = 255
_MSCCL_NAME = 63
_LL_CHUNK_BYTES = 16


def limit_findings(program: Program, target: Target) -> Iterator[Finding]:
    """Everything about `program` that `target` does not take, in the order of the file."""
    yield from _header(program, target)
    yield from _byte_range(program, target)
    for rank, gpu in enumerate(program.gpus):
        yield from _buffers(rank, gpu)
        if target.checks_buffers:
            yield from _agreement(program, rank, gpu, target)
        yield from _amounts(program, rank, gpu, target)
        yield from _threadblocks(program, rank, gpu, target)
        yield from _channels(rank, gpu, target)
    if not target.fused_receives:
        yield from _fused(program, target)
    if target.scratch_for_max_bytes:
        yield from _scratch(program, target)
    yield from _residency(program)
    yield from _counts(program)


def _header(program: Program, target: Target) -> Iterator[Finding]:
    if program.collective not in target.collectives:
        takes = ", ".join(sorted(target.collectives.values()))
        yield error("collective", f"{target.name} does not take coll {program.collective!r}, but {takes}")
    if len(program.name) > _MAX_NAME:
        yield error("name", f"the name has {len(program.name)} characters; more than {_MAX_NAME} overflow the loaders")
    elif len(program.name) > _MSCCL_NAME:
        yield warning("name", f"the name has {len(program.name)} characters; msccl keeps {_MSCCL_NAME}")
    if not program.inplace and not program.outofplace and target.both_modes:
        yield error("mode", "the file is neither for in-place nor for out-of-place buffers, so it is never selected")
    if program.inplace and program.outofplace and not target.both_modes:
        yield warning("mode", f"{target.name} takes one mode a file, this one for in-place calls only")
    if program.inplace and program.collective in target.inplace_refused:
        yield error("mode", f"{target.name} never runs {program.collective} in place")
    if program.protocol == "Simple" and program.collective in target.suspect_simple:
        text = f"{target.name} is said to go wrong with a Simple {program.collective} across hosts; prefer LL there"
        yield warning("suspect", text)
    if not 1 <= program.nchannels <= target.max_channels:
        yield error("channels", f"nchannels is {program.nchannels}; {target.name} takes 1 to {target.max_channels}")
    if not 1 <= program.nchunks <= INT32_MAX:
        yield error("size", f"nchunksperloop is {program.nchunks}; it must be at least 1 and fit in 32 bits")
    if program.nranks >= MAX_NODES_PER_RANK:
        yield error("ranks", f"{program.nranks} gpu elements; a rank's view holds {MAX_NODES_PER_RANK} nodes in all")


def _byte_range(program: Program, target: Target) -> Iterator[Finding]:
    low, high = program.min_bytes, program.max_bytes
    if low < 0 or high < 0:
        yield error("byte-range", f"minBytes {low}, maxBytes {high}: neither may be negative")
    elif target.exclusive_max_bytes and high <= low:
        text = f"{target.name} takes sizes from minBytes {low} to below maxBytes {high}: none matches"
        yield error("byte-range", text)
    elif 0 < high < low:
        yield error("byte-range", f"minBytes {low} is above maxBytes {high}, so no size matches")
    least = _LL_CHUNK_BYTES * program.nchunks
    if program.protocol == "LL" and 0 <= low < least:
        yield warning("small-bytes", f"LL goes wrong below {_LL_CHUNK_BYTES} bytes a chunk; minBytes should be {least}")


def _buffers(rank: int, gpu: Gpu) -> Iterator[Finding]:
    sizes = {"i_chunks": gpu.input_chunks, "o_chunks": gpu.output_chunks, "s_chunks": gpu.scratch_chunks}
    for attribute, chunks in sizes.items():
        if not 0 <= chunks <= INT32_MAX:
            yield error("size", f"{attribute} is {chunks}; it must be at least 0 and fit in 32 bits", rank)


def _agreement(program: Program, rank: int, gpu: Gpu, target: Target) -> Iterator[Finding]:
    for attribute, chunks, shared in (
        ("i_chunks", gpu.input_chunks, program.collective == "allgather"),
        ("o_chunks", gpu.output_chunks, program.collective == "reduce_scatter"),
    ):
        due = program.nchunks // program.nranks if shared else program.nchunks
        if chunks not in (0, due) or (chunks and shared and chunks * program.nranks != program.nchunks):
            of = " (nchunksperloop / ngpus)" if shared else " (nchunksperloop)"
            yield error("buffer-chunks", f"{attribute} is {chunks}; {target.name} takes {due}{of} or 0", rank)


def _scratch(program: Program, target: Target) -> Iterator[Finding]:
    """One warning for the file: scratch is allocated at the start, whatever sizes are called."""
    chunks, rank = max((gpu.scratch_chunks, -rank) for rank, gpu in enumerate(program.gpus))
    largest = program.max_bytes - target.exclusive_max_bytes
    size = chunks * largest // max(program.nchunks, 1)
    if size > MOST_SCRATCH_BYTES:
        text = f"{target.name} allocates {size / 1e9:.3g} GB of scratch at its start, for maxBytes; lower maxBytes"
        yield warning("scratch", text, -rank)


def _amounts(program: Program, rank: int, gpu: Gpu, target: Target) -> Iterator[Finding]:
    blocks = len(gpu.threadblocks)
    if blocks > target.max_threadblocks:
        yield error("threadblocks", f"{blocks} threadblocks; {target.name} takes {target.max_threadblocks}", rank)
    for tb, threadblock in enumerate(gpu.threadblocks):
        steps = len(threadblock.steps)
        if steps > target.max_steps:
            yield error("steps", f"{steps} steps, nops included; {target.name} takes {target.max_steps}", rank, tb)
    nodes = 1 + program.nranks + blocks + sum(len(threadblock.steps) for threadblock in gpu.threadblocks)
    if nodes > MAX_NODES_PER_RANK:
        yield error("nodes", f"its view of the file has {nodes} nodes; loaders hold {MAX_NODES_PER_RANK}", rank)


def _threadblocks(program: Program, rank: int, gpu: Gpu, target: Target) -> Iterator[Finding]:
    last = program.nranks - 1
    for tb, threadblock in enumerate(gpu.threadblocks):
        for attribute, peer in (("send", threadblock.send), ("recv", threadblock.recv)):
            if peer == rank:
                yield error("peer", f"{attribute}={peer} is the gpu itself", rank, tb)
            elif not -1 <= peer <= last:
                yield error("peer", f"{attribute}={peer}; ranks go from 0 to {last}, and -1 is none", rank, tb)
        if not 0 <= threadblock.chan < min(program.nchannels, target.max_channels):
            declared = f"nchannels is {program.nchannels}, {target.name} has {target.max_channels}"
            yield error("channel", f"chan={threadblock.chan}, but {declared}", rank, tb)
        if not -1 <= threadblock.chan <= INT32_MAX:
            yield error("size", f"chan={threadblock.chan} does not fit in 32 bits", rank, tb)


def _channels(rank: int, gpu: Gpu, target: Target) -> Iterator[Finding]:
    most = target.max_threadblocks_per_channel
    for verb, users in (
        ("send", Counter(tb.chan for tb in gpu.threadblocks if tb.send >= 0)),
        ("receive", Counter(tb.chan for tb in gpu.threadblocks if tb.recv >= 0)),
    ):
        for channel, count in users.items():
            if count > most:
                text = f"{count} threadblocks {verb} on channel {channel}; {target.name} takes {most}"
                yield error("channel-crowded", text, rank)


def _fused(program: Program, target: Target) -> Iterator[Finding]:
    for rank, tb, position, step in program.steps():
        if step.type in _FUSED:
            yield error("fused", f"{target.name} does not execute {step.type}; receive first", rank, tb, position)


def handover_findings(handovers: Iterable[Finding], program: Program, target: Target) -> Iterator[Finding]:
    """Of what threadblocks hand each other in another buffer than the output, what `target` does not fence. A warning:
    it runs such files, and its vendor ships some, whose reads go past the caches."""
    if not target.fences_output_only:
        return
    for found in handovers:
        if found.code == "handover-i" or program.protocol == "LL":
            advice = "hand it over in the output" if found.code == "handover-i" else "under LL only the output will do"
            text = f"{found.text}, which {target.name} does not fence; {advice} to be sure"
            yield found._replace(code="handover", text=text, level="warning")


def _residency(program: Program) -> Iterator[Finding]:
    """One warning for the file: which GPU will run it, the file does not say."""
    blocks, rank = max((len(gpu.threadblocks), -rank) for rank, gpu in enumerate(program.gpus))
    if blocks > FEWEST_SMS:
        text = f"{blocks} threadblocks must all be resident at once; a V100 has {FEWEST_SMS} SMs"
        yield warning("co-resident", text, -rank)


def _counts(program: Program) -> Iterator[Finding]:
    """One warning for the file: some versions of msccl lack a synchronisation where counts differ."""
    mixed = [
        (rank, tb)
        for rank, gpu in enumerate(program.gpus)
        for tb, threadblock in enumerate(gpu.threadblocks)
        if len({step.cnt for step in threadblock.steps if step.type != "nop"}) > 1
    ]
    if mixed:
        text = f"steps of different cnt in {len(mixed)} threadblocks, this the first; msccl before its PR 39 goes wrong"
        yield warning("mixed-counts", text, *mixed[0])
