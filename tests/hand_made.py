"""Programs made by hand, one way or another for every collective, to execute without the synthesizer.

`k` is the number of chunks per share, moved by steps with cnt = k.
"""

from __future__ import annotations

from teccl_msccl.program.program import Gpu, Program, Step, Threadblock

ROOTED = ("broadcast", "reduce", "gather", "scatter")
SHARING = ("allgather", "reduce_scatter", "alltoall", "gather", "scatter")
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "alltoall", *ROOTED)

At = tuple[int, int]  # threadblock, step


class Plan:
    """The threadblocks of every rank, as steps are added to them."""

    def __init__(self, nranks: int) -> None:
        self.nranks = nranks
        self._steps: list[dict[tuple[int, int, int], list[Step]]] = [{} for _ in range(nranks)]

    def add(self, rank: int, type: str, src: tuple[str, int] = ("i", 0), dst: tuple[str, int] = ("o", 0), cnt: int = 1,
            send: int = -1, recv: int = -1, chan: int = 0, after: list[At] | None = None) -> At:  # fmt: skip
        """Add a step to the threadblock (send, recv, chan) of `rank`, after the steps named; where it stands."""
        home = self._steps[rank]
        steps = home.setdefault((send, recv, chan), [])
        tbs = list(home)
        awaited = list(after or [])
        for tb, step in awaited:
            home[tbs[tb]][step] = home[tbs[tb]][step]._replace(hasdep=True)
        for tb, step in awaited[:-1]:
            steps.append(Step("nop", depid=tb, deps=step, cnt=0))
        depid, deps = awaited[-1] if awaited else (-1, -1)
        steps.append(Step(type, *src, *dst, cnt, depid, deps))
        return tbs.index((send, recv, chan)), len(steps) - 1

    def program(self, collective: str, nchunks: int, scratch: int = 0, protocol: str = "Simple", inplace: bool = True,
                outofplace: bool = True, channels: int = 1) -> Program:  # fmt: skip
        share = nchunks // self.nranks
        inputs = share if collective in ("allgather", "gather") else nchunks
        outputs = share if collective in ("reduce_scatter", "scatter") else nchunks
        gpus = tuple(
            Gpu(inputs, outputs, scratch, tuple(Threadblock(*key, tuple(steps)) for key, steps in home.items()))
            for home in self._steps
        )
        return Program(f"{collective}-by-hand", collective, protocol, channels, nchunks, inplace, outofplace, gpus)


def direct(collective: str, n: int, k: int = 1, root: int = 0, protocol: str = "Simple") -> Program:
    """Every share goes straight from where it is to where it is wanted, each pair with its own threadblocks."""
    plan = Plan(n)
    ranks = range(n)
    scratch = 0
    match collective:
        case "allgather":
            for r in ranks:
                plan.add(r, "cpy", ("i", 0), ("o", r * k), k)
                for p in ranks:
                    if p != r:
                        plan.add(r, "s", ("i", 0), cnt=k, send=p)
                        plan.add(r, "r", dst=("o", p * k), cnt=k, recv=p)
        case "gather":
            for r in ranks:
                if r == root:
                    plan.add(r, "cpy", ("i", 0), ("o", r * k), k)
                else:
                    plan.add(r, "s", ("i", 0), cnt=k, send=root)
                    plan.add(root, "r", dst=("o", r * k), cnt=k, recv=r)
        case "scatter":
            for r in ranks:
                if r == root:
                    plan.add(r, "cpy", ("i", r * k), ("o", 0), k)
                else:
                    plan.add(root, "s", ("i", r * k), cnt=k, send=r)
                    plan.add(r, "r", dst=("o", 0), cnt=k, recv=root)
        case "broadcast":
            for r in ranks:
                if r == root:
                    plan.add(r, "cpy", ("i", 0), ("o", 0), k)
                else:
                    plan.add(root, "s", ("i", 0), cnt=k, send=r)
                    plan.add(r, "r", dst=("o", 0), cnt=k, recv=root)
        case "alltoall":  # in place, so every share is kept in scratch before it may be overwritten
            scratch = n * k
            for r in ranks:
                kept = plan.add(r, "cpy", ("i", 0), ("s", 0), n * k)
                plan.add(r, "cpy", ("s", r * k), ("o", r * k), k)
                for p in ranks:
                    if p != r:
                        plan.add(r, "s", ("s", p * k), cnt=k, send=p, after=[kept])
                        plan.add(r, "r", dst=("o", p * k), cnt=k, recv=p, after=[kept])
        case "reduce":
            last = plan.add(root, "cpy", ("i", 0), ("o", 0), k)
            for r in ranks:
                if r != root:
                    plan.add(r, "s", ("i", 0), cnt=k, send=root)
                    last = plan.add(root, "rrc", ("o", 0), ("o", 0), k, recv=r, after=[last])
        case "reduce_scatter":
            for r in ranks:
                last = plan.add(r, "cpy", ("i", r * k), ("o", 0), k)
                for p in ranks:
                    if p != r:
                        plan.add(r, "s", ("i", p * k), cnt=k, send=p)
                        last = plan.add(r, "rrc", ("o", 0), ("o", 0), k, recv=p, after=[last])
        case "allreduce":  # each rank reduces its share in scratch, then gives it to all
            scratch = k
            for r in ranks:
                last = plan.add(r, "cpy", ("i", r * k), ("s", 0), k)
                sent = []
                for p in ranks:
                    if p != r:
                        sent.append((p, plan.add(r, "s", ("i", p * k), cnt=k, send=p)))
                        last = plan.add(r, "rrc", ("s", 0), ("s", 0), k, recv=p, after=[last])
                plan.add(r, "cpy", ("s", 0), ("o", r * k), k, after=[last])
                for p, mine in sent:
                    plan.add(r, "s", ("s", 0), cnt=k, send=p, chan=1, after=[last])
                    plan.add(r, "r", dst=("o", p * k), cnt=k, recv=p, chan=1, after=[mine])
    nchunks = n * k if collective in (*SHARING, "allreduce") else k
    return plan.program(collective, nchunks, scratch, protocol, channels=2)


