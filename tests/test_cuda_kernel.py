"""The GPU's kernel, compiled for the host: byte for byte what the interpreter computes, and stalls named."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import correct_programs
import hand_made
import numpy as np
import pytest
from executed import with_step
from host_kernel import HostKernelWorld
from hypothesis import given, settings
from hypothesis import strategies as st

from teccl_msccl import _core
from teccl_msccl.errors import InputError
from teccl_msccl.program.program import PROTOCOLS, Program
from teccl_msccl.runtime.buffers import Layout, RankBuffers
from teccl_msccl.runtime.elements import DTYPES, REDUCTIONS, dtypes_named, from_bfloat16
from teccl_msccl.runtime.reference import Reference
from teccl_msccl.runtime.root import root_of
from teccl_msccl.runtime.sweep import Sweep, fill, measure
from teccl_msccl.runtime.world import SLOT_BYTES, Settings, Stall

CREDITS = {"Simple": 2, "LL": 8, "LL128": 8}


def bytes_of(
    kind: type,
    program: Program,
    buffers: Sequence[RankBuffers],
    dtype: str,
    op: str,
    elements: int,
    runs: int = 1,
    **how: int,
) -> list[bytes]:
    """Every rank's output, then scratch, after `program` has run on copies of `buffers`' contents; or what blocked."""
    copies = [tuple(array.copy() for array in each.arrays) for each in buffers]
    root = root_of(program, None, "program")
    sizes = {"slots": CREDITS[program.protocol], "slot_bytes": SLOT_BYTES[program.protocol]} | how
    world = kind(
        program.core,
        dtype=dtype,
        op=op,
        chunk_elements=elements,
        buffers=copies,
        root=-1 if root is None else root,
        **sizes,
    )
    workers = {"workers": 2} if kind is _core.World else {}
    for run in range(runs):
        for mine, given_ in zip(copies, buffers, strict=True):
            for array, original in zip(mine, given_.arrays, strict=True):
                array[:] = original
        _, blocked = world.run(timeout=20.0, **workers)
        assert blocked == [], run
    return [array.tobytes() for mine in copies for array in mine]


def buffers_of(program: Program, dtype: str, op: str, elements: int) -> list[RankBuffers]:
    layout = Layout.of(program, "program")
    reference = Reference(layout, elements, DTYPES[dtype], op, root_of(program, None, "program"))
    all_ranks = []
    for rank in range(program.nranks):
        chunk_bytes = elements * DTYPES[dtype].bytes
        buffers = RankBuffers(layout, rank, program.gpus[rank].scratch_chunks, chunk_bytes, False)
        fill(buffers, reference, rank)
        all_ranks.append(buffers)
    return all_ranks


def assert_same(program: Program, dtype: str, op: str, elements: int, **how: int) -> None:
    buffers = buffers_of(program, dtype, op, elements)
    expected = bytes_of(_core.World, program, buffers, dtype, op, elements, **how)
    assert bytes_of(_core.HostKernel, program, buffers, dtype, op, elements, runs=2, **how) == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("collective", hand_made.COLLECTIVES)
def test_every_collective_type_reduction_and_protocol(collective: str, protocol: str) -> None:
    program = hand_made.direct(collective, 3, k=2, root=1, protocol=protocol)
    reducing = collective in ("reduce", "allreduce", "reduce_scatter")
    for dtype in dtypes_named("all", reducing):
        for op in REDUCTIONS if reducing else ("sum",):
            assert_same(program, dtype.name, op, 37)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
def test_fused_rings_at_sizes_that_loop(collective: str, protocol: str) -> None:
    program = hand_made.ring(collective, 4, 1, protocol)
    for elements in (1, 29, 30, 1001):
        assert_same(program, "bfloat16", "sum", elements, slots=2, slot_bytes=240)


@settings(max_examples=25, deadline=None)
@given(
    elements=st.integers(1, 600),
    k=st.integers(1, 3),
    slots=st.integers(2, 5),
    slot_bytes=st.integers(8, 3000),
    protocol=st.sampled_from(PROTOCOLS),
    dtype=st.sampled_from(sorted(dtype.name for dtype in dtypes_named("all", reducing=True))),
    op=st.sampled_from(sorted(REDUCTIONS)),
)
def test_any_size_and_cut(elements, k, slots, slot_bytes, protocol, dtype, op) -> None:
    program = hand_made.direct("allreduce", 3, k=k, protocol=protocol)
    assert_same(program, dtype, op, elements, slots=slots, slot_bytes=slot_bytes)


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "float", "double"])
@pytest.mark.parametrize("op", sorted(REDUCTIONS))
def test_every_bit_pattern_is_combined_alike(dtype: str, op: str) -> None:
    """NaN, infinities and subnormals: random bits, which no reference covers. Which NaN it is, compilers decide."""
    program = hand_made.direct("allreduce", 2, k=2)
    buffers = buffers_of(program, dtype, op, 500)
    draw = np.random.default_rng(1)
    for each in buffers:
        each.input[:] = draw.integers(0, 256, each.input.nbytes, np.uint8)
    expected, got = (
        np.frombuffer(b"".join(bytes_of(kind, program, buffers, dtype, op, 500)), DTYPES[dtype].storage)
        for kind in (_core.World, _core.HostKernel)
    )
    numbers, same = (from_bfloat16(expected), from_bfloat16(got)) if dtype == "bfloat16" else (expected, got)
    nan = np.isnan(numbers)
    assert (nan == np.isnan(same)).all()
    assert (expected.view(DTYPES[dtype].bits) == got.view(DTYPES[dtype].bits))[~nan].all() and not nan.all()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", hand_made.COLLECTIVES)
def test_results_are_right_in_both_modes(collective: str, in_place: bool) -> None:
    """Against the reference, guards included; misaligned, as in-place offsets of odd sizes are."""
    program = hand_made.direct(collective, 3, k=2)
    sweep = Sweep((999,), (DTYPES["half"], DTYPES["int8"]), ("sum",), iterations=1, warmup=0)
    world = HostKernelWorld(program.nranks)
    for case in sweep.cases(program, root_of(program, None, "program"), "program"):
        if case.in_place is in_place:
            row = measure(world, case, sweep, Settings(timeout=5))
            assert row.wrong == row.out_of_bounds == 0


def run(program: Program, elements: int = 8, timeout: float = 0.1, **how: int) -> list[str]:
    sizes = {"slots": CREDITS[program.protocol], "slot_bytes": SLOT_BYTES[program.protocol]} | how
    buffers = [each.arrays for each in buffers_of(program, "float", "sum", elements)]
    kernel = _core.HostKernel(program.core, dtype="float", op="sum", chunk_elements=elements, buffers=buffers, **sizes)
    blocked = kernel.run(timeout=timeout)[1]
    if blocked:
        with pytest.raises(ValueError, match="an earlier run was blocked"):
            kernel.run(timeout=timeout)
    return blocked


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_stall_names_threadblocks_and_steps(protocol: str) -> None:
    program = dataclasses.replace(hand_made.both_receive_first(), protocol=protocol)
    assert run(program) == [
        "rank 0 tb 0 step 0 (r) waits for a message from rank 1 on channel 0",
        "rank 0 tb 1 step 0 (s) waits for tb 0 step 0",
        "rank 1 tb 0 step 0 (r) waits for a message from rank 0 on channel 0",
        "rank 1 tb 1 step 0 (s) waits for tb 0 step 0",
    ]


def test_a_fused_ring_with_one_slot_and_a_message_that_nobody_takes() -> None:
    blocked = run(hand_made.ring("allreduce", 3), slots=1)
    assert blocked and all("waits for a free slot to rank" in line for line in blocked)
    ring = correct_programs.ring_allgather()
    last = len(ring.gpus[1].threadblocks[1].steps) - 1
    assert "rank 1 never receives the last 1 message(s) from rank 0" in run(with_step(ring, 1, 1, last, type="nop"))[0]
    unsignalled = with_step(ring, 0, 1, 0, hasdep=False)
    assert any("waits for tb 1 step 0, which never sets hasdep" in line for line in run(unsignalled))


def test_what_reaches_outside_is_refused() -> None:
    program = with_step(hand_made.direct("allgather", 2), 0, 0, 0, srcoff=99)
    with pytest.raises((ValueError, InputError), match="reads i"):
        run(program)


def test_steps_are_timed() -> None:
    """A message is taken after it could be sent; every step once."""
    program = hand_made.ring("allgather", 3)
    buffers = [each.arrays for each in buffers_of(program, "float", "sum", 1000)]
    kernel = _core.HostKernel(
        program.core, dtype="float", op="sum", chunk_elements=1000, buffers=buffers, slots=8, slot_bytes=2**20
    )
    assert kernel.run(timeout=5)[1] == []
    times = {(rank, tb, step): (begin, end) for rank, tb, step, begin, end in kernel.times}
    assert set(times) == {(rank, tb, step) for rank, tb, step, _ in program.steps()}
    assert min(begin for begin, _ in times.values()) == 0 and all(end >= begin for begin, end in times.values())


def test_a_world_stalls_like_any_other() -> None:
    program = hand_made.both_receive_first()
    sweep = Sweep((64,), (DTYPES["float"],), ("sum",), iterations=1, warmup=0)
    (case, *_) = sweep.cases(program, None, "program")
    with pytest.raises(Stall, match="4 blocked"):
        measure(HostKernelWorld(program.nranks), case, sweep, Settings(timeout=0.1))
