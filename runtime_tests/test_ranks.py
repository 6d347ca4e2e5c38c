"""Programs executed by mpirun, one rank per process, and what happens when something is wrong."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import hand_made
import pytest

from teccl_msccl.program import xml

COMMAND_LINES = str(Path(__file__).with_name("command_lines.py"))
COMMAND = "from teccl_msccl.cli import main; main()"
ONCE = ["--iters", "1", "--warmup", "0", "--timeout", "20"]


def programs(nranks: int, k: int) -> dict[str, object]:
    """Every collective directly, and the fused rings."""
    made = {f"direct-{name}": hand_made.direct(name, nranks, k, root=nranks // 2) for name in hand_made.COLLECTIVES}
    rings = ("allgather", "reduce_scatter", "allreduce")
    return made | {f"ring-{name}": hand_made.ring(name, nranks, k, "LL") for name in rings}


@pytest.mark.parametrize(
    ("nranks", "k", "sizes", "options"),
    [
        (2, 1, "0,1,3000001", ["--dtype", "int8,half,float"]),
        (4, 2, "100001", ["--dtype", "bfloat16,int64", "--op", "prod,min"]),
        (7, 1, "70001", ["--dtype", "double", "--slots", "2"]),
    ],
)
def test_every_collective(mpirun, tmp_path, nranks, k, sizes, options) -> None:
    lines = []
    for name, program in programs(nranks, k).items():
        xml.write(program, tmp_path / f"{name}.xml")
        lines.append(["run", str(tmp_path / f"{name}.xml"), "--json", "--size", sizes, *ONCE, *options])
    told = mpirun.start((nranks, [COMMAND_LINES, json.dumps(lines)]))
    assert told.returncode == 0, told.stderr
    answers = [json.loads(line) for line in told.stdout.splitlines()]
    assert len(answers) == len(lines)  # rank 0 alone speaks
    for answer in answers:
        assert (answer["ranks"], answer["transport"]) == (nranks, "mpi")
        assert {row["mode"] for row in answer["rows"]} == {"out-of-place", "in-place"}
        assert [row["wrong"] for row in answer["rows"]] == [0] * len(answer["rows"])


def test_sixteen_ranks(mpirun, tmp_path) -> None:
    lines = []
    for name in ("allreduce", "alltoall"):
        xml.write(hand_made.direct(name, 16), tmp_path / f"{name}.xml")
        lines.append(["run", str(tmp_path / f"{name}.xml"), "--json", "--size", "10000", *ONCE])
    told = mpirun.start((16, [COMMAND_LINES, json.dumps(lines)]))
    assert told.returncode == 0, told.stderr
    assert [row["wrong"] for line in told.stdout.splitlines() for row in json.loads(line)["rows"]] == [0] * 4


def test_a_table_from_rank_0(mpirun, tmp_path) -> None:
    xml.write(hand_made.ring("allreduce", 2), tmp_path / "ring.xml")
    told = mpirun.start((2, ["-c", COMMAND, "run", tmp_path / "ring.xml", "--size", "64KB", *ONCE]))
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("# Out of bounds values : 0 OK") == 1
    assert "allreduce on 2 ranks (mpi)" in told.stdout


# -- faults ----------------------------------------------------------------------------------------------------------


def words(told) -> str:
    """What the job said, without the launcher's own words about codes."""
    return "\n".join(line for line in told.stderr.splitlines() if line.startswith(("error", "rank")))


def test_a_wrong_np_is_one_line_and_code_2(mpirun, tmp_path) -> None:
    xml.write(hand_made.ring("allreduce", 3), tmp_path / "ring.xml")
    told = mpirun.start((2, ["-c", COMMAND, "run", tmp_path / "ring.xml"]))
    assert told.returncode == 2
    assert words(told) == f"error: {tmp_path}/ring.xml: is for 3 ranks, but mpirun started 2; use -np 3"


