"""What `synth` makes, executed by mpirun: every collective, in place and out of place, on 2 to 16 ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from teccl_msccl.cli import main
from teccl_msccl.collective.demand import COLLECTIVES, REDUCING

COMMAND_LINES = str(Path(__file__).with_name("command_lines.py"))
OPERATIONS = 5  # sum, prod, max, min, avg
ONCE = ["--iters", "1", "--warmup", "0", "--timeout", "30"]


@pytest.fixture(scope="module")
def synthesized(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`synth` with the greedy search, each program made once for all launchers."""
    folder = tmp_path_factory.mktemp("programs")

    def make(topology: str, collective: str, seconds: float, *options: str) -> Path:
        file = folder / f"{topology}-{collective}.xml"
        if not file.exists():
            words = ["synth", topology, collective, "--size", "1MB", "--method", "greedy", "-o", str(file), "--json"]
            with pytest.raises(SystemExit) as stop:
                main([*words, "--time-limit", str(seconds), *options])
            assert stop.value.code == 0
        return file

    return make


def run_all(mpirun, nranks: int, files: Sequence[Path], *options: str, timeout: float = 80) -> list[dict]:
    """The answers of `run FILE`, all files in one MPI job."""
    lines = [["run", str(file), "--json", *ONCE, *options] for file in files]
    told = mpirun.start((nranks, [COMMAND_LINES, json.dumps(lines)]), timeout=timeout)
    assert told.returncode == 0, told.stderr
    answers = [json.loads(line) for line in told.stdout.splitlines()]
    assert [answer["file"] for answer in answers] == list(map(str, files))
    for answer in answers:
        assert (answer["ranks"], answer["transport"]) == (nranks, "mpi")
        assert {row["mode"] for row in answer["rows"]} == {"out-of-place", "in-place"}
        assert [row["wrong"] for row in answer["rows"]] == [0] * len(answer["rows"])
    return answers


def test_two_hosts_of_eight_gpus(mpirun, synthesized) -> None:
    files = [synthesized("dgx-a100x2", collective, 0.2, "--root", "9") for collective in COLLECTIVES]
    answers = run_all(mpirun, 16, files, "--size", "1,10001", "--root", "9")
    assert [answer["collective"] for answer in answers] == list(COLLECTIVES)
    assert {len(answer["rows"]) for answer in answers} == {4}


@pytest.mark.parametrize(
    ("topology", "nranks", "options"),
    [
        ("line-2", 2, ["--size", "0,1,10003", "--dtype", "half,int32,double", "--op", "all"]),
        ("star-3", 3, ["--size", "7001", "--dtype", "bfloat16,int32", "--op", "sum,prod", "--slots", "1"]),
        ("mesh-2x2", 4, ["--size", "12345", "--dtype", "half,int64", "--op", "sum,max"]),
        ("dgx1", 8, ["--size", "10001", "--dtype", "double", "--op", "min"]),
    ],
)
def test_small_machines(mpirun, synthesized, topology: str, nranks: int, options: list[str]) -> None:
    chunks = ["--chunks", "2", "--root", str(nranks - 1)]
    files = [synthesized(topology, collective, 0, *chunks) for collective in COLLECTIVES]
    answers = run_all(mpirun, nranks, files, *options)
    reducing = {answer["collective"]: len({row["op"] for row in answer["rows"]}) for answer in answers}
    asked = options[options.index("--op") + 1].split(",")
    operations = OPERATIONS if asked == ["all"] else len(asked)
    assert reducing == {collective: operations if collective in REDUCING else 1 for collective in COLLECTIVES}
