"""Programs executed by threads: every element compared, stalls and wrong programs told apart."""

from __future__ import annotations

import dataclasses

import hand_made
import numpy as np
import pytest
from executed import FLOAT, RINGS, execute, with_step, wrong
from hypothesis import given, settings
from hypothesis import strategies as st

from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program.check import check
from teccl_msccl.program.program import Program, Step
from teccl_msccl.runtime.elements import DTYPES, REDUCTIONS, averaged, dtypes_named, from_bfloat16, to_bfloat16
from teccl_msccl.runtime.root import root_of
from teccl_msccl.runtime.sweep import Sweep, bus_factor
from teccl_msccl.runtime.world import Stall

# -- everything that should work --------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", hand_made.COLLECTIVES)
@pytest.mark.parametrize("nranks", [2, 5])
def test_every_collective_type_and_reduction(collective: str, nranks: int) -> None:
    program = hand_made.direct(collective, nranks, k=2, root=nranks - 1)
    reducing = collective in ("reduce", "allreduce", "reduce_scatter")
    dtypes = dtypes_named("all", reducing)
    rows = execute(program, (1, 3000), dtypes, tuple(REDUCTIONS))
    assert len(dtypes) == (10 if reducing else 12)
    assert len(rows) == 2 * 2 * len(dtypes) * (len(REDUCTIONS) if reducing else 1)
    assert wrong(rows) == 0
    assert all(row.time_us > 0 for row in rows)


@pytest.mark.parametrize("collective", RINGS)
@pytest.mark.parametrize(("protocol", "k"), [("Simple", 1), ("LL", 7), ("LL128", 7)])
def test_fused_rings(collective: str, protocol: str, k: int) -> None:
    """In a fused ring one slot must stay free: k transfers a step at large sizes take k + 1."""
    rows = execute(hand_made.ring(collective, 4, k, protocol), (100_000, 3_000_000))
    assert wrong(rows) == 0


def test_reduce_steps_after_several_dependencies() -> None:
    assert wrong(execute(hand_made.staged_reduce(5, k=3, root=2), (100_000,), ops=tuple(REDUCTIONS))) == 0


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("collective", hand_made.COLLECTIVES)
def test_chunks_larger_than_a_slot_loop(collective: str, slots: int) -> None:
    """A slot of 1000 bytes holds 250 floats: chunks of 1334 elements take 6 iterations, the last one short."""
    rows = execute(hand_made.direct(collective, 3, k=2), (32_000,), slots=slots, slot_bytes=1000)
    assert wrong(rows) == 0


def test_steps_of_many_chunks_are_split_into_transfers() -> None:
    """71 chunks of 16 bytes through slots that hold three."""
    assert wrong(execute(hand_made.direct("allreduce", 2, k=71), (71 * 2 * 16,), slot_bytes=48)) == 0


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(0, 200_000),
    nranks=st.integers(2, 6),
    k=st.integers(1, 4),
    spare_slots=st.integers(1, 3),
    slot_bytes=st.integers(8, 50_000),
    workers=st.integers(1, 4),
    seed=st.integers(0, 2**40),
    collective=st.sampled_from(RINGS),
    made=st.sampled_from([hand_made.ring, hand_made.direct]),
    dtype=st.sampled_from(sorted(dtype.name for dtype in dtypes_named("all", reducing=True))),
)
def test_any_size_cut_and_order(
    size, nranks, k, spare_slots, slot_bytes, workers, seed, collective, made, dtype
) -> None:
    rows = execute(made(collective, nranks, k), (min(size, slot_bytes * 400),), (DTYPES[dtype],), slots=k + spare_slots,
                   slot_bytes=slot_bytes, workers=workers, seed=seed)  # fmt: skip
    assert wrong(rows) == 0


def test_averages_of_integers_are_cut_towards_zero() -> None:
    sums = np.array([-128, -7, -6, -1, 0, 1, 6, 7, 127], np.int8)
    assert averaged(sums, 3).tolist() == [-42, -2, -2, 0, 0, 0, 2, 2, 42]
    assert averaged(sums.view(np.uint8), 200).tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 0]
    assert averaged(np.array([-(2**63), 2**63 - 1]), 2).tolist() == [-(2**62), 2**62 - 1]


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter"])
def test_averages_in_a_fused_ring(collective: str) -> None:
    rows = execute(hand_made.ring(collective, 3), (30_000,), dtypes_named("all", reducing=True), ("avg",))
    assert wrong(rows) == 0 and {row.op for row in rows} == {"avg"}


