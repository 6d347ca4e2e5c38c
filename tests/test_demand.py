"""Demands: who has and who wants what, against tables written by hand."""

import json
import math
from dataclasses import replace

import pytest

from teccl_msccl.collective.demand import COLLECTIVES, REDUCING, ROOTED, Chunk, Demand, collective_named, demand_for
from teccl_msccl.errors import InputError

#: 3 ranks, 12 bytes, 1 chunk a share, root 1: (origin, want) of every chunk, bytes of each, chunks in `size_bytes`.
ALL = (0, 1, 2)
BY_HAND = {
    "allgather": ([((0,), ALL), ((1,), ALL), ((2,), ALL)], 4, 3),
    "reduce_scatter": ([(ALL, (0,)), (ALL, (1,)), (ALL, (2,))], 4, 3),
    "allreduce": ([(ALL, ALL)], 12, 1),
    "alltoall": ([((s,), (d,)) for s in ALL for d in ALL], 4, 3),
    "broadcast": ([((1,), ALL)], 12, 1),
    "reduce": ([(ALL, (1,))], 12, 1),
    "gather": ([((0,), (1,)), ((1,), (1,)), ((2,), (1,))], 4, 3),
    "scatter": ([((1,), (0,)), ((1,), (1,)), ((1,), (2,))], 4, 3),
}


def test_every_collective_is_in_the_table():
    assert set(COLLECTIVES) == set(BY_HAND)
    assert {"allreduce", "reduce_scatter", "reduce"} == REDUCING
    assert {"broadcast", "reduce", "gather", "scatter"} == ROOTED


@pytest.mark.parametrize("collective", BY_HAND)
def test_one_chunk_a_share(collective):
    pattern, nbytes, chunks_per_size = BY_HAND[collective]
    demand = demand_for(collective, 3, 12, root=1)
    assert [(chunk.origin, chunk.want) for chunk in demand.chunks] == pattern
    assert [chunk.id for chunk in demand.chunks] == list(range(len(pattern)))
    assert {chunk.bytes for chunk in demand.chunks} == {nbytes}
    assert {chunk.reduce for chunk in demand.chunks} == {collective in REDUCING}
    assert demand.reducing == (collective in REDUCING)
    assert demand.chunks_per_size == chunks_per_size
    assert demand.root == (1 if collective in ROOTED else None)


@pytest.mark.parametrize("collective", BY_HAND)
def test_more_chunks_a_share_divide_it(collective):
    pattern, nbytes, chunks_per_size = BY_HAND[collective]
    demand = demand_for(collective, 3, 12, nchunks=4, root=1)
    assert [(chunk.origin, chunk.want) for chunk in demand.chunks] == [share for share in pattern for _ in range(4)]
    assert {chunk.bytes for chunk in demand.chunks} == {nbytes / 4}
    assert demand.chunks_per_size == 4 * chunks_per_size


def test_sizes_need_not_divide():
    assert demand_for("allgather", 3, 10, 7).chunks[0].bytes == pytest.approx(10 / 21)
    assert demand_for("broadcast", 3, 0).chunks[0].bytes == 0


@pytest.mark.parametrize("collective", sorted(set(BY_HAND) - {"allreduce"}))
def test_the_mirror_of_the_mirror_is_the_demand(collective):
    demand = demand_for(collective, 4, 64, 2, root=2)
    mirror = demand.reversed()
    assert mirror.reversed().chunks == demand.chunks
    for chunk, image in zip(demand.chunks, mirror.chunks, strict=True):
        assert (image.origin, image.want, image.reduce) == (chunk.want, chunk.origin, not chunk.reduce)


def test_an_allgather_mirrors_a_reduce_scatter_and_an_allreduce_nothing():
    assert demand_for("allgather", 3, 12).reversed().chunks == demand_for("reduce_scatter", 3, 12).chunks
    assert demand_for("broadcast", 3, 12, 1, 2).reversed().chunks == demand_for("reduce", 3, 12, 1, 2).chunks
    with pytest.raises(ValueError, match="no mirror"):
        demand_for("allreduce", 3, 12).reversed()


def test_json_says_every_chunk():
    value = json.loads(json.dumps(demand_for("reduce", 2, 10, 2, root=1).to_json()))
    assert value == {
        "chunks": [
            {"id": i, "origin": [0, 1], "want": [1], "reduce": True, "bytes": 5.0} for i in range(2)
        ]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "canonical"), [("AllGather", "allgather"), ("reducescatter", "reduce_scatter"), ("REDUCE", "reduce")]
)
def test_names_in_either_case(name, canonical):
    assert collective_named(name) == canonical
    assert demand_for(name, 2, 8).collective == canonical


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gossip", 2, 8), "unknown collective"),
        (("", 2, 8), "unknown collective"),
        (("allgather", 2, 8, 0), "use 1 or more"),
        (("allgather", 2, 8, -3), "use 1 or more"),
        (("allgather", 2, 8, 10**12), "too many"),
        (("alltoall", 64, 8, 1000), "too many"),
        (("broadcast", 2, 8, 1, 2), "root 2 is not a rank"),
        (("broadcast", 2, 8, 1, -1), "root -1 is not a rank"),
        (("allgather", 2, -8), "zero or more"),
        (("allgather", 2, math.nan), "zero or more"),
        (("allgather", 2, math.inf), "zero or more"),
        (("allgather", 2, 1e100), "at most 1e\\+18"),
    ],
)
def test_bad_arguments(arguments, said):
    with pytest.raises(InputError, match=said):
        demand_for(*arguments)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": 1}, "number chunks 0, 1, 2"),
        ({"origin": ()}, "nobody has it"),
        ({"origin": (0, 1)}, "has one origin"),
        ({"origin": (2,)}, "no rank 2"),
        ({"want": (-1,)}, "no rank -1"),
        ({"want": (1, 1)}, "a rank twice"),
        ({"origin": (0, 0), "reduce": True}, "a rank twice"),
        ({"bytes": -1.0}, "bytes"),
        ({"bytes": math.nan}, "bytes"),
        ({"bytes": math.inf}, "bytes"),
    ],
)
def test_bad_chunks(change, said):
    chunk = Chunk(0, (0,), (1,), 8.0)
    with pytest.raises(InputError, match=said):
        Demand("custom", 2, (replace(chunk, **change),), 1, 8.0)
    with pytest.raises(InputError, match="use 1 or more"):
        Demand("custom", 2, (chunk,), 0, 8.0)
