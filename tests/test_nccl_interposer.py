"""The NCCL interposer in real processes, over a stand-in for NCCL and CUDA in host memory (tests/nccl_standin)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import hand_made
import pytest
from nccl_standin import programs, standin

from teccl_msccl.errors import Refused
from teccl_msccl.runtime.doctor import libraries
from teccl_msccl.store import launch
from teccl_msccl.store.build import Plan, build
from teccl_msccl.store.rounds_file import Served, packed
from teccl_msccl.store.store import Store
from teccl_msccl.topology.model import Topology

LIBRARY = libraries()["nccl_interposer"]
COMPILERS = shutil.which("c++") and shutil.which("cc")
pytestmark = [
    pytest.mark.skipif(LIBRARY is None, reason="this build has no libteccl_nccl.so"),
    pytest.mark.skipif(not COMPILERS, reason="no C and C++ compiler for the stand-in"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The stand-in, the driver program, and the programs that it is to run."""
    folder = tmp_path_factory.mktemp("nccl")
    standin.build_standin(folder)
    (folder / "programs.teccl").write_bytes(packed(programs.served(4), [0] * 4))
    return folder


class Outcome:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.text = done.returncode, done.stderr
        self.ranks = [json.loads(line) for line in done.stdout.splitlines()]

    def __repr__(self) -> str:
        return f"exit {self.code}: {self.ranks}\n{self.text[-3000:]}"

    @property
    def right(self) -> bool:
        return self.code == 0 and bool(self.ranks) and not any(rank["wrong"] for rank in self.ranks)

    def collectives(self) -> set[int]:
        """What the ranks asked of NCCL besides comparing programs, once for every communicator."""
        return {rank["collectives"] - 1 for rank in self.ranks}


@pytest.fixture
def drive(built):
    """Run the driver program under the interposer."""

    def run(scenario: str, *arguments: str, preload: str | None = LIBRARY, **environment: str) -> Outcome:
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("TECCL_", "NCCL_"))}
        variables |= {"LD_LIBRARY_PATH": str(built), "TECCL_NCCL_TIMEOUT": "5"}
        variables |= {"TECCL_NCCL_PROGRAMS": str(built / "programs.teccl")} | environment
        variables |= {"LD_PRELOAD": preload} if preload else {}
        command = [str(built / "driver"), scenario, *arguments]
        return Outcome(subprocess.run(command, env=variables, capture_output=True, text=True, timeout=90))

    return run


# -- what must be right -------------------------------------------------------------------------------------------


def test_the_driver_agrees_with_the_stand_in(drive) -> None:
    """Without the interposer, so that what follows is measured with a straight rule."""
    done = drive("all", preload=None)
    assert done.right, done
    assert {rank["sends"] for rank in done.ranks} == {0}


def test_every_collective_type_operator_size_and_mode(drive) -> None:
    done = drive("all")
    assert done.right, done
    assert {rank["checked"] for rank in done.ranks} == {3 * 12 * (2 * (3 * 5 + 4) + 1)}
    assert done.collectives() == {0}


def test_messages_at_any_moment(drive) -> None:
    done = drive("all", "type=half,int64", "op=sum,avg", "counts=7,3333,40000", STANDIN_JITTER="1")
    assert done.right, done
    assert done.collectives() == {0}


def test_roots_and_odd_numbers_of_ranks(drive, built) -> None:
    path = built / "five.teccl"
    path.write_bytes(packed(programs.served(5, root=3), [0] * 5))
    done = drive("all", "ranks=5", "root=3", "type=float,uint8", "op=sum,max", TECCL_NCCL_PROGRAMS=str(path))
    assert done.right, done
    assert done.collectives() == {0}
    elsewhere = drive(
        "all", "ranks=5", "root=2", "type=float", "op=sum", "collective=reduce", TECCL_NCCL_PROGRAMS=str(path)
    )
    assert elsewhere.right, elsewhere
    assert {rank["sends"] for rank in elsewhere.ranks} == {0}


@pytest.mark.parametrize(
    "scenario", ["group", "graph", "streams", "two_streams", "grow", "scalable", "null_stream", "one_process"]
)
def test_semantics_are_kept(drive, scenario) -> None:
    done = drive(scenario, "type=float", "op=sum", STANDIN_JITTER="1")
    assert done.right, done
    assert all(rank["sends"] > 0 for rank in done.ranks)