def test_eight_bit_floats_are_for_copies_only() -> None:
    assert [dtype.name for dtype in dtypes_named("fp8_e4m3,e5m2")] == ["f8e4m3", "f8e5m2"]
    with pytest.raises(Refused, match="f8e5m2 is for copies only"):
        dtypes_named("float,f8e5m2", reducing=True)
    disguised = dataclasses.replace(hand_made.ring("allreduce", 2), collective="alltoall")
    with pytest.raises(InputError, match="combines elements, but 8-bit floats are for copies only"):
        execute(disguised, dtypes=dtypes_named("f8e4m3"))


def test_a_large_message() -> None:
    """256 MB through 512 KiB slots."""
    program = dataclasses.replace(hand_made.direct("broadcast", 2), outofplace=False)
    rows = execute(program, (256_000_000,), dtypes_named("int64"))
    assert [(row.size, row.wrong) for row in rows] == [(256_000_000, 0)]


def test_many_ranks_on_few_threads() -> None:
    assert wrong(execute(hand_made.direct("allgather", 32), (64_000,))) == 0


# -- numbers -----------------------------------------------------------------------------------------------------


def test_sizes_count_as_in_nccl_tests() -> None:
    row = execute(hand_made.direct("allgather", 3), (1000,))[0]
    assert (row.size, row.count, row.op, row.root) == (1008, 84, "none", -1)  # 3 chunks of 84 floats
    row = execute(hand_made.direct("broadcast", 3, root=1), (1000,), (DTYPES["half"],))[0]
    assert (row.size, row.count, row.op, row.root) == (1000, 500, "none", 1)
    assert row.algbw == pytest.approx(1000 / row.time_us / 1e3) and row.busbw == row.algbw
    assert bus_factor("allreduce", 4) == 1.5 and bus_factor("alltoall", 4) == 0.75 and bus_factor("reduce", 4) == 1


def test_size_zero_is_a_row_and_exact_refuses() -> None:
    rows = execute(hand_made.ring("allreduce", 3), (0,))
    assert [(row.size, row.wrong, row.time_us) for row in rows] == [(0, 0, 0.0)] * 2
    with pytest.raises(Refused, match="multiples of 12 bytes"):
        list(Sweep((1000,), FLOAT, ("sum",), exact=True).cases(hand_made.ring("allreduce", 3), None, "p"))


def test_only_the_claimed_modes_run() -> None:
    program = dataclasses.replace(hand_made.ring("allreduce", 2), inplace=False)
    assert [row.mode for row in execute(program)] == ["out-of-place"]
    with pytest.raises(InputError, match="neither"):
        execute(dataclasses.replace(program, outofplace=False))


@pytest.mark.parametrize(("inplace", "mode"), [(False, "out-of-place"), (True, "in-place")])
def test_one_mode_a_file_where_its_target_has_no_more(inplace: bool, mode: str) -> None:
    """msccl ignores outofplace, so what it says cannot take a mode away, nor add one."""
    ring = hand_made.ring("allreduce", 2)
    program = dataclasses.replace(ring, target="msccl", inplace=inplace, outofplace=inplace, max_bytes=2**30)
    assert check(program).ok
    assert [row.mode for row in execute(program)] == [mode]


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1e-40, 3.4e38, np.inf, np.nan], np.float32)
    assert from_bfloat16(to_bfloat16(values)).tolist()[:3] == [1.0, 1.0, 1 + 2**-6]
    assert to_bfloat16(values)[4:6].tolist() == [0x7F80, 0x7F80]
    assert np.isnan(from_bfloat16(to_bfloat16(values))[6])


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
def test_sixteen_bit_sums_round_as_numpy_does(dtype: str) -> None:
    """All 2¹⁶ bit patterns through one `re` step against a float32 sum of NumPy's, rounded once."""
    from teccl_msccl import _core

    bits = np.arange(2**16, dtype=np.uint16)
    other = np.random.default_rng(1).permutation(bits)
    wide = [
        values.view(np.float16).astype(np.float32) if dtype == "half" else from_bfloat16(values)
        for values in (bits, other)
    ]
    with np.errstate(all="ignore"):
        total = wide[0] + wide[1]
        expected = total.astype(np.float16).view(np.uint16) if dtype == "half" else to_bfloat16(total)
    plan = hand_made.Plan(1)
    plan.add(0, "re", ("i", 0), ("o", 0))
    output = other.copy()
    buffers = [(bits.view(np.uint8), output.view(np.uint8), np.empty(0, np.uint8))]
    world = _core.World(plan.program("allreduce", 1).core, dtype=dtype, op="sum", chunk_elements=2**16, slots=2,
                        slot_bytes=2**20, buffers=buffers)  # fmt: skip
    assert world.run(workers=1, timeout=5.0)[1] == []
    number = ~np.isnan(total)
    assert (output[number] == expected[number]).all()
    exponent = 0x7C00 if dtype == "half" else 0x7F80
    assert ((output[~number] & exponent == exponent) & (output[~number] & ~np.uint16(exponent | 0x8000) != 0)).all()


