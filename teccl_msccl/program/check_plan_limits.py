"""What MSCCL++'s executor refuses of a plan, or reads past the end of its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .finding import Finding, error, warning
from .plan_file import Op, PlanFile, PlanGpu, PlanThreadblock
from .plan_memory import root_in_place
from .plan_packets import PACKETS, PacketParts, packet_parts
from .targets import PLAN_PROTOCOLS, PlanLimits

#: Local buffers that an operation may name besides one for every channel.
_LOCAL_PER_OPERATION = 2
_MOST_THREADS = 1024
_WARP = 32
#: Operations on packets whose first packets go to the own scratch.
_COPIES = frozenset({"cpkt", "recpkt", "recspkt"})
_CHANNEL_OPS = frozenset({"signal", "wait", "rlxsignal", "rlxwait", "flush"})


def plan_limit_findings(plan: PlanFile, limits: PlanLimits) -> Iterator[Finding]:
    """Everything about `plan` that the executor does not take, in the order of the file."""
    yield from _header(plan, limits)
    yield from _unpaired(plan)
    for rank, gpu in enumerate(plan.gpus):
        yield from _gpu(plan, rank, gpu, limits)
        for tb, block in enumerate(gpu.threadblocks):
            yield from _threadblock(rank, tb, block, limits)
            for op in block.ops:
                yield from _operation(plan, rank, tb, op, limits)
                yield from _packets(plan, rank, tb, op)
    if plan.protocol == "LL":
        yield from _overlaid(plan)


def _header(plan: PlanFile, limits: PlanLimits) -> Iterator[Finding]:
    if plan.collective not in limits.collectives.values():
        takes = ", ".join(limits.collectives.values())
        yield error("collective", f"mscclpp does not take {plan.collective!r}, but {takes}")
    if plan.inplace and plan.collective in ("gather", "scatter") and root_in_place(plan) is None:
        yield error("mode", f"which rank is the root of this in-place {plan.collective} does not show")
    if plan.protocol not in PLAN_PROTOCOLS:
        yield error("protocol", f"protocol {plan.protocol!r}; mscclpp has {' and '.join(PLAN_PROTOCOLS)}")
    if not 1 <= plan.threads <= _MOST_THREADS or plan.threads % _WARP:
        yield error(
            "threads", f"num_threads_per_block is {plan.threads}; use a multiple of {_WARP} up to {_MOST_THREADS}"
        )
    if plan.alignment % limits.alignment:
        yield error("alignment", f"buffer_alignment is {plan.alignment}; use a multiple of {limits.alignment}")
    if plan.min_bytes > plan.max_bytes:
        yield error("byte-range", f"min_message_size {plan.min_bytes} is above max_message_size {plan.max_bytes}")
    yield from _offsets(plan, limits)


def _offsets(plan: PlanFile, limits: PlanLimits) -> Iterator[Finding]:
    scratch = max(gpu.scratch_chunks for gpu in plan.gpus)
    room = scratch * (2 if plan.protocol == "LL" else 1) * (2 if plan.double_scratch else 1)
    largest = max(room, *(max(gpu.input_chunks, gpu.output_chunks) for gpu in plan.gpus))
    message = max(gpu.output_chunks if plan.collective == "allgather" else gpu.input_chunks for gpu in plan.gpus)
    if message and plan.max_bytes * largest // message > limits.max_offset:
        highest = limits.max_offset * message // largest
        yield warning(
            "offset", f"offsets are kept in 32 bits, so sizes above {highest} go wrong; lower max_message_size"
        )
    if plan.reuse_resources and message and plan.max_bytes * room // message > limits.shared_scratch_bytes:
        text = f"the scratch that plans share has {limits.shared_scratch_bytes} bytes, too few for max_message_size"
        yield warning("scratch", text)


def _unpaired(plan: PlanFile) -> Iterator[Finding]:
    """The k-th channel of a type to a peer is joined to the peer's k-th back."""
    for rank, gpu in enumerate(plan.gpus):
        for kind, peers in gpu.peers.items():
            if kind == "switch":
                continue
            for peer, count in sorted(Counter(peers).items()):
                back = plan.gpus[peer].peers.get(kind, ()).count(rank)
                if back != count:
                    yield error("channel", f"{count} {kind} channels to rank {peer}, which has {back} back", rank)


def _gpu(plan: PlanFile, rank: int, gpu: PlanGpu, limits: PlanLimits) -> Iterator[Finding]:
    blocks = len(gpu.threadblocks)
    if blocks > limits.max_threadblocks:
        text = f"{blocks} threadblocks must all be resident at once; a V100 has {limits.max_threadblocks} SMs"
        yield warning("co-resident", text, rank)
    if len(gpu.semaphores) > limits.max_semaphores:
        yield error("semaphores", f"{len(gpu.semaphores)} semaphores; mscclpp has {limits.max_semaphores}", rank)
    for buffer, name in (("i", "input_chunks"), ("o", "output_chunks")):
        if not gpu.chunks(buffer):
            yield error("chunks", f"{name} is 0, by which the executor divides", rank)
    if plan.collective in limits.collectives.values():
        inputs, outputs = gpu.input_chunks, gpu.output_chunks
        factor = len(plan.gpus)
        spread, gathered = (inputs, outputs * factor), (inputs * factor, outputs)
        due = {"allgather": gathered, "gather": gathered, "reducescatter": spread, "scatter": spread}
        left, right = due.get(plan.collective, (inputs, outputs))
        if left != right:
            text = f"{inputs // plan.parts} input and {outputs // plan.parts} output chunks"
            yield error("chunks", f"{text} do not make a {plan.collective}", rank)
        if plan.collective == "alltoall" and inputs // plan.parts % factor:
            yield error("chunks", f"{inputs // plan.parts} chunks are no whole number for each of {factor} ranks", rank)