@pytest.mark.parametrize("scenario", ["nonblocking", "premul", "errors"])
def test_what_programs_cannot_say_is_delegated(drive, scenario) -> None:
    done = drive(scenario, "type=float", "op=sum")
    assert done.right, done
    assert {rank["sends"] for rank in done.ranks} == {0}


def test_sub_communicators(drive) -> None:
    """Of four ranks' programs, communicators of two and three ranks use none."""
    done = drive("split", "type=float", "op=sum", TECCL_DEBUG="INFO")
    assert done.right, done
    assert "another number of ranks" in done.text
    assert all(rank["sends"] > 0 for rank in done.ranks)


def test_programs_that_serve_calls_out_of_place_only(drive, built) -> None:
    """Calls in place run them on a copy of the input."""
    only = [replace(each, program=replace(each.program, inplace=False)) for each in programs.served(4)]
    path = built / "outofplace.teccl"
    path.write_bytes(packed(only, [0] * 4))
    done = drive("all", "type=float", "op=sum,avg", "mode=in", TECCL_NCCL_PROGRAMS=str(path))
    assert done.right, done
    assert done.collectives() == {0}


# -- which program, and what is said of it ----------------------------------------------------------------------------


def test_the_size_chooses_the_program(drive) -> None:
    first = programs.CHANGE // (4 * 4)  # floats of four ranks
    for count, name in ((first - 1, "small"), (first, "large")):
        done = drive("all", "collective=allgather", "type=float", f"counts={count}", "mode=out", TECCL_DEBUG="INFO")
        assert f"allgather of {4 * count} bytes a share: custom, allgather-{name}\n" in done.text


def test_a_store_serves_its_machine(drive, tmp_path, monkeypatch) -> None:
    """What `store env` says and writes for a store's machine, under an own numbering of its ranks."""
    monkeypatch.setattr(launch, "tuned", lambda machine: {})
    monkeypatch.setenv("LD_PRELOAD", f"other.so:{LIBRARY}")
    topology, store = Topology.load("line-4"), Store(tmp_path)
    plan = Plan(("allgather", "allreduce", "broadcast"), (1000, 100_000), method="greedy", seconds=0.0, root=2)
    with ThreadPoolExecutor(1) as engine:
        build(store, topology, plan, engine, lambda *_: None)
    order = {0: 3, 1: 2, 2: 1, 3: 0}
    turned = replace(topology, nodes=tuple(replace(node, rank=order[node.rank]) for node in topology.nodes))
    for machine in (store.find(topology), store.find(turned)):
        variables = launch.environment(machine, "nccl", tmp_path)
        assert variables.pop("LD_PRELOAD") == f"{LIBRARY}:other.so"
        root = machine.permutation.index(next(each.root for each in machine.manifest.entries if each.root is not None))
        asked = ["type=half", "op=sum", f"root={root}", "collective=allgather,allreduce,broadcast", "counts=7,9000"]
        done = drive("all", *asked, **variables)
        assert done.right, done
        assert done.collectives() == {0}
    empty = Store(tmp_path / "empty").open(topology)
    with pytest.raises(Refused, match="nothing for nccl"):
        launch.environment(empty, "nccl", tmp_path)


def test_the_summary_says_what_ran_and_why_not(drive) -> None:
    done = drive("premul", TECCL_DEBUG="INFO")
    assert "summary: allreduce: 1 delegated (an operator of the user's)" in done.text
    done = drive("all", "type=float", "op=sum", "collective=allgather", TECCL_DEBUG="INFO")
    assert "summary: allgather: 6 custom" in done.text
    assert drive("all", "type=float", "op=sum", "collective=allgather").text == ""


def test_only_what_is_overridden_is_exported() -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
    collectives = {
        "AllGather",
        "ReduceScatter",
        "AllReduce",
        "Broadcast",
        "Bcast",
        "Reduce",
        "AlltoAll",
        "Gather",
        "Scatter",
    }
    groups = {"GroupStart", "GroupEnd", "GroupSimulateEnd"}
    births = {
        "CommInitRank",
        "CommInitAll",
        "CommInitRankConfig",
        "CommInitRankScalable",
        "CommSplit",
        "CommShrink",
        "CommGrow",
    }
    deaths = {"CommFinalize", "CommDestroy", "CommAbort", "CommRevoke"}
    wanted = collectives | groups | births | deaths
    assert {line.split()[-1] for line in listed.splitlines()} == {f"nccl{name}" for name in wanted}