# -- everything that should not ----------------------------------------------------------------------------------


def test_a_stall_names_every_blocked_threadblock() -> None:
    with pytest.raises(Stall) as stall:
        execute(hand_made.both_receive_first(), timeout=0.3)
    assert sorted(stall.value.blocked) == [
        "rank 0 tb 0 step 0 (r) waits for a message from rank 1 on channel 0",
        "rank 0 tb 1 step 0 (s) waits for tb 0 step 0",
        "rank 1 tb 0 step 0 (r) waits for a message from rank 0 on channel 0",
        "rank 1 tb 1 step 0 (s) waits for tb 0 step 0",
    ]


def test_one_slot_shows_that_a_fused_ring_needs_two() -> None:
    assert wrong(execute(hand_made.ring("allreduce", 3), slots=2)) == 0
    with pytest.raises(Stall, match=r"\(rrs\) waits for a free slot to rank 1 on channel 0 \(1 in flight\)"):
        execute(hand_made.ring("allreduce", 3), slots=1, timeout=0.3)


def test_a_ring_that_hangs_only_above_some_size() -> None:
    """Two chunks of 256 KiB share a slot; one element more, and a step takes both slots."""
    program = hand_made.ring("allgather", 3, k=2)
    assert wrong(execute(program, (6 * 2**18,))) == 0
    with pytest.raises(Stall, match=r"\(rcs\) transfer 0 of 2 waits for a free slot"):
        execute(program, (6 * 2**18 + 1,), timeout=0.3)


def test_a_message_that_nobody_receives_is_a_stall() -> None:
    program = hand_made.ring("allreduce", 2)
    steps = program.gpus[0].threadblocks[0].steps
    program = with_step(program, 0, 0, len(steps) - 1, type="nop")
    with pytest.raises(Stall, match=r"rank 0 never receives the last 1 message\(s\) from rank 1 on channel 0"):
        execute(program, timeout=0.3)


def test_waiting_for_a_step_that_never_signals_is_a_stall() -> None:
    program = hand_made.direct("alltoall", 2)
    program = with_step(program, 0, 0, 0, hasdep=False)
    with pytest.raises(Stall, match="waits for tb 0 step 0, which never sets hasdep"):
        execute(program, timeout=0.3)


def test_the_first_wrong_element_is_named() -> None:
    program = hand_made.direct("allgather", 3)
    ranks, tb = 1, next(t for t, tb in enumerate(program.gpus[1].threadblocks) if tb.recv == 0)
    rows = execute(with_step(program, ranks, tb, 0, dstoff=1), (1200,))
    assert rows[0].wrong >= 100
    assert str(rows[0].first_wrong).startswith("rank 1 output[0]: expected ")
    assert str(rows[0].first_wrong).endswith("(chunk 0)")
    assert rows[0].first_wrong.path == ()  # the step that should have written there writes elsewhere


@pytest.mark.parametrize("collective", hand_made.COLLECTIVES)
def test_every_lost_or_misplaced_step_is_seen(collective: str) -> None:
    """Take any one moving step's data from, or leave it at, another chunk: some element is wrong, or it stalls."""
    program = hand_made.direct(collective, 3, root=1)
    seen = 0
    for rank, tb, position, step in program.steps():
        for key, buffer in (("srcoff", step.srcbuf), ("dstoff", step.dstbuf)):
            used = {"srcoff": step.type in ("s", "cpy", "rrc"), "dstoff": step.type in ("r", "cpy", "rrc")}[key]
            gpu = program.gpus[rank]
            room = {"i": gpu.input_chunks, "o": gpu.output_chunks, "s": gpu.scratch_chunks}[buffer] - step.cnt + 1
            if not used or room < 2:
                continue
            moved = with_step(program, rank, tb, position, **{key: (getattr(step, key) + 1) % room})
            rows = execute(moved, (1200,), root=root_of(program, None, "p"))
            assert rows[0].wrong > 0, (rank, tb, position, key)
            seen += 1
    assert seen or collective in ("broadcast", "reduce")


