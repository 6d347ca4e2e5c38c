"""Small machines and programs for tests of the simulation."""

from teccl_msccl.program.program import Gpu, Program, Step, Threadblock
from teccl_msccl.topology.model import Link, Node, Topology

MIB = 2**20


def topology(nranks: int, links: list[tuple], switches: int = 0, threadblock_GBps: float | None = None) -> Topology:
    """GPUs 0 … nranks−1, then switches; `links`: (src, dst, GB/s, α[, kind]), both directions."""
    nodes = [Node(i, "gpu", rank=i) for i in range(nranks)]
    nodes += [Node(nranks + i, "switch") for i in range(switches)]
    both = [link for a, b, *figures in links for link in ((a, b, *figures), (b, a, *figures))]
    made = tuple(Link(i, *link) for i, link in enumerate(both))
    return Topology("machine", tuple(nodes), made, threadblock_GBps=threadblock_GBps)


def ring(nranks: int, bandwidth: float = 25, alpha: float = 0.7, **options) -> Topology:
    return topology(nranks, [(i, (i + 1) % nranks, bandwidth, alpha) for i in range(nranks)], **options)


def star(nranks: int, bandwidth: float = 25, alpha: float = 0.3) -> Topology:
    return topology(nranks, [(i, nranks, bandwidth, alpha) for i in range(nranks)], switches=1)


def line(nranks: int, bandwidth: float = 25, alpha: float = 0.7, **options) -> Topology:
    return topology(nranks, [(i, i + 1, bandwidth, alpha) for i in range(nranks - 1)], **options)


def program(tbs: list[list[tuple]], nchunks: int = 1, protocol: str = "Simple") -> Program:
    """`tbs`: for each rank (send, recv, channel, steps)."""
    gpus = tuple(Gpu(64, 64, 64, tuple(Threadblock(s, r, c, tuple(steps)) for s, r, c, steps in rank)) for rank in tbs)
    return Program("test", "allgather", protocol, 1, nchunks, False, True, gpus)


def ring_allgather(nranks: int, protocol: str = "Simple") -> Program:
    def steps(rank):
        passed_on = [Step("rcs", dstoff=(rank - k) % nranks) for k in range(1, nranks - 1)]
        return [Step("s"), *passed_on, Step("r", dstoff=(rank + 1) % nranks)]

    tbs = [[((rank + 1) % nranks, (rank - 1) % nranks, 0, steps(rank))] for rank in range(nranks)]
    return program(tbs, nranks, protocol)


def chain(nranks: int, protocol: str = "Simple", count: int = 1) -> Program:
    """A broadcast down a line."""
    middle = [[(rank + 1, rank - 1, 0, [Step("rcs", cnt=count)])] for rank in range(1, nranks - 1)]
    last = (-1, nranks - 2, 0, [Step("r", cnt=count)])
    return program([[(1, -1, 0, [Step("s", cnt=count)])], *middle, [last]], count, protocol)


def exchange(nranks: int) -> Program:
    """Everybody sends to everybody, a threadblock per direction and peer."""

    def threadblocks(rank):
        for distance in range(1, nranks):
            yield ((rank + distance) % nranks, -1, 0, [Step("s")])
            yield (-1, (rank - distance) % nranks, 0, [Step("r")])

    return program([list(threadblocks(rank)) for rank in range(nranks)], nranks)