# -- faults: delegated or failed by NCCL's codes, with a line, and nobody hangs ---------------------------------------

SOME = ("type=float", "op=sum", "counts=1000")


def delegated(done: Outcome) -> bool:
    return done.right and {rank["sends"] for rank in done.ranks} == {0}


def test_no_store(drive) -> None:
    done = drive("all", *SOME, TECCL_NCCL_PROGRAMS="", TECCL_DEBUG="INFO")
    assert delegated(done), done
    assert "no programs (TECCL_NCCL_PROGRAMS is not set)" in done.text


def test_a_file_that_is_missing_or_damaged(drive, built) -> None:
    whole = (built / "programs.teccl").read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    for number, data in enumerate((None, b"", whole[:50], whole[:-8], bytes(damaged), b"not this" + whole[8:])):
        path = built / f"bad{number}.teccl"
        if data is not None:
            path.write_bytes(data)
        done = drive("all", *SOME, TECCL_NCCL_PROGRAMS=str(path))
        assert delegated(done), done
        assert done.text.count("\n") == 4
        assert f"{path}: " in done.text and "run store env" in done.text


def test_a_store_of_another_machine(drive, built) -> None:
    path = built / "eight.teccl"
    path.write_bytes(packed([Served(hand_made.ring("allgather", 8), None, 0, 1 << 40)], [0] * 8))
    done = drive("all", *SOME, TECCL_NCCL_PROGRAMS=str(path), TECCL_DEBUG="INFO")
    assert delegated(done), done
    assert "another number of ranks" in done.text
    path.write_bytes(packed(programs.served(4), [0, 0, 1, 1]))
    done = drive("all", *SOME, TECCL_NCCL_PROGRAMS=str(path))
    assert delegated(done), done
    assert "on other hosts" in done.text
    hosts = {"HOST_0": "a", "HOST_1": "a", "HOST_2": "b", "HOST_3": "b"}
    assert drive("all", *SOME, TECCL_NCCL_PROGRAMS=str(path), **hosts).collectives() == {0}
    turned = hosts | {"HOST_1": "b", "HOST_2": "a"}
    assert delegated(drive("all", *SOME, TECCL_NCCL_PROGRAMS=str(path), **turned))


def test_ranks_with_different_stores(drive, built) -> None:
    path = built / "other.teccl"
    path.write_bytes(packed([Served(hand_made.direct("allgather", 4), None, 0, 1 << 40)], [0] * 4))
    done = drive("all", *SOME, PROGRAMS_2=str(path))
    assert delegated(done), done
    assert "rank 0: rank 2 has other programs" in done.text
    done = drive("all", *SOME, PROGRAMS_2="")
    assert delegated(done), done


def test_unknown_versions(drive) -> None:
    for version in ("21805", "24001", "30000"):
        done = drive("all", *SOME, STANDIN_NCCL_VERSION=version, TECCL_DEBUG="INFO")
        assert delegated(done), done
        assert "a version of NCCL that is not known" in done.text
    assert drive("all", *SOME, STANDIN_NCCL_VERSION="22003").collectives() == {0}


def test_no_reduction_kernel(drive) -> None:
    """Copies are programs still."""
    done = drive("all", *SOME, STANDIN_NO_COMPILER="1", TECCL_DEBUG="INFO")
    assert done.right, done
    assert "summary: allreduce: 2 delegated (no reduction kernel)" in done.text
    assert "summary: allgather: 2 custom" in done.text


def test_too_little_scratch(drive) -> None:
    done = drive("all", *SOME, "collective=allreduce", TECCL_NCCL_SCRATCH="100", TECCL_DEBUG="INFO")
    assert delegated(done), done
    assert "more scratch than" in done.text


@pytest.mark.parametrize("scenario", ["death", "early_death"])
def test_a_rank_that_dies(drive, scenario) -> None:
    done = drive(scenario)
    assert done.right, done
    assert len(done.ranks) == 3


def test_another_thread_aborts(drive) -> None:
    done = drive("abort")
    assert done.right, done
    assert len(done.ranks) == 4


def test_a_rank_that_is_not_preloaded(drive) -> None:
    done = drive("absent", TECCL_NCCL_TIMEOUT="1")
    assert done.right, done
    assert done.text.count("is the library preloaded on all of them?") == 3


def test_no_memory(drive) -> None:
    done = drive("no_memory")
    assert done.right, done
    assert done.text.count("no device memory") == 4
