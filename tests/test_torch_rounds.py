"""Rounds of grouped messages, executed by threads whose messages wait for each other as NCCL's do."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict

import hand_made
import pytest
from test_torch_plan import expected

from teccl_msccl.torch.programs import Served

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'teccl-msccl[torch]'")
NRANKS = 4
SECONDS = 5.0


class Wires:
    def __init__(self) -> None:
        self.data: dict = defaultdict(queue.Queue)
        self.taken: dict = defaultdict(queue.Queue)


class Rendezvous:
    """One rank's messages: a group is over when all its sends have been taken and all its receives have come."""

    def __init__(self, rank: int, wires: Wires) -> None:
        self.rank, self.wires = rank, wires

    def _start_coalescing(self) -> None:
        self.sends, self.receives = [], []

    def send(self, tensors, peer, tag) -> None:
        self.sends.append((peer, tensors[0]))

    def recv(self, tensors, peer, tag) -> None:
        self.receives.append((peer, tensors[0]))

    def _end_coalescing(self) -> Rendezvous:
        for peer, tensor in self.sends:
            self.wires.data[self.rank, peer].put(tensor)  # read when it is taken
        for peer, tensor in self.receives:
            tensor.copy_(self.wires.data[peer, self.rank].get(timeout=SECONDS))
            self.wires.taken[peer, self.rank].put(None)
        for peer, _ in self.sends:
            self.wires.taken[self.rank, peer].get(timeout=SECONDS)
        return self

    def wait(self) -> None:
        pass


def executed(program, in_place: bool, share: int, inputs, output_shares: int):
    from teccl_msccl.torch.grouped import Grouped

    wires, failures = Wires(), []
    outputs = [given if in_place else torch.full((output_shares * share,), -1, dtype=torch.int64) for given in inputs]

    def rank_of(rank: int) -> None:
        try:
            served = Served(program, 0, 1 << 60, "", rank)
            Grouped(Rendezvous(rank, wires)).run(served, share, inputs[rank], outputs[rank], "sum", None)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(NRANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return outputs


@pytest.mark.parametrize("share", [1, 7, 24])
@pytest.mark.parametrize(
    ("make", "collective"),
    [
        *((hand_made.direct, name) for name in ("allgather", "alltoall", "reduce_scatter", "allreduce", "broadcast")),
        *((hand_made.ring, name) for name in ("allgather", "reduce_scatter", "allreduce")),
    ],
)
def test_rounds_compute_the_collective(make, collective, share) -> None:
    program = make(collective, NRANKS, 2, root=1) if make is hand_made.direct else make(collective, NRANKS, 2)
    in_place = collective in ("allreduce", "broadcast")
    input_shares = NRANKS if collective in ("alltoall", "reduce_scatter") else 1
    output_shares = NRANKS if collective in ("alltoall", "allgather") else 1
    inputs = [torch.arange(input_shares * share) * 10 ** (2 * rank) for rank in range(NRANKS)]
    given = [row.clone() for row in inputs]
    outputs = executed(program, in_place, share, inputs, output_shares)
    for rank in range(NRANKS):
        rows = [
            sum(given[r][position * share : (position + 1) * share] for r, position in sources)
            for sources in expected(collective, rank, 1)
        ]
        assert torch.equal(outputs[rank], torch.cat(rows)), (rank, outputs[rank])


def test_synthesized_programs_in_rounds() -> None:
    """A ring passes everything on: the most hazards."""
    from teccl_msccl.topology.catalog import load
    from teccl_msccl.torch.programs import _synthesized

    program = _synthesized(load("ring-4").topology, "allreduce", 10**6, 0)
    inputs = [torch.arange(101) * 10 ** (2 * rank) for rank in range(NRANKS)]
    total = sum(row.clone() for row in inputs)
    assert all(torch.equal(output, total) for output in executed(program, True, 101, inputs, 1))


def test_the_oracle_sees_what_is_left_out(monkeypatch) -> None:
    """Nothing that came is added."""
    from teccl_msccl.torch import rounds

    right = rounds._Rank._compute
    monkeypatch.setattr(
        rounds._Rank, "_compute", lambda self, kind, at, source, others, came: right(self, "copy", at, at, (), 0)
    )
    inputs = [torch.arange(24) * 10 ** (2 * rank) for rank in range(NRANKS)]
    total = sum(row.clone() for row in inputs)
    with pytest.raises(AssertionError):
        outputs = executed(hand_made.ring("allreduce", NRANKS, 2), True, 24, inputs, 1)
        assert all(torch.equal(output, total) for output in outputs)