def staged_reduce(n: int, k: int = 1, root: int = 0) -> Program:
    """Everyone's share lands in the root's scratch; `re` steps add them up there, after a nop for a second wait."""
    plan = Plan(n)
    copied = plan.add(root, "cpy", ("i", 0), ("o", 0), k, chan=1)
    others = [r for r in range(n) if r != root]
    for slot, r in enumerate(others):
        plan.add(r, "s", ("i", 0), cnt=k, send=root)
        landed = plan.add(root, "r", dst=("s", slot * k), cnt=k, recv=r)
        plan.add(root, "re", ("s", slot * k), ("o", 0), k, chan=0, after=[copied, landed])
    return plan.program("reduce", k, (n - 1) * k)


def ring(collective: str, n: int, k: int = 1, protocol: str = "Simple") -> Program:
    """The ring of allgather, reduce_scatter or allreduce: one threadblock a rank, fused steps."""
    plan = Plan(n)
    for r in range(n):
        link = {"cnt": k, "send": (r + 1) % n, "recv": (r - 1) % n}
        chunk = [(r - hop) % n * k for hop in range(2 * n)]  # the share that passes rank r at each hop
        if collective == "allgather":
            plan.add(r, "cpy", ("i", 0), ("o", r * k), k)
            plan.add(r, "s", ("i", 0), **link)
            for hop in range(1, n - 1):
                plan.add(r, "rcs", dst=("o", chunk[hop]), **link)
            plan.add(r, "r", dst=("o", chunk[n - 1]), **link)
            continue
        first = 1 if collective == "reduce_scatter" else 0  # so that rank r ends up with share r, or r + 1
        plan.add(r, "s", ("i", chunk[first]), **link)
        for hop in range(first + 1, first + n - 1):
            plan.add(r, "rrs", ("i", chunk[hop]), **link)
        last = chunk[first + n - 1]
        if collective == "reduce_scatter":
            plan.add(r, "rrc", ("i", last), ("o", 0), **link)
            continue
        plan.add(r, "rrcs", ("i", last), ("o", last), **link)
        for hop in range(n, 2 * n - 2):
            plan.add(r, "rcs", dst=("o", chunk[hop]), **link)
        plan.add(r, "r", dst=("o", chunk[2 * n - 2]), **link)
    return plan.program(collective, n * k, protocol=protocol)


def both_receive_first() -> Program:
    """Two ranks that each wait for the other's message before they send their own."""
    plan = Plan(2)
    for r in range(2):
        landed = plan.add(r, "r", dst=("o", 1 - r), recv=1 - r)
        plan.add(r, "s", ("i", 0), send=1 - r, after=[landed])
        plan.add(r, "cpy", ("i", 0), ("o", r))
    return plan.program("allgather", 2)
