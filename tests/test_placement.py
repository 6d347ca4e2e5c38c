"""Where chunks live, against a table written from nccl-tests' conventions: 3 ranks, 2 chunks a share, root 1."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from teccl_msccl.collective.demand import COLLECTIVES, demand_for
from teccl_msccl.program.placement import Layout, Place
from teccl_msccl.program.program import Gpu, Program
from teccl_msccl.runtime.buffers import Layout as Buffers
from teccl_msccl.runtime.buffers import RankBuffers

N, C, ROOT = 3, 2, 1
ALL = [0, 1, 2, 3, 4, 5]
SHARES = [[0, 1], [2, 3], [4, 5]]


class Convention(NamedTuple):
    """For each rank the chunk at every place of its input, and at every place of its output (where it has any); the
    declared sizes; nchunksperloop; and the offset in place of the smaller buffer in the larger one (None: apart)."""

    inputs: list[list[int]]
    outputs: list[list[int]]
    sizes: list[tuple[int, int]]
    chunks_per_loop: int
    aliases: tuple[str, list[int | None]]


TABLE = {
    "allgather": Convention(SHARES, [ALL] * 3, [(2, 6)] * 3, 6, ("io", [0, 2, 4])),
    "reduce_scatter": Convention([ALL] * 3, SHARES, [(6, 2)] * 3, 6, ("oi", [0, 2, 4])),
    "allreduce": Convention([[0, 1]] * 3, [[0, 1]] * 3, [(2, 2)] * 3, 2, ("io", [0, 0, 0])),
    "alltoall": Convention(
        [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17]],
        [[0, 1, 6, 7, 12, 13], [2, 3, 8, 9, 14, 15], [4, 5, 10, 11, 16, 17]],
        [(6, 6)] * 3,
        6,
        ("io", [0, 0, 0]),
    ),
    "broadcast": Convention([[], [0, 1], []], [[0, 1]] * 3, [(2, 2)] * 3, 2, ("io", [0, 0, 0])),
    "reduce": Convention([[0, 1]] * 3, [[], [0, 1], []], [(2, 2)] * 3, 2, ("io", [0, 0, 0])),
    "gather": Convention(SHARES, [[], ALL, []], [(2, 0), (2, 6), (2, 0)], 2, ("io", [None, 2, None])),
    "scatter": Convention([[], ALL, []], SHARES, [(0, 2), (6, 2), (0, 2)], 2, ("oi", [None, 2, None])),
}


def layout(collective: str) -> Layout:
    return Layout(demand_for(collective, N, 1e6, C, ROOT))


def test_the_table_has_every_collective() -> None:
    assert set(TABLE) == set(COLLECTIVES)


@pytest.mark.parametrize("collective", TABLE)
def test_chunks_are_where_nccl_tests_puts_them(collective: str) -> None:
    table, made = TABLE[collective], layout(collective)
    inputs: list[dict[int, int]] = [{} for _ in range(N)]
    outputs: list[dict[int, int]] = [{} for _ in range(N)]
    for chunk in made.demand.chunks:
        for ranks, place_of, buffers, buffer in (
            (chunk.origin, made.input_place, inputs, "i"),
            (chunk.want, made.output_place, outputs, "o"),
        ):
            for rank in ranks:
                place = place_of(chunk, rank)
                assert place.buffer == buffer and place.offset not in buffers[rank]
                buffers[rank][place.offset] = chunk.id
    assert inputs == [dict(enumerate(chunks)) for chunks in table.inputs]
    assert outputs == [dict(enumerate(chunks)) for chunks in table.outputs]


@pytest.mark.parametrize("collective", TABLE)
def test_sizes(collective: str) -> None:
    table, made = TABLE[collective], layout(collective)
    assert [made.sizes(rank) for rank in range(N)] == table.sizes
    assert made.chunks_per_loop == table.chunks_per_loop


@pytest.mark.parametrize("collective", TABLE)
def test_in_place_the_smaller_buffer_lies_in_the_larger(collective: str) -> None:
    (smaller, larger), offsets = TABLE[collective].aliases
    made = layout(collective)
    for rank, offset in enumerate(offsets):
        for k in range(C):
            inner = Place(smaller, k)
            expected = inner if offset is None else Place(larger, offset + k)
            assert made.aliased(inner, rank) == expected
            assert made.aliased(Place(larger, k), rank) == Place(larger, k)
            assert made.aliased(Place("s", k), rank) == Place("s", k)


@pytest.mark.parametrize("collective", TABLE)
def test_execution_lays_buffers_out_alike(collective: str) -> None:
    """The interpreter's own idea of the buffers, from addresses."""
    table, made = TABLE[collective], layout(collective)
    gpus = tuple(Gpu(*sizes, 0, ()) for sizes in table.sizes)
    program = Program("empty", collective, "Simple", 1, table.chunks_per_loop, True, True, gpus)
    buffers = Buffers.of(program, "empty")
    assert program.chunks_per_size == made.demand.chunks_per_size == buffers.nchunks
    for rank in range(N):
        own = RankBuffers(buffers, rank, 0, 16, in_place=True)
        begin = {"i": own.input.ctypes.data, "o": own.output.ctypes.data}
        assert own.input.nbytes >= 16 * table.sizes[rank][0] and own.output.nbytes >= 16 * table.sizes[rank][1]
        for k in range(C):
            for buffer in "io":
                place = made.aliased(Place(buffer, k), rank)
                if k < table.sizes[rank]["io".index(buffer)]:
                    assert begin[buffer] + 16 * k == begin[place.buffer] + 16 * place.offset


@pytest.mark.parametrize(("collective", "sizes"), [("gather", (2, 6)), ("scatter", (6, 2))])
def test_a_gather_that_divides_the_whole_is_taken_as_it_means_it(collective: str, sizes: tuple[int, int]) -> None:
    for declared in (sizes, (0, sizes[1]) if collective == "gather" else (sizes[0], 0)):
        gpus = (Gpu(*declared, 0, ()),) * N
        divided = {
            nchunks: Program("p", collective, "Simple", 1, nchunks, True, True, gpus).chunks_per_size
            for nchunks in (C, N * C)
        }
        assert divided == {C: N * C, N * C: N * C}