def test_a_different_file_or_option_on_one_rank(mpirun, tmp_path) -> None:
    xml.write(hand_made.ring("allreduce", 2), tmp_path / "a.xml")
    xml.write(hand_made.ring("allreduce", 2, k=2), tmp_path / "b.xml")
    for other, what in (
        (["b.xml"], "rank 1 has a different file"),
        (["a.xml", "--size", "1KB"], "rank 1 has a different options"),
        (["none.xml"], "rank 1: none.xml: cannot read"),
    ):
        rank0, rank1 = (
            ["-c", f"import os; os.chdir({str(tmp_path)!r}); {COMMAND}", "run", *file] for file in (["a.xml"], other)
        )
        told = mpirun.start((1, rank0), (1, rank1))
        assert told.returncode == 2
        assert words(told).startswith(f"error: {what}") and "\n" not in words(told)


def test_wrong_elements_are_named(mpirun, tmp_path) -> None:
    program = hand_made.direct("allgather", 2)
    text = xml.to_text(program).replace('dstoff="1"', 'dstoff="0"', 1)
    (tmp_path / "wrong.xml").write_text(text)
    told = mpirun.start((2, ["-c", COMMAND, "run", tmp_path / "wrong.xml", "--size", "1KB", *ONCE]))
    assert told.returncode == 1
    assert "wrong elements" in words(told) and "rank 0 output[" in words(told) and "\n" not in words(told)


def test_a_stall_names_every_blocked_threadblock(mpirun, tmp_path) -> None:
    xml.write(hand_made.both_receive_first(), tmp_path / "dead.xml")
    begin = time.monotonic()
    told = mpirun.start((2, ["-c", COMMAND, "run", tmp_path / "dead.xml", "--timeout", "1"]), timeout=30)
    assert told.returncode != 0 and time.monotonic() - begin < 20
    for rank in range(2):
        assert f"rank {rank} tb 0 step 0 (r) waits for a message from rank {1 - rank} on channel 0" in words(told)
        assert f"rank {rank} tb 1 step 0 (s) waits for tb 0 step 0" in words(told)


def test_credits_are_the_protocols_whatever_mpi_buffers(mpirun, tmp_path) -> None:
    xml.write(hand_made.ring("allreduce", 3), tmp_path / "ring.xml")
    arguments = ["-c", COMMAND, "run", tmp_path / "ring.xml", "--slots", "1", "--timeout", "1"]
    told = mpirun.start((3, arguments), timeout=30)
    assert told.returncode != 0
    assert "(rrs) waits for a free slot to rank 1 on channel 0 (1 in flight)" in words(told)


def test_a_killed_rank_ends_the_job(mpirun, tmp_path) -> None:
    xml.write(hand_made.both_receive_first(), tmp_path / "dead.xml")
    marker = f"teccl-marker-{os.getpid()}-{time.monotonic_ns()}"
    run = ["run", tmp_path / "dead.xml", "--timeout", "25"]
    die = "import os, threading; threading.Timer(2, os.kill, (os.getpid(), 9)).start(); "
    told = mpirun.start(
        (1, ["-c", f"'{marker}'; {COMMAND}", *run]), (1, ["-c", f"'{marker}'; {die}{COMMAND}", *run]), timeout=40
    )
    assert told.returncode != 0
    deadline = time.monotonic() + 5
    while orphans(marker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert orphans(marker) == []


def orphans(marker: str) -> list[str]:
    """Processes whose command line has `marker`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_mpi4py_missing_names_the_extra(mpirun, tmp_path) -> None:
    xml.write(hand_made.ring("allreduce", 2), tmp_path / "ring.xml")
    blocked = f"import sys; sys.modules['mpi4py'] = None; {COMMAND}"
    told = mpirun.start((2, ["-c", blocked, "run", tmp_path / "ring.xml"]))
    assert told.returncode == 2
    assert words(told) == "error: started by mpirun, but mpi4py is not installed; pip install 'teccl-msccl[mpi]'"
