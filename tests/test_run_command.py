"""`run`: its table, its JSON, and how it fails."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable

import hand_made
import pytest
from executed import with_step

from teccl_msccl.program import xml


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line, run in this process: code, stdout, stderr."""
    from teccl_msccl.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err

    return run


@pytest.mark.parametrize(
    "words", [("check",), ("simulate", "--topology", "full-2", "--size", "1KB"), ("run", "-b", "8")]
)
def test_a_program_may_come_through_a_pipe(command, tmp_path, words) -> None:
    """As from `check <(zcat ring.xml.gz)`: what is in a pipe can be read once."""
    xml.write(hand_made.ring("allgather", 2), tmp_path / "ring.xml")
    source, sink = os.pipe()
    os.write(sink, (tmp_path / "ring.xml").read_bytes())
    os.close(sink)
    try:
        code, _, err = command(*words, f"/dev/fd/{source}")
    finally:
        os.close(source)
    assert code == 0, err


def test_the_command_prints_nccl_tests_table_and_json(command, tmp_path) -> None:
    path = tmp_path / "ring.xml"
    xml.write(dataclasses.replace(hand_made.ring("allreduce", 2), inplace=False), path)
    code, out, err = command("run", path, "-b", "1K", "-e", "4K", "--iters", 1)
    assert code == 0, err
    rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [row[:5] for row in rows] == [[str(n), str(n // 4), "float", "sum", "-1"] for n in (1024, 2048, 4096)]
    assert all(row[8:] == ["0", "N/A", "N/A", "N/A", "N/A"] for row in rows)
    assert "# Out of bounds values : 0 OK" in out and "# Avg bus bandwidth" in out

    _, out, _ = command("run", "--json", path, "--size", "1KB,2KB", "--dtype", "float16,int8", "--op", "max")
    answer = json.loads(out)
    assert (answer["ranks"], answer["transport"], answer["collective"]) == (2, "threads", "allreduce")
    assert [(row["size"], row["dtype"], row["op"], row["wrong"]) for row in answer["rows"]] == [
        (size, dtype, "max", 0) for dtype in ("half", "int8") for size in (1000, 2000)
    ]


def test_the_command_tells_the_path_of_the_first_wrong_element(command, tmp_path) -> None:
    program = hand_made.ring("allgather", 3)
    xml.write(with_step(program, 0, 1, 0, srcbuf="o", srcoff=1), tmp_path / "bad.xml")
    code, out, err = command("run", tmp_path / "bad.xml", "--size", "1200", "--json", "--inject", "delay", "--seed", 3)
    assert code == 1
    first = json.loads(out)["first_wrong"]
    assert (first["rank"], first["where"], first["index"], first["chunk"]) == (1, "output", 0, 0)
    assert [(hop["rank"], hop["tb"], hop["step"]) for hop in first["path"]][-2:] == [(0, 1, 0), (1, 1, 1)]
    assert "  rank 0 tb 1 step 0 (s): reads o[1], sends to rank 1" in err.splitlines()


@pytest.mark.parametrize(
    "arguments", [("run",), ("simulate", "--topology", "ring-2", "--size", "1KB")], ids=lambda each: each[0]
)
@pytest.mark.parametrize("channel", [1, -1])
def test_a_channel_that_is_not_declared_is_refused(arguments, channel, command, tmp_path) -> None:
    program = hand_made.ring("allgather", 2)
    first, *others = program.gpus[1].threadblocks
    gpu = dataclasses.replace(program.gpus[1], threadblocks=(dataclasses.replace(first, chan=channel), *others))
    xml.write(dataclasses.replace(program, nchannels=1, gpus=(program.gpus[0], gpu)), tmp_path / "wide.xml")
    code, _, err = command(arguments[0], tmp_path / "wide.xml", *arguments[1:])
    where = f"wide.xml: gpu 1 tb 0: chan is {channel}, but nchannels is 1"
    assert code == 2 and where in err and err.count("\n") == 1


def test_the_command_fails_with_one_line(command, tmp_path) -> None:
    good, bad, dead, ring = (tmp_path / name for name in ("good.xml", "bad.xml", "dead.xml", "ring.xml"))
    xml.write(hand_made.ring("allreduce", 2), ring)
    program = hand_made.ring("allgather", 2)
    xml.write(program, good)
    xml.write(with_step(program, 0, 0, 0, dstoff=1), bad)
    xml.write(hand_made.both_receive_first(), dead)
    for arguments, code, said in (
        ((bad,), 1, "wrong elements"),
        ((bad, "--inject", "rain"), 2, "unknown fault"),
        ((ring, "--dtype", "f8e4m3"), 1, "copies only"),
        ((dead, "--timeout", 0.3), 1, "stalled"),
        ((good, "--size", "1001B", "--exact"), 1, "not whole chunks"),
        ((tmp_path / "none.xml",), 2, "none.xml"),
        ((good, "--dtype", "float128"), 2, "float128"),
        ((good, "--op", "mean"), 2, "mean"),
        ((good, "--size", "big"), 2, "big"),
        ((good, "--root", "2"), 2, "not a rank"),
        ((good, "-e", "1M"), 2, "-b"),
        ((good, "-b", "1", "-e", "1TB", "-f", "1.0001"), 2, "use a larger -f"),
        ((good, "--slots", "0"), 2, "slots 0"),
        ((good, "--timeout", "nan"), 2, "timeout"),
    ):
        got, _, err = command("run", *arguments)
        assert (got, said in err.splitlines()[-1]) == (code, True), err