def test_a_contribution_added_twice_is_seen() -> None:
    program = hand_made.ring("allreduce", 3)
    assert wrong(execute(with_step(program, 0, 0, 1, srcoff=0), (300,), ops=("sum",))) > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"srcoff": -1}, "gpu 0 tb 0 step 0: reads i\\[-1..-1\\]"),
        ({"srcoff": 2**31 - 1}, "reads i\\[2147483647..2147483647\\] but i has 1 chunks"),
        ({"dstoff": 3}, "writes o\\[3..3\\] but o has 3 chunks"),
        ({"cnt": 0}, "cnt is 0"),
        ({"cnt": 2**31 - 1}, "reads i"),
        ({"depid": 99, "deps": 0}, "depends on tb 99, which does not exist"),
        ({"depid": 1, "deps": 7}, "depends on tb 1 step 7, but that tb has 1 steps"),
        ({"type": "s"}, "sends, but the tb has send=-1"),
        ({"type": "r"}, "receives, but the tb has recv=-1"),
    ],
)
def test_steps_that_reach_outside_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        execute(with_step(hand_made.direct("allgather", 3), 0, 0, 0, **changes))


def test_connections_that_do_not_match_are_refused() -> None:
    program = hand_made.direct("allgather", 3, k=2)
    with pytest.raises(InputError, match="message 0 is sent with cnt 1 and received with cnt 2"):
        execute(with_step(program, 0, 1, 0, cnt=1))
    for peer, said in (
        (3, "send=3; use a rank 0..2"),
        (0, "names the gpu itself"),
        (2, "belongs to gpu 0 tb 1 already"),
    ):
        gpu = program.gpus[0]
        tbs = list(gpu.threadblocks)
        tbs[3] = dataclasses.replace(tbs[1], send=peer)
        tbs[1] = dataclasses.replace(tbs[1], send=2)
        changed = dataclasses.replace(gpu, threadblocks=tuple(tbs))
        with pytest.raises(InputError, match=said):
            execute(dataclasses.replace(program, gpus=(changed, *program.gpus[1:])))


def test_absurd_buffers_and_unknown_collectives_are_refused() -> None:
    program = hand_made.ring("allreduce", 2)
    gpu = dataclasses.replace(program.gpus[0], scratch_chunks=2**62)
    with pytest.raises(InputError, match="GB to spare"):
        execute(dataclasses.replace(program, gpus=(gpu, program.gpus[1])))
    with pytest.raises(InputError, match="GB to spare"):
        execute(program, (2**60,))
    with pytest.raises(InputError, match="no reference"):
        execute(dataclasses.replace(program, collective="custom"))
    with pytest.raises(InputError, match="multiple of 2"):
        execute(dataclasses.replace(hand_made.ring("allgather", 2), nchunks=3))


@pytest.mark.parametrize("collective", hand_made.ROOTED)
def test_the_root_shows_in_the_data_flow(collective: str) -> None:
    assert root_of(hand_made.direct(collective, 4, root=2), None, "p") == 2
    idle = Program("idle", collective, "Simple", 1, 4, True, True, hand_made.Plan(4).program(collective, 4).gpus)
    with pytest.raises(InputError, match="--root"):
        root_of(idle, None, "p")
    with pytest.raises(InputError, match="not a rank"):
        root_of(idle, 4, "p")


def test_a_nop_only_waits() -> None:
    """A nop moves nothing and signals nothing, even if it claims hasdep."""
    program = hand_made.both_receive_first()
    waits = dataclasses.replace(
        program.gpus[0].threadblocks[0], send=-1, recv=-1, steps=(Step("nop", cnt=0, hasdep=True),)
    )
    gpus = [dataclasses.replace(gpu, threadblocks=(waits, *gpu.threadblocks[1:])) for gpu in program.gpus]
    with pytest.raises(Stall, match="waits for tb 0 step 0, which never sets hasdep"):
        execute(dataclasses.replace(program, gpus=tuple(gpus)), timeout=0.3)
