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


def run_all(launcher, directory, nranks, made, options) -> None:
    """Execute every program in one job: each element of each must be right, and rank 0 alone speak."""
    lines = []
    for name, program in made.items():
        xml.write(program, directory / f"{name}.xml")
        lines.append(["run", str(directory / f"{name}.xml"), "--json", *ONCE, *options])
    told = launcher.start((nranks, [COMMAND_LINES, json.dumps(lines)]))
    assert told.returncode == 0, told.stderr
    answers = [json.loads(line) for line in told.stdout.splitlines()]
    assert len(answers) == len(lines)
    for answer in answers:
        assert (answer["ranks"], answer["transport"]) == (nranks, "mpi")
        assert {row["mode"] for row in answer["rows"]} == {"out-of-place", "in-place"}
        assert [row["wrong"] for row in answer["rows"]] == [0] * len(answer["rows"])


def test_every_collective(mpirun, tmp_path) -> None:
    run_all(mpirun, tmp_path, 2, programs(2, 1), ["--size", "0,1,1000001", "--dtype", "int8,float"])


@pytest.mark.parametrize(
    ("nranks", "k", "names", "options"),
    [
        (3, 1, ["direct-allreduce", "direct-scatter"], ["--size", "3001", "--dtype", "all", "--op", "all"]),
        (
            4,
            2,
            ["ring-allreduce", "ring-allgather", "direct-alltoall"],
            ["--size", "10001", "--dtype", "bfloat16", "--op", "avg", "--inject", "all", "--seed", "5"],
        ),
    ],
)
def test_more_ranks_types_and_faults(open_mpi, tmp_path, nranks, k, names, options) -> None:
    made = programs(nranks, k)
    run_all(open_mpi, tmp_path, nranks, {name: made[name] for name in names}, options)


def test_thirty_two_ranks(open_mpi, tmp_path) -> None:
    run_all(open_mpi, tmp_path, 32, {"ring": hand_made.ring("allgather", 32)}, ["--size", "1000"])


def test_a_quarter_of_a_gigabyte(open_mpi, tmp_path) -> None:
    run_all(open_mpi, tmp_path, 2, {"ring": hand_made.ring("allreduce", 2)}, ["--size", "256MB", "--dtype", "int8"])


def test_a_table_from_rank_0(open_mpi, tmp_path) -> None:
    xml.write(hand_made.ring("allreduce", 2), tmp_path / "ring.xml")
    told = open_mpi.start((2, ["-c", COMMAND, "run", tmp_path / "ring.xml", "--size", "64KB", *ONCE]))
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("# Out of bounds values : 0 OK") == 1
    assert "allreduce on 2 ranks (mpi)" in told.stdout


# -- faults ----------------------------------------------------------------------------------------------------------


def words(told) -> str:
    """What the job said, without the launcher's own words about codes."""
    return "\n".join(line for line in told.stderr.splitlines() if line.startswith(("error", "rank")))


def test_what_ranks_must_agree_on(mpirun, tmp_path) -> None:
    """One job after another of two ranks whose command lines differ, or do not fit: one line each, from rank 0."""
    for name, program in {
        "a": hand_made.ring("allreduce", 2),
        "b": hand_made.ring("allreduce", 2, k=2),
        "three": hand_made.ring("allreduce", 3),
    }.items():
        xml.write(program, tmp_path / f"{name}.xml")
    a, b, none, three = (str(tmp_path / f"{name}.xml") for name in ("a", "b", "none", "three"))
    expected = {
        "rank 1 has a different file from rank 0": ([a], [b]),
        "rank 1 has a different --size from rank 0": ([a], [a, "--size", "1KB"]),
        "rank 1 has a different --dtype from rank 0": ([a, "--dtype", "half"], [a]),
        "rank 1 has a different --op from rank 0": ([a], [a, "--op", "max"]),
        f"rank 1: {none}: cannot read": ([a], [none]),
        f"{three}: is for 3 ranks, but mpirun started 2; use -np 3": ([three], [three]),
    }
    parts = [json.dumps([["run", *pair[rank]] for pair in expected.values()]) for rank in range(2)]
    told = mpirun.start(*((1, [COMMAND_LINES, part]) for part in parts))
    assert told.returncode == 2
    said = words(told).splitlines()
    assert len(said) == len(expected), said
    for line, start in zip(said, expected, strict=True):
        assert line.startswith(f"error: {start}")


