"""A program for every preset topology, executed: up to 16 ranks by mpirun, larger machines over threads."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from teccl_msccl import Topology, lower, synthesize
from teccl_msccl.collective.demand import REDUCING
from teccl_msccl.program import xml
from teccl_msccl.runtime.elements import DTYPES
from teccl_msccl.runtime.sweep import Sweep, measure
from teccl_msccl.runtime.threads import ThreadWorld
from teccl_msccl.runtime.world import Settings
from teccl_msccl.topology.catalog import presets

COMMAND_LINES = str(Path(__file__).with_name("command_lines.py"))
ONCE = ["--iters", "1", "--warmup", "0", "--timeout", "30", "--json"]
MOST_PROCESSES = 16
#: Every machine meets one of them.
COLLECTIVES = ("allreduce", "alltoall", "allgather", "reduce_scatter")


def by_ranks() -> dict[int, list[str]]:
    sizes: dict[int, list[str]] = defaultdict(list)
    for name in sorted(presets()):
        sizes[Topology.load(name).nranks].append(name)
    return dict(sorted(sizes.items()))


PRESETS = by_ranks()


@pytest.mark.parametrize("nranks", [n for n in PRESETS if n <= MOST_PROCESSES])
def test_under_mpirun(open_mpi, tmp_path, nranks: int) -> None:
    lines = []
    for position, name in enumerate(PRESETS[nranks]):
        collective = COLLECTIVES[position % len(COLLECTIVES)]
        schedule = synthesize(Topology.load(name), collective, size="64KB", method="greedy", time_limit=0)
        file = tmp_path / f"{name}.xml"
        lower(schedule, protocol="Simple", spread=1).write(file)
        lines.append(["run", str(file), "--size", "1,10001", "--dtype", "int32", *ONCE])
    told = open_mpi.start((nranks, [COMMAND_LINES, json.dumps(lines)]), timeout=120)
    assert told.returncode == 0, told.stderr
    answers = [json.loads(line) for line in told.stdout.splitlines()]
    assert [Path(answer["file"]).stem for answer in answers] == PRESETS[nranks]
    assert {row["wrong"] for answer in answers for row in answer["rows"]} == {0}


@pytest.mark.parametrize("name", [name for n, names in PRESETS.items() if n > MOST_PROCESSES for name in names])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_larger_ones_over_threads(name: str, collective: str) -> None:
    topology = Topology.load(name)
    schedule = synthesize(topology, collective, size="64KB", method="greedy", time_limit=0, nchunks=1, root=3)
    program = xml.parse(xml.to_text(lower(schedule, protocol="Simple", spread=1)).encode(), name)
    sweep = Sweep((20_000,), (DTYPES["half"],), ("max",), iterations=1, warmup=0)
    rows = [measure(ThreadWorld(program.nranks), case, sweep, Settings()) for case in sweep.cases(program, 3, name)]
    assert [(row.mode, row.op, row.wrong) for row in rows] == [
        (mode, "max" if collective in REDUCING else "none", 0) for mode in ("out-of-place", "in-place")
    ]
