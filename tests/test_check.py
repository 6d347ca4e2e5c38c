"""The checker's proofs: what it accepts, and a smallest broken program for every code it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from correct_programs import (
    CORRECT,
    all_pairs_allreduce,
    block,
    chain_broadcast,
    chain_reduce,
    direct_alltoall,
    direct_gather,
    direct_scatter,
    edit,
    fused_ring_allreduce,
    program,
    receive,
    recursive_doubling_allgather,
    ring_allgather,
    ring_reduce_scatter,
    send,
    shipped_allgather,
    with_gpu,
    with_step,
)

from teccl_msccl.errors import InputError
from teccl_msccl.program.check import LISTED, Verdict, check
from teccl_msccl.program.program import Gpu, Program, Step

NOP = Step("nop", "i", -1, "o", -1, 0)


def find(verdict: Verdict, code: str) -> list[tuple[int, int, int]]:
    return [(found.gpu, found.tb, found.step) for found in verdict.findings if found.code == code]


# -- what is right ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CORRECT)
def test_accepts_correct_programs(name: str) -> None:
    verdict = check(CORRECT[name]())
    assert verdict.ok, verdict.findings
    assert all(proof.outcome == "proved" for proof in verdict.proofs)
    assert not [found for found in verdict.findings if found.code != "chunk-size"]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 17])
def test_accepts_every_size(ranks: int) -> None:
    for make in (ring_allgather, shipped_allgather, direct_alltoall, ring_reduce_scatter, fused_ring_allreduce):
        assert check(make(ranks)).ok, make
    for make in (direct_gather, direct_scatter):
        for root in (0, ranks - 1):
            assert check(make(ranks, root)).root == root


def test_both_modes_are_proved() -> None:
    names = [proof.name for proof in check(ring_allgather()).proofs]
    assert names[-4:] == ["data out of place", "races out of place", "data in place", "races in place"]
    assert "data out of place" not in [proof.name for proof in check(shipped_allgather()).proofs]


def test_infers_the_root() -> None:
    assert check(chain_broadcast((1, 0, 2))).root == 1
    assert check(chain_reduce((0, 2, 1))).root == 1
    assert check(chain_reduce((1, 2, 0)), root=0).ok
    assert check(ring_allgather()).root is None


def test_a_wrong_root_is_a_wrong_program() -> None:
    assert not check(chain_broadcast((1, 0, 2)), root=0).ok
    assert find(check(chain_reduce((0, 2, 1)), root=0), "output-nonroot")
    with pytest.raises(InputError, match="root 3"):
        check(chain_broadcast(), root=3)


# -- credits and deadlocks ----------------------------------------------------------------------------------------


def test_recursive_doubling_needs_its_last_round_in_flight() -> None:
    assert check(recursive_doubling_allgather(8, "LL")).min_credits == 4
    assert check(recursive_doubling_allgather(8, "LL128")).ok
    simple = check(recursive_doubling_allgather(8, "Simple"))
    assert not simple.ok and simple.min_credits == 4
    blocked = [found.text for found in simple.findings if found.code == "credits"]
    assert "needs 4" in blocked[0]
    # In the last round each sends to its partner in the far half, who sends as well.
    assert find(simple, "credits")[1:3] == [(0, 3, 2), (4, 3, 2)] and len(blocked) == 1 + 8
    assert blocked[1] == "waits for a free slot to gpu 4 tb 3, which stands at step 2 (in a cycle of 2)"


def test_separate_threadblocks_need_one_credit_and_a_fused_ring_two() -> None:
    assert check(shipped_allgather(8)).min_credits == 1
    assert check(fused_ring_allreduce(8)).min_credits == 2


def test_receives_before_sends_on_both_sides_hang() -> None:
    def backwards(steps: list[Step]) -> None:
        steps.reverse()

    verdict = check(edit(edit(direct_alltoall(2), 0, 0, backwards), 1, 0, backwards))
    assert verdict.min_credits is None
    texts = [found.text for found in verdict.findings if found.code == "deadlock"]
    assert texts == [
        "waits for a transfer from gpu 1 tb 0, which stands at step 0 (in a cycle of 2)",
        "waits for a transfer from gpu 0 tb 0, which stands at step 0 (in a cycle of 2)",
    ]
    assert verdict.proofs[-1].outcome == "not attempted"


def test_a_cycle_comes_before_those_who_wait_for_it() -> None:
    # gpu 0 tb 0 waits for tb 1, which is in a cycle with tb 2.
    cycle = [
        block([Step("cpy", "i", 0, "o", 0, depid=1, deps=0)]),
        block([Step("cpy", "i", 1, "o", 1, depid=2, deps=0, hasdep=True)]),
        block([Step("cpy", "i", 2, "o", 2, depid=1, deps=0, hasdep=True)]),
    ]
    verdict = check(program("allreduce", 3, [Gpu(3, 3, 0, tuple(cycle))]))
    assert find(verdict, "deadlock") == [(0, 1, 0), (0, 2, 0), (0, 0, 0)]


# -- one broken program for every code ------------------------------------------------------------------------------


def local(*steps: Step, size: int = 4, scratch: int = 0, ranks: int = 1) -> Program:
    """One threadblock without peers on each rank: an allreduce of nobody but itself."""
    return program("allreduce", size, [Gpu(size, size, scratch, (block(steps),))] * ranks, mode="outofplace")


def shared_connection() -> Program:
    """Two threadblocks that send to the same peer on the same channel, which one would need a channel for each."""
    sends = block([send("i", 0)], send=1)
    receives = block([receive("o", 0), receive("o", 0)], recv=0)
    return program("broadcast", 1, [Gpu(1, 1, 0, (sends, sends)), Gpu(1, 1, 0, (receives,))])


def without_waits(source: Program, rank: int, tb: int) -> Program:
    def forget(steps: list[Step]) -> None:
        steps[:] = [step._replace(depid=-1, deps=-1) for step in steps]

    return edit(source, rank, tb, forget)


def with_inserted(source: Program, rank: int, tb: int, at: int, step: Step) -> Program:
    return edit(source, rank, tb, lambda steps: steps.insert(at, step))


def two_way(first: Step, second: Step, *, scratch: int = 0) -> Program:
    """Two ranks, each with one exchanging threadblock of two steps."""
    gpus = [Gpu(2, 2, scratch, (block([first, second], send=1 - rank, recv=1 - rank),)) for rank in range(2)]
    return program("allreduce", 2, gpus, mode="outofplace")


def there_and_back() -> Program:
    """Chunk 0 of gpu 0 goes out of o[0] and comes back into it by another threadblock: no dependency says so."""
    gpus = [
        Gpu(1, 1, 0, (block([Step("cpy", "i", 0, "o", 0), send("o", 0)], send=1), block([receive("o", 0)], recv=1))),
        Gpu(1, 1, 0, (block([receive("o", 0), send("o", 0)], send=0, recv=0),)),
    ]
    return program("broadcast", 1, gpus, mode="outofplace")


FUSED = [Step("cpy", "i", 0, "o", 0), *(Step("re", "i", 0, "o", 0) for _ in range(17))]
COPY_ALL = Step("cpy", "i", 0, "o", 0, 4)

BROKEN: dict[str, tuple[Callable[[], Program], tuple[int, int, int]]] = {
    "connection-shared": (shared_connection, (0, 1, -1)),
    "mirror": (lambda: edit(shipped_allgather(), 0, 0, recv=-1), (1, 2, -1)),
    "no-peer": (lambda: edit(shipped_allgather(), 0, 0, recv=-1), (0, 0, 0)),
    "unmatched": (lambda: edit(shipped_allgather(), 0, 0, lambda steps: steps.clear()), (1, 2, 0)),
    "count-mismatch": (lambda: with_step(chain_broadcast(), 2, 0, 0, cnt=1), (2, 0, 0)),
    "chunks": (lambda: replace(ring_allgather(), nchunks=4), (-1, -1, -1)),
    "buffer-size": (lambda: with_gpu(ring_allgather(), 1, output_chunks=4), (1, -1, -1)),
    "count": (lambda: local(COPY_ALL._replace(cnt=0)), (0, 0, 0)),
    "bounds": (lambda: with_step(chain_broadcast(), 2, 0, 0, dstoff=1), (2, 0, 0)),
    "dep-missing": (lambda: local(COPY_ALL._replace(depid=1, deps=0)), (0, 0, 0)),
    "dep-unraised": (lambda: with_step(all_pairs_allreduce(), 2, 0, 5, hasdep=False), (2, 1, 2)),
    "dep-self": (lambda: local(COPY_ALL._replace(depid=0, deps=0, hasdep=True)), (0, 0, 0)),
    "nop-orphan": (lambda: with_step(all_pairs_allreduce(), 0, 0, 3, depid=-1, deps=-1), (0, 0, 3)),
    "nop-bare": (lambda: with_step(all_pairs_allreduce(), 0, 0, 1, depid=-1, deps=-1), (0, 0, 1)),
    "fusion-limit": (lambda: local(*FUSED), (0, 0, 17)),
    "fusion-count": (
        lambda: local(COPY_ALL, Step("re", "i", 0, "o", 0), Step("re", "i", 0, "o", 0, 2)),
        (0, 0, 2),
    ),
    "deadlock": (lambda: two_way(receive("o", 0), send("i", 0)), (0, 0, 0)),
    "credits": (lambda: recursive_doubling_allgather(8, "Simple"), (-1, -1, -1)),
    "uninitialised": (lambda: with_step(ring_reduce_scatter(), 1, 0, 2, srcbuf="o"), (1, 0, 2)),
    "double-reduction": (lambda: local(COPY_ALL, Step("re", "i", 0, "o", 0)), (0, 0, 1)),
    "mixed-chunks": (lambda: local(COPY_ALL, Step("re", "i", 1, "o", 0)), (0, 0, 1)),
    "output": (lambda: local(COPY_ALL._replace(cnt=3)), (0, -1, -1)),
    "input-modified": (lambda: local(COPY_ALL, Step("cpy", "i", 0, "i", 1)), (0, 0, 1)),
    "output-nonroot": (
        lambda: edit(chain_reduce(), 0, 0, lambda steps: steps.append(Step("cpy", "i", 0, "o", 0))),
        (0, 0, 1),
    ),
    "overlap": (lambda: local(COPY_ALL, Step("cpy", "o", 0, "o", 1, 2)), (0, 0, 1)),
    "root": (lambda: replace(fused_ring_allreduce(), collective="reduce"), (-1, -1, -1)),
    "race": (lambda: without_waits(all_pairs_allreduce(), 0, 1), (0, 1, 2)),
    "too-large": (lambda: local(COPY_ALL, size=2**30), (-1, -1, -1)),
}


@pytest.mark.parametrize("code", BROKEN)
def test_finds(code: str) -> None:
    make, place = BROKEN[code]
    verdict = check(make())
    assert not verdict.ok
    assert place in find(verdict, code), verdict.findings
    assert all(found.level == "error" for found in verdict.findings if found.code == code)


DOUBTFUL: dict[str, Callable[[], Program]] = {
    "dep-ignored": lambda: local(COPY_ALL._replace(deps=3)),
    "dep-own": lambda: local(COPY_ALL._replace(hasdep=True), Step("cpy", "i", 0, "o", 0, depid=0, deps=0)),
    "dep-late": lambda: with_step(all_pairs_allreduce(), 0, 1, 2, deps=4),
    "nop-hasdep": lambda: with_step(all_pairs_allreduce(), 0, 0, 1, hasdep=True),
    "nop-trailing": lambda: with_inserted(all_pairs_allreduce(), 0, 1, 4, NOP._replace(depid=2, deps=1)),
    "nop-bare": lambda: local(NOP, COPY_ALL),
    "remote-order": there_and_back,
    "chunk-size": lambda: replace(direct_gather(), nchunks=3),
    "no-postcondition": lambda: replace(direct_alltoall(), collective="alltoallv"),
    "input-overwritten": lambda: replace(
        with_inserted(ring_reduce_scatter(), 0, 0, 4, Step("cpy", "i", 0, "i", 1)), outofplace=False
    ),
}


@pytest.mark.parametrize("code", DOUBTFUL)
def test_warns(code: str) -> None:
    verdict = check(DOUBTFUL[code]())
    assert verdict.ok, verdict.findings
    assert {found.level for found in verdict.findings if found.code == code} == {"warning"}


def test_nops_alone_vanish_and_raise_nothing() -> None:
    only = [block([NOP._replace(depid=1, deps=0)]), block([COPY_ALL._replace(hasdep=True)])]
    verdict = check(program("allreduce", 4, [Gpu(4, 4, 0, tuple(only))]))
    assert verdict.ok and "vanishes" in verdict.findings[0].text
    waits = [block([COPY_ALL._replace(depid=1, deps=0)]), block([NOP._replace(hasdep=True)])]
    assert find(check(program("allreduce", 4, [Gpu(4, 4, 0, tuple(waits))])), "dep-unraised") == [(0, 0, 0)]


def test_wrong_data_names_its_writer_and_the_other_party() -> None:
    text = next(f.text for f in check(with_step(direct_alltoall(), 1, 0, 0, srcoff=2)).findings if f.code == "output")
    assert text == "o[1] ends with chunk 2 of gpu 1; it must be chunk 0 of gpu 1"
    doubled = check(with_step(fused_ring_allreduce(), 1, 0, 1, type="rcs", dstoff=1))
    assert any(f.code == "output" and "reduced over all gpus but 1" in f.text for f in doubled.findings)
    clash = check(edit(ring_reduce_scatter(2), 0, 0, lambda steps: steps.reverse()), root=None)
    assert clash.ok  # a receive first on one side only is fine
    mixed = check(with_step(ring_reduce_scatter(), 0, 0, 1, srcoff=0))
    assert "from gpu 2 tb 0 step 0" in next(f.text for f in mixed.findings if f.code == "mixed-chunks")


def test_a_race_of_one_mode_says_so() -> None:
    apart = direct_alltoall(2)
    exchange = apart.gpus[0].threadblocks[0]
    split = (block(exchange.steps[:1], send=1), block(exchange.steps[1:], recv=1), apart.gpus[0].threadblocks[1])
    verdict = check(with_gpu(apart, 0, threadblocks=split))
    races = [found for found in verdict.findings if found.code == "race"]
    assert len(races) == 1 and races[0].text.endswith("(in place only)")
    assert {proof.name: proof.outcome for proof in verdict.proofs}["races out of place"] == "proved"
    assert check(replace(with_gpu(apart, 0, threadblocks=split), inplace=False)).ok


def test_a_copy_onto_itself_disturbs_no_reader() -> None:
    def gpu(rank: int) -> Gpu:
        blocks = [
            block([Step("cpy", "i", 0, "o", rank)]),
            block([send("i", 0), receive("o", 1 - rank)], 1 - rank, 1 - rank),
        ]
        return Gpu(1, 2, 0, tuple(blocks))

    assert check(program("allgather", 2, [gpu(0), gpu(1)])).ok


def test_a_long_message_orders_only_what_it_carried() -> None:
    """gpu 0 sends two chunks; the first comes back at once, maybe into the second before that is out."""
    there = block([send("i", 0, 2)], send=1)
    back = block([receive("i", 1)], recv=1, chan=1)
    relay = [block([receive("s", 0, 2)], recv=0), block([send("o", 0)], send=0, chan=1)]
    gpus = [Gpu(2, 2, 0, (there, back)), Gpu(2, 2, 2, tuple(relay))]
    assert find(check(program("allreduce", 2, gpus, channels=2)), "race") == [(0, 1, 0)]


def test_many_findings_are_listed_then_counted() -> None:
    verdict = check(local(*[Step("cpy", "s", 0, "o", 0)] * 50, scratch=1))
    texts = [found.text for found in verdict.findings if found.code == "uninitialised"]
    assert len(texts) == LISTED + 1 and texts[-1] == "and 30 more like these"


@pytest.mark.parametrize("value", [-(2**31) + 1, -1, 2**31 - 1])
@pytest.mark.parametrize("field", ["srcoff", "dstoff", "cnt"])
def test_absurd_numbers_are_found(field: str, value: int) -> None:
    assert not check(local(COPY_ALL._replace(**{field: value}))).ok
    assert not check(local(COPY_ALL._replace(**{field: value}), size=2**31 - 1)).ok


def test_nothing_to_do_is_judged_too() -> None:
    assert find(check(program("allgather", 2, [Gpu(0, 2, 0, ())] * 2, mode="inplace")), "output")
    assert check(program("alltoall", 1, [Gpu(1, 1, 0, (block([]), block([])))], mode="inplace")).ok
    assert find(check(program("broadcast", 1, [Gpu(1, 1, 0, ())] * 2)), "root")