def _threadblock(rank: int, tb: int, block: PlanThreadblock, limits: PlanLimits) -> Iterator[Finding]:
    if block.operations > limits.max_operations:
        yield error("operations", f"{block.operations} operations; mscclpp holds {limits.max_operations}", rank, tb)
    for what, counts in (("channels", block.channels_by_type), ("remote buffers", block.remote_by_type)):
        for kind, count in counts.items():
            if count > limits.max_channels:
                yield error("channels", f"{count} {kind} {what}; mscclpp holds {limits.max_channels}", rank, tb)


def _operation(plan: PlanFile, rank: int, tb: int, op: Op, limits: PlanLimits) -> Iterator[Finding]:
    position = op.position
    if len(op.channels) > limits.max_channels_per_operation:
        text = f"{op.name} on {len(op.channels)} channels; mscclpp takes {limits.max_channels_per_operation}"
        yield error("channels", text, rank, tb, position)
    most = limits.max_channels_per_operation + _LOCAL_PER_OPERATION
    for parts in (op.sources, op.targets):
        if len(parts) > most:
            yield error("parts", f"{op.name} on {len(parts)} buffers; mscclpp takes {most}", rank, tb, position)
        for part in parts:
            for owner in part.ranks:
                chunks = plan.gpus[owner].chunks(part.buffer)
                if part.first + part.size > chunks:
                    last = plan.chunk(part.first + part.size - 1)
                    text = (
                        f"{op.name} goes to chunk {last} of {part.buffer}, and rank {owner} has {chunks // plan.parts}"
                    )
                    yield error("bounds", text, rank, tb, position)
    if op.name != "flush" and len({part.size for part in (*op.sources, *op.targets)}) > 1:
        yield error("parts", f"{op.name} on buffers of different sizes", rank, tb, position)
    if op.name in _CHANNEL_OPS and not op.channels:
        yield error("channels", f"{op.name} names no channel", rank, tb, position)
    if op.name == "flush" and op.channel_type != "port":
        yield error("channels", "flush is for port channels only", rank, tb, position)
    if op.name == "flush" and not op.targets:
        yield warning("flush", "the executor flushes as many channels as there are outputs: none", rank, tb, position)
    if op.name == "barrier" and op.barrier >= limits.max_barriers:
        yield error("barrier", f"barrier {op.barrier}; mscclpp has {limits.max_barriers}", rank, tb, position)
    if op.name == "put" and len({part.buffer for part in op.sources}) > 1 and op.channel_type == "memory":
        yield error("parts", "the executor takes the first source's buffer for all", rank, tb, position)
    if op.name == "get" and any(s.first != t.first for s, t in zip(op.sources, op.targets, strict=False)):
        yield error(
            "parts", "the executor takes the places of a get's source and target for each other", rank, tb, position
        )


def _packets(plan: PlanFile, rank: int, tb: int, op: Op) -> Iterator[Finding]:
    """Packets are the protocol LL's, and lie in scratch."""
    if op.name not in PACKETS:
        return
    if plan.protocol != "LL":
        yield error("packets", f"{op.name} needs protocol LL, not {plan.protocol}", rank, tb, op.position)
    parts = packet_parts(op)
    if any(part.buffer != "s" for part in (*parts.packet_sources, *parts.packet_targets)):
        yield error("packets", f"{op.name} has packets outside scratch", rank, tb, op.position)
    own = parts.packet_targets[: op.name in _COPIES]
    if any(part.ranks != (rank,) for part in (*parts.packet_sources, *own)):
        yield error("packets", f"{op.name} takes packets of another rank for its own", rank, tb, op.position)
    if not op.sources or not op.targets:
        yield error("parts", f"{op.name} needs a source and a target", rank, tb, op.position)
    if op.channel_type == "port" and len(op.channels) < len(op.targets):
        yield error("channels", f"{op.name} has more targets than channels", rank, tb, op.position)


def _overlaid(plan: PlanFile) -> Iterator[Finding]:
    """The k-th packet lies where plain chunks 2k and 2k + 1 of scratch would."""
    plain, packets = ([set[int]() for _ in plan.gpus] for _ in range(2))
    for op in (op for gpu in plan.gpus for block in gpu.threadblocks for op in block.ops):
        parts = packet_parts(op) if op.name in PACKETS else PacketParts(op.sources, (), op.targets)
        for used, of in ((plain, parts.plain), (packets, parts.packets)):
            for part in (part for part in of if part.buffer == "s"):
                for rank in part.ranks:
                    used[rank] |= set(range(part.first, part.first + part.size))
    for rank, (data, flagged) in enumerate(zip(plain, packets, strict=True)):
        both = sorted(k for k in flagged if 2 * k in data or 2 * k + 1 in data)
        if both:
            yield error("packets", f"packet {plan.chunk(both[0])} of scratch lies where plain data is, too", rank)
