"""Programs through memory that ranks share, executed by threads: any sizes, many rounds, and ranks that fall out."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import hand_made
import numpy as np
import pytest
from test_torch_plan import expected

from teccl_msccl import _core
from teccl_msccl.torch.exchange import exchanges_of
from teccl_msccl.torch.plan import plans_of

NRANKS = 4
BANK_BYTES = 4096  # so small that sizes below take several rounds


class Host:
    """Segments as the ranks' processes have them."""

    def __init__(self, nranks: int = NRANKS, pidfds: list[int] | None = None) -> None:
        self.segments = [np.zeros(_core.segment_bytes(BANK_BYTES), np.uint8) for _ in range(nranks)]
        self.ranks = [
            _core.SharedRanks(rank, self.segments, pidfds=pidfds or [-1] * nranks, eager=0) for rank in range(nranks)
        ]

    def run(self, rank, program, in_place, share, given, output, *, rounds=None, timeout=20.0) -> int:
        exchange, _ = exchanges_of(plans_of(program, in_place, 1, True), rank)
        rounds = rounds or self.ranks[rank].rounds_for(exchange, share, 8)
        scratch = np.empty(exchange.scratch_bytes(share, rounds, 8), np.uint8)
        self.ranks[rank].run(
            exchange, share=share, rounds=rounds, dtype="int64", op="sum", timeout=timeout, traced=False,
            input=(given.ctypes.data, given.nbytes), output=(output.ctypes.data, output.nbytes),
            scratch=(scratch.ctypes.data, scratch.nbytes),
        )  # fmt: skip
        return rounds


def together(action, nranks: int = NRANKS) -> list:
    """What every rank's action returns or raises."""
    answers: list = [None] * nranks

    def answer(rank: int) -> None:
        try:
            answers[rank] = action(rank)
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=answer, args=(rank,)) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.parametrize(
    ("make", "collective"),
    [
        *((hand_made.direct, name) for name in ("allgather", "alltoall", "reduce_scatter", "allreduce", "broadcast")),
        *((hand_made.ring, name) for name in ("allgather", "reduce_scatter", "allreduce")),
    ],
)
def test_the_collective_is_computed_whatever_the_size(make, collective) -> None:
    program = make(collective, NRANKS, 2, root=1) if make is hand_made.direct else make(collective, NRANKS, 2)
    in_place = collective in ("allreduce", "broadcast")
    input_shares = NRANKS if collective in ("alltoall", "reduce_scatter") else 1
    output_shares = NRANKS if collective in ("alltoall", "allgather") else 1
    host, most = Host(), 0
    for share in (1, 7, 64, 1001, 5000, 3):  # one after the other over the same segments
        inputs = [np.arange(input_shares * share) * 100**rank for rank in range(NRANKS)]
        given = [row.copy() for row in inputs]
        outputs = inputs if in_place else [np.full(output_shares * share, -1) for _ in range(NRANKS)]

        def run(rank, share=share, inputs=inputs, outputs=outputs):
            return host.run(rank, program, in_place, share, inputs[rank], outputs[rank])

        rounds = together(run)
        assert len(set(rounds)) == 1
        most = max(most, *rounds)
        for rank in range(NRANKS):
            rows = [
                sum(given[r][position * share : (position + 1) * share] for r, position in sources)
                for sources in expected(collective, rank, 1)
            ]
            assert np.array_equal(outputs[rank], np.concatenate(rows)), (share, rank)
    assert most > 4


def test_what_goes_to_several_peers_is_published_once() -> None:
    plans = plans_of(hand_made.direct("allgather", NRANKS), False, 1, True)
    _, moves = exchanges_of(plans, 0)
    assert sum(move.kind == "send" for move in moves) == 1 and sum(move.kind == "receive" for move in moves) == 3


def test_calls_that_differ_are_an_error_of_all_ranks() -> None:
    host, program = Host(2), hand_made.direct("allreduce", 2)
    data = [np.zeros(100 + 10 * rank, np.int64) for rank in range(2)]
    answers = together(lambda r: host.run(r, program, True, data[r].size, data[r], data[r], rounds=1, timeout=5), 2)
    assert all(isinstance(answer, RuntimeError) for answer in answers)
    assert any("the ranks' calls differ" in str(answer) for answer in answers), answers
    again = together(lambda r: host.run(r, program, True, 100, data[r], data[r], rounds=1, timeout=5), 2)
    assert {str(answer)[-16:] for answer in again} == {"has given up before"[-16:]}


def test_a_silent_rank_is_an_error_within_the_timeout() -> None:
    host, data = Host(2), np.zeros(100, np.int64)
    with pytest.raises(RuntimeError, match="rank 1 has not answered for 0 s"):
        host.run(0, hand_made.direct("allreduce", 2), True, 100, data, data, timeout=0.1)
    with pytest.raises(RuntimeError, match="rank 0 has given up; see its own error"):  # at once
        host.run(1, hand_made.direct("allreduce", 2), True, 100, data, data, timeout=1000)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system does not tell when processes end")
def test_a_process_that_ends_is_an_error_at_once() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    pidfd = os.pidfd_open(child.pid)  # of a process not yet waited for, as torchrun's are
    host, data = Host(2, [-1, pidfd]), np.zeros(100, np.int64)
    with pytest.raises(RuntimeError, match="rank 1's process has ended"):
        host.run(0, hand_made.direct("allreduce", 2), True, 100, data, data, timeout=1000)
    child.wait()
    os.close(pidfd)


def test_what_lies_outside_is_refused() -> None:
    host, data = Host(2), np.zeros(100, np.int64)
    with pytest.raises(ValueError, match="too small"):
        host.run(0, hand_made.direct("allreduce", 2), True, 101, data, data)
    with pytest.raises(ValueError, match="too few rounds"):
        host.run(0, hand_made.direct("allreduce", 2), True, 10_000, np.zeros(10_000, np.int64), data, rounds=1)
    with pytest.raises(ValueError, match="outside its buffer"):
        _core.Exchange(
            rank=0, nranks=2, parts=1, input_shares=1, output_shares=1, scratch=0, slots=[1, 1],
            moves=[(0, (1, 0), [(4, 1)])],
        )  # fmt: skip
