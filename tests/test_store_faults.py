"""Faults around the store: a full disk, a read-only one, a builder that is killed; clear, early, nothing corrupt."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from test_store_build import PLAN, Here, quiet, told

from teccl_msccl.errors import InputError
from teccl_msccl.store.build import Plan, build
from teccl_msccl.store.store import Store
from teccl_msccl.topology.model import Topology

SMALL = Plan(("allgather",), (1000,), method="greedy", seconds=0.0)


@contextmanager
def files_of_at_most(nbytes: int):
    """What a full disk does to writers: the system refuses in the middle of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("nbytes", [10, 600, 1500, 2500])
def test_a_disk_that_fills_up_at_any_time_leaves_nothing_corrupt(tmp_path, nbytes) -> None:
    store, topology = Store(tmp_path), Topology.load("ring-3")
    with files_of_at_most(nbytes), pytest.raises(InputError, match="cannot write: File too large"):
        build(store, topology, SMALL, Here(), quiet)
    assert not list(tmp_path.rglob(".*"))  # no halves left behind
    for folder in store.folders():
        assert store.problems(folder) == []
    build(store, topology, SMALL, Here(), quiet)
    assert store.problems(store.find(topology).folder) == []


def test_a_full_disk_is_one_line_of_the_command(tmp_path, capsys) -> None:
    words = ("store", "build", "ring-3", "--collectives", "allgather", "--sizes", "1KB", "--method", "greedy")
    with files_of_at_most(1500):  # in a worker
        code, answer = told(capsys, *words, "--time-limit", 0, "--jobs", 1, "--store", tmp_path)
    assert code == 2 and answer["error"].count("\n") == 0 and "File too large" in answer["error"]


def test_a_read_only_store_serves_and_is_not_written(tmp_path, monkeypatch) -> None:
    store, topology = Store(tmp_path), Topology.load("ring-3")
    build(store, topology, SMALL, Here(), quiet)

    def refused(*_, **__):
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr("teccl_msccl.store.store.open", refused, raising=False)
    machine = store.find(topology)
    assert machine.program(machine.select("allgather", 1000)).nranks == 3
    with pytest.raises(InputError, match="cannot write the store: Read-only file system; choose another --store"):
        build(store, topology, PLAN, Here(), quiet)


def test_a_builder_that_is_killed_is_gone_on_with(tmp_path) -> None:
    topology, store = Topology.load("ring-3"), Store(tmp_path)
    machine = store.open(topology)
    folder = machine.folder / "candidates"
    code = (
        "import os, signal\nfrom teccl_msccl.store import candidate\nfrom teccl_msccl.store.build import build\n"
        "from test_store_faults import *\n"
        "done = []\n"
        "def make(job, make=candidate._make):\n"
        "    if len(done) == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    done.append(job)\n"
        "    return make(job)\n"
        "candidate._make = make\n"
        f"build(Store({str(tmp_path)!r}), Topology.load('ring-3'), SMALL, Here(), quiet)\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    begin = time.monotonic()
    killed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL and time.monotonic() - begin < 60
    kept = {path: path.read_bytes() for path in folder.glob("*.json")}
    assert len(kept) == 1 and all(json.loads(data) for data in kept.values())
    build(store, topology, SMALL, Here(), quiet)  # the lock of the dead does not hold it up
    assert {path: path.read_bytes() for path in kept} == kept
    assert store.problems(machine.folder) == []