def test_wrong_elements_are_named(open_mpi, tmp_path) -> None:
    program = hand_made.direct("allgather", 2)
    text = xml.to_text(program).replace('dstoff="1"', 'dstoff="0"', 1)
    (tmp_path / "wrong.xml").write_text(text)
    told = open_mpi.start((2, ["-c", COMMAND, "run", tmp_path / "wrong.xml", "--size", "1KB", *ONCE]))
    assert told.returncode == 1
    assert "wrong elements" in words(told) and "rank 0 output[" in words(told) and "\n" not in words(told)
    assert "path of the first wrong element:" in told.stderr


def test_a_stall_names_every_blocked_threadblock(mpirun, tmp_path) -> None:
    xml.write(hand_made.both_receive_first(), tmp_path / "dead.xml")
    begin = time.monotonic()
    told = mpirun.start((2, ["-c", COMMAND, "run", tmp_path / "dead.xml", "--timeout", "1"]), timeout=30)
    assert told.returncode != 0 and time.monotonic() - begin < 20
    for rank in range(2):
        assert f"rank {rank} tb 0 step 0 (r) waits for a message from rank {1 - rank} on channel 0" in words(told)
        assert f"rank {rank} tb 1 step 0 (s) waits for tb 0 step 0" in words(told)


def test_credits_are_the_protocols_whatever_mpi_buffers(open_mpi, tmp_path) -> None:
    xml.write(hand_made.ring("allreduce", 3), tmp_path / "ring.xml")
    arguments = ["-c", COMMAND, "run", tmp_path / "ring.xml", "--slots", "1", "--timeout", "1"]
    told = open_mpi.start((3, arguments), timeout=30)
    assert told.returncode != 0
    assert "(rrs) waits for a free slot to rank 1 on channel 0 (1 in flight)" in words(told)


def test_a_rank_killed_in_the_middle_of_a_run_ends_the_job(mpirun, tmp_path) -> None:
    xml.write(hand_made.ring("allreduce", 3), tmp_path / "ring.xml")
    marker = f"teccl-marker-{os.getpid()}-{time.monotonic_ns()}"
    run = ["run", tmp_path / "ring.xml", "--iters", "1000000", "--timeout", "20"]
    die = (
        "import os, threading; from teccl_msccl.runtime.mpi import MpiExecution as E; execute = E.execute; "
        "die = threading.Timer(0.3, os.kill, (os.getpid(), 9)); "
        "E.execute = lambda self: (die.ident or die.start(), execute(self))[1]; "
    )
    begin = time.monotonic()
    told = mpirun.start(
        (2, ["-c", f"'{marker}'; {COMMAND}", *run]), (1, ["-c", f"'{marker}'; {die}{COMMAND}", *run]), timeout=60
    )
    assert told.returncode != 0 and time.monotonic() - begin < 50
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


def test_mpi4py_missing_names_the_extra(open_mpi, tmp_path) -> None:
    xml.write(hand_made.ring("allreduce", 2), tmp_path / "ring.xml")
    blocked = f"import sys; sys.modules['mpi4py'] = None; {COMMAND}"
    told = open_mpi.start((2, ["-c", blocked, "run", tmp_path / "ring.xml"]))
    assert told.returncode == 2
    assert words(told) == "error: started by mpirun, but mpi4py is not installed; pip install 'teccl-msccl[mpi]'"
