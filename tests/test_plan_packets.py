"""The checker on plans with packets, with operations that threadblocks share, and with pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plans import codes, require_right, ring_plan

from teccl_msccl.program.check_plan import check_plan


def exchange(ops: list[list[list[dict[str, Any]]]], kind: str = "memory", **top: Any) -> dict[str, Any]:
    """An in-place allgather's plan of two ranks, of which each reaches the other's output (0) and scratch (1)."""
    gpus = [
        {
            "id": rank, "input_chunks": 1, "output_chunks": 2, "scratch_chunks": 2, "semaphores": [],
            "channels": [{"channel_type": kind, "connected_to": [1 - rank]}],
            "remote_buffers": [{"rank": 1 - rank, "type": b, "access_channel_types": [kind]} for b in ("o", "s")],
            "threadblocks": [
                {"id": i, "ops": block, "channels": [{"channel_type": kind, "channel_ids": [0]}],
                 "remote_buffer_refs": [{"access_channel_type": kind, "remote_buffer_ids": [0, 1]}]}
                for i, block in enumerate(blocks)
            ],
        }
        for rank, blocks in enumerate(ops)
    ]  # fmt: skip
    plan = {"name": "two", "collective": "allgather", "protocol": "LL", "inplace": True, "gpus": gpus,
            "use_double_scratch_buffer": True, "max_message_size": 2**20}  # fmt: skip
    return plan | top


def move(name: str, source: tuple[str, int], target: tuple[str, int] | tuple[int, int], **more: Any) -> dict[str, Any]:
    """An operation on one chunk; the target's buffer is the own one's name, or a remote one's number."""
    where = {"type": target[0]} if isinstance(target[0], str) else {"buffer_id": target[0]}
    remote = {} if isinstance(target[0], str) else {"channel_type": "memory", "channel_ids": [0]}
    return {"name": name, "src_buff": [{"type": source[0], "index": source[1], "size": 1}],
            "dst_buff": [where | {"index": target[1], "size": 1}], **remote, **more}  # fmt: skip


def test_packets_at_other_threadblocks() -> None:
    """One rank puts packets from its output, the other makes them first; other threadblocks take what comes."""
    first = [[move("ppkt", ("o", 0), (1, 0))], [move("upkt", ("s", 1), ("o", 1))]]
    second = [[move("cpkt", ("o", 1), ("s", 1))], [move("rppkt", ("s", 1), (1, 1))], [move("upkt", ("s", 0), ("o", 0))]]
    plan = exchange([first, second])
    require_right(plan)
    assert codes(plan | {"protocol": "Simple"}) == {"packets"}
    assert codes(exchange([first, [*second, [move("ppkt", ("o", 1), (1, 1))]]])) == {"race"}  # two packets in a place
    assert codes(exchange([first, second[1:]])) == {"hang"}
    assert "packets" in codes(exchange([[[move("ppkt", ("o", 0), (0, 0))], first[1]], second]))  # not in scratch
    spoiled = [*second, [move("copy", ("o", 1), ("s", 1))]]  # where packet 0 is, too
    assert "packets" in codes(exchange([first, spoiled]))
    # rank 1 may be two launches ahead of who never tells that it has begun
    silent = exchange([[[move("upkt", ("s", 1), ("o", 1))]], [[move("ppkt", ("o", 1), (1, 1))]]], collective="custom")
    assert "reuse" in codes(silent)
    # with one half only, what is sent first may meet a packet of the launch before
    assert codes(plan | {"use_double_scratch_buffer": False}) == {"reuse"}


def test_a_port_moves_packets_that_are_there() -> None:
    port = {"channel_type": "port", "channel_ids": [0]}
    take = move("upkt", ("s", 1), ("o", 1))
    waits = [
        [move("cpkt", ("o", 1), ("s", 1))],
        [move("rppkt", ("s", 1), (1, 1), **port)],
        [move("upkt", ("s", 0), ("o", 0))],
    ]

    def plan(*between: dict[str, Any]) -> dict[str, Any]:
        sends = [move("cpkt", ("o", 0), ("s", 0)), *between, move("ppkt", ("s", 0), (1, 0), **port)]
        return exchange([[sends, [take]], waits], "port")

    require_right(plan({"name": "nop"}))
    assert codes(plan()) == {"race"}  # threads of the threadblock may still be writing


def test_threadblocks_that_share_an_operation() -> None:
    def shared(make: Callable[..., dict[str, Any]], *parts: int) -> list[list[dict[str, Any]]]:
        return [[make(tbg_info={"tb_id": i, "tbg_size": 3})] for i in parts]

    def blocks(rank: int, *parts: int) -> list[list[dict[str, Any]]]:
        put = shared(lambda **more: move("ppkt", ("o", rank), (1, rank), **more), 0, 1, 2)
        return put + shared(lambda **more: move("upkt", ("s", 1 - rank), ("o", 1 - rank), **more), *parts)

    assert check_plan(exchange([blocks(0, 0, 1, 2), blocks(1, 2, 0, 1)])).ok
    lacking = check_plan(exchange([blocks(0, 0, 1, 2), blocks(1, 0, 1)]))
    assert [finding.text for finding in lacking.findings] == [
        "output chunk 0 (part 3 of 3) lacks rank 0's chunk 0 (part 3 of 3)"
    ]


def test_pipelines() -> None:
    """Part after part is put and told; who does not wait as often as it is told has signals left."""

    def ops(rank: int, told: bool = True) -> list[dict[str, Any]]:
        on = {"channel_type": "memory", "channel_ids": [0]}
        hello = [{"name": "rlxsignal", **on}, {"name": "rlxwait", **on}, {"name": "nop"}]
        put = [move("put", ("o", rank), (0, rank)), {"name": "nop"}, {"name": "signal", **on}]
        turns = {"iter_context": {"unit_size": 4096, "num_chunks": 1}, "name": "pipeline"}
        return [
            *hello,
            {**turns, "ops": put},
            {**turns, "ops": [{"name": "wait", **on}] if told else [{"name": "nop"}]},
        ]

    plan = exchange([[ops(0)], [ops(1)]], protocol="Simple", use_double_scratch_buffer=False)
    assert check_plan(plan).ok
    assert "leftover" in codes(exchange([[ops(0)], [ops(1, told=False)]], protocol="Simple"))


def test_a_get_takes_its_places_for_each_other() -> None:
    plan = ring_plan()
    block = plan["gpus"][0]["threadblocks"][0]
    block["ops"].append(move("get", ("i", 0), ("o", 1)))
    assert "parts" in codes(plan)
