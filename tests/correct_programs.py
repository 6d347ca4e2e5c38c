"""Programs written by hand, one of each kind, that are right: what the checker must accept, and what tests break."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from teccl_msccl.program.program import Gpu, Program, Step, Threadblock


def program(
    collective: str,
    nchunks: int,
    gpus: Sequence[Gpu],
    *,
    protocol: str = "Simple",
    mode: str = "both",
    channels: int = 1,
) -> Program:
    return Program(
        name=collective,
        collective=collective,
        protocol=protocol,
        nchannels=channels,
        nchunks=nchunks,
        inplace=mode in ("both", "inplace"),
        outofplace=mode in ("both", "outofplace"),
        gpus=tuple(gpus),
        min_bytes=1024 * nchunks,
    )


def block(steps: Sequence[Step], send: int = -1, recv: int = -1, chan: int = 0) -> Threadblock:
    return Threadblock(send, recv, chan, tuple(steps))


def send(buffer: str, offset: int, cnt: int = 1, **dependency: int) -> Step:
    return Step("s", buffer, offset, "o", 0, cnt, **dependency)


def receive(buffer: str, offset: int, cnt: int = 1, hasdep: bool = False) -> Step:
    return Step("r", "i", 0, buffer, offset, cnt, hasdep=hasdep)


def ring_allgather(n: int = 3) -> Program:
    """Own copy first; then a threadblock that receives feeds one that sends."""

    def gpu(rank: int) -> Gpu:
        sends = [Step("cpy", "i", 0, "o", rank), send("o", rank)]
        sends += [send("o", (rank - hop) % n, depid=1, deps=hop - 1) for hop in range(1, n - 1)]
        receives = [receive("o", (rank - hop) % n, hasdep=hop < n - 1) for hop in range(1, n)]
        return Gpu(1, n, 0, (block(sends, send=(rank + 1) % n), block(receives, recv=(rank - 1) % n)))

    return program("allgather", n, [gpu(rank) for rank in range(n)])


def shipped_allgather(n: int = 3) -> Program:
    """In place only, as runtimes ship them: i_chunks=0, all from and to the output; a threadblock for each peer."""

    def gpu(rank: int) -> Gpu:
        peers = [peer for peer in range(n) if peer != rank]
        receives = [block([receive("o", peer)], recv=peer) for peer in peers]
        return Gpu(0, n, 0, (*receives, *(block([send("o", rank)], send=peer) for peer in peers)))

    return program("allgather", n, [gpu(rank) for rank in range(n)], mode="inplace")


def direct_alltoall(n: int = 3) -> Program:
    """A threadblock for each peer sends before it receives, so in place the chunk it overwrites is out already."""

    def gpu(rank: int) -> Gpu:
        peers = [peer for peer in range(n) if peer != rank]
        exchanges = [block([send("i", peer), receive("o", peer)], send=peer, recv=peer) for peer in peers]
        return Gpu(n, n, 0, (*exchanges, block([Step("cpy", "i", rank, "o", rank)])))

    return program("alltoall", n, [gpu(rank) for rank in range(n)])


def ring_reduce_scatter(n: int = 3) -> Program:
    """Partial sums travel the ring through scratch, and end in the output."""

    def gpu(rank: int) -> Gpu:
        steps = [send("i", (rank - 1) % n)]
        for hop in range(2, n):
            steps += [Step("rrc", "i", (rank - hop) % n, "s", hop - 2), send("s", hop - 2)]
        steps.append(Step("rrc", "i", rank, "o", 0))
        return Gpu(n, 1, n - 2, (block(steps, send=(rank + 1) % n, recv=(rank - 1) % n),))

    return program("reduce_scatter", n, [gpu(rank) for rank in range(n)])


def chain_broadcast(order: Sequence[int] = (1, 0, 2)) -> Program:
    """Two chunks in one step, forwarded as they arrive. The root is the first of `order`."""
    gpus = {
        order[0]: block([Step("cpy", "i", 0, "o", 0, 2), send("i", 0, 2)], send=order[1]),
        order[-1]: block([receive("o", 0, 2)], recv=order[-2]),
    }
    for before, rank, after in zip(order, order[1:], order[2:], strict=False):
        gpus[rank] = block([Step("rcs", "i", 0, "o", 0, 2)], send=after, recv=before)
    return program("broadcast", 2, [Gpu(2, 2, 0, (gpus[rank],)) for rank in range(len(order))])


def chain_reduce(order: Sequence[int] = (0, 2, 1)) -> Program:
    """Partial sums travel in flight to the root, the last of `order`."""
    gpus = {
        order[0]: block([send("i", 0)], send=order[1]),
        order[-1]: block([Step("rrc", "i", 0, "o", 0)], recv=order[-2]),
    }
    for before, rank, after in zip(order, order[1:], order[2:], strict=False):
        gpus[rank] = block([Step("rrs", "i", 0, "o", 0)], send=after, recv=before)
    return program("reduce", 1, [Gpu(1, 1, 0, (gpus[rank],)) for rank in range(len(order))])


def fused_ring_allreduce(n: int = 3) -> Program:
    def gpu(rank: int) -> Gpu:
        steps = [send("i", rank)]
        steps += [Step("rrs", "i", (rank - hop) % n, "o", 0) for hop in range(1, n - 1)]
        steps.append(Step("rrcs", "i", (rank + 1) % n, "o", (rank + 1) % n))
        steps += [Step("rcs", "i", 0, "o", (rank - hop) % n) for hop in range(n - 2)]
        steps.append(receive("o", (rank + 2) % n))
        return Gpu(n, n, 0, (block(steps, send=(rank + 1) % n, recv=(rank - 1) % n),))

    return program("allreduce", n, [gpu(rank) for rank in range(n)])


def all_pairs_allreduce(n: int = 4) -> Program:
    """Every rank reduces its chunk from scratch with fused `re` behind nops, then hands it to everyone."""

    def gpu(rank: int) -> Gpu:
        peers = [peer for peer in range(n) if peer != rank]
        arrivals = [Step("nop", "i", -1, "o", -1, 0, depid=1 + slot, deps=1) for slot in range(n - 2)]
        reductions = [Step("re", "s", slot, "o", rank, hasdep=slot == n - 2) for slot in range(n - 1)]
        reductions[0] = reductions[0]._replace(depid=n - 1, deps=1)
        local = block([Step("cpy", "i", rank, "o", rank), *arrivals, *reductions])
        result = {"depid": 0, "deps": len(local.steps) - 1}
        exchanges = [
            block(
                [send("i", peer), receive("s", slot, hasdep=True), send("o", rank, **result), receive("o", peer)],
                send=peer,
                recv=peer,
            )
            for slot, peer in enumerate(peers)
        ]
        return Gpu(n, n, n - 1, (local, *exchanges))

    return program("allreduce", n, [gpu(rank) for rank in range(n)])


def recursive_doubling_allgather(n: int = 8, protocol: str = "LL") -> Program:
    """Each round's pair sends all it has, then receives as much: the last round needs n/2 transfers in flight."""

    def gpu(rank: int) -> Gpu:
        blocks, half = [block([Step("cpy", "i", 0, "o", rank, hasdep=True)])], 1
        while half < n:
            peer, mine = rank ^ half, rank // half * half
            waits = [Step("nop", "i", -1, "o", -1, 0, depid=tb, deps=1) for tb in range(1, len(blocks))]
            last = {"depid": 0, "deps": 0}
            exchange = [send("o", mine, half, **last), receive("o", peer // half * half, half, hasdep=2 * half < n)]
            blocks.append(block([*waits, *exchange], send=peer, recv=peer))
            half *= 2
        # The number of nops grows by one a round, and with it the position of the receive that others wait for.
        numbered = [
            replace(b, steps=tuple(s._replace(deps=s.depid) if s.depid > 0 else s for s in b.steps)) for b in blocks
        ]
        return Gpu(1, n, 0, tuple(numbered))

    return program("allgather", n, [gpu(rank) for rank in range(n)], protocol=protocol)


def direct_gather(n: int = 3, root: int = 1) -> Program:
    peers = [peer for peer in range(n) if peer != root]
    at_root = [block([Step("cpy", "i", 0, "o", root)]), *(block([receive("o", peer)], recv=peer) for peer in peers)]
    sender = Gpu(1, n, 0, (block([send("i", 0)], send=root),))
    return program("gather", 1, [Gpu(1, n, 0, tuple(at_root)) if r == root else sender for r in range(n)])


def direct_scatter(n: int = 3, root: int = 2) -> Program:
    peers = [peer for peer in range(n) if peer != root]
    at_root = [block([Step("cpy", "i", root, "o", 0)]), *(block([send("i", peer)], send=peer) for peer in peers)]
    receiver = Gpu(n, 1, 0, (block([receive("o", 0)], recv=root),))
    return program("scatter", 1, [Gpu(n, 1, 0, tuple(at_root)) if r == root else receiver for r in range(n)])


CORRECT: dict[str, Callable[[], Program]] = {
    "ring allgather": ring_allgather,
    "shipped allgather": shipped_allgather,
    "direct alltoall": direct_alltoall,
    "ring reduce-scatter": ring_reduce_scatter,
    "chain broadcast": chain_broadcast,
    "chain reduce": chain_reduce,
    "fused ring allreduce": fused_ring_allreduce,
    "all-pairs allreduce": all_pairs_allreduce,
    "recursive doubling": lambda: recursive_doubling_allgather(4, "Simple"),
    "direct gather": direct_gather,
    "direct scatter": direct_scatter,
}


def edit(
    source: Program, rank: int, tb: int, steps: Callable[[list[Step]], None] | None = None, **fields: int
) -> Program:
    """`source` with the steps of one threadblock edited in place, or its fields replaced."""
    gpu = source.gpus[rank]
    old = gpu.threadblocks[tb]
    edited = list(old.steps)
    if steps:
        steps(edited)
    new = replace(old, steps=tuple(edited), **fields)
    blocks = (*gpu.threadblocks[:tb], new, *gpu.threadblocks[tb + 1 :])
    gpus = (*source.gpus[:rank], replace(gpu, threadblocks=blocks), *source.gpus[rank + 1 :])
    return replace(source, gpus=gpus)


def with_step(source: Program, rank: int, tb: int, position: int, **fields: object) -> Program:
    """`source` with fields of one step replaced."""

    def change(steps: list[Step]) -> None:
        steps[position] = steps[position]._replace(**fields)

    return edit(source, rank, tb, change)


def with_gpu(source: Program, rank: int, **fields: object) -> Program:
    """`source` with fields of one gpu replaced."""
    gpus = list(source.gpus)
    gpus[rank] = replace(gpus[rank], **fields)
    return replace(source, gpus=tuple(gpus))
