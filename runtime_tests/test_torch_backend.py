"""The PyTorch backend in a real job of three processes: the same results and losses as gloo's, and a dead peer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import teccl_msccl
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.traced import read_traces

pytest.importorskip("torch", reason="torch is not installed: pip install 'teccl-msccl[torch]'")

JOB = str(Path(__file__).with_name("torch_job.py"))
PACKAGES = str(Path(teccl_msccl.__file__).parents[1])


def start(nranks: int, what: str, tmp_path: Path, **more: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(nranks)}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "TECCL_STORE": str(tmp_path / "store"), "CUDA_VISIBLE_DEVICES": ""} | more
    common["PYTHONPATH"] = os.pathsep.join(filter(None, (PACKAGES, common.get("PYTHONPATH"))))
    return [
        subprocess.Popen(
            [sys.executable, JOB, what], env=common | {"RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(nranks)
    ]  # fmt: skip


def test_the_same_as_gloo(tmp_path) -> None:
    ranks = start(3, "all", tmp_path, TECCL_TRACE=str(tmp_path / "trace"))
    told = [rank.communicate(timeout=150) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 3, told[0][1][-3000:] + told[1][1][-3000:]
    found = json.loads(told[0][0].splitlines()[-1])
    assert len(found["right"]) == 35 and all(found["right"].values()), found["right"]
    for how, (ours, theirs) in found["losses"].items():
        assert ours == pytest.approx(theirs, rel=1e-4), how
        assert ours[-1] < ours[0]
    stats = found["stats"]
    everything = {"allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce", "gather", "scatter"}
    assert set(stats["by_collective"]["custom"]) == everything
    assert set(stats["why"]) == {"barrier: no data"}
    traced = json.loads((tmp_path / "trace" / "rank-1.json").read_text())["traceEvents"]
    assert {"send", "receive", "wait", "reduce", "tb"} <= {event["name"].split()[0] for event in traced}
    assert {event["pid"] % 1_000_000 for event in traced} == {1}
    measured = read_traces(tmp_path / "trace", Topology.load("full-3"))
    assert {(m.src, m.dst) for m in measured} == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert all(0 < m.time_us < 150e6 for m in measured) and len({m.nbytes for m in measured}) > 10


def test_a_dead_peer_is_an_error_within_the_timeout(tmp_path) -> None:
    begin = time.monotonic()
    ranks = start(2, "die", tmp_path)
    told = [rank.communicate(timeout=90) for rank in ranks]
    assert time.monotonic() - begin < 80
    assert [rank.returncode for rank in ranks] == [3, -9]
    assert json.loads(told[0][0])["error"] == "rank 1's process has ended"


def test_torch_finds_the_backend_by_its_entry_point(tmp_path) -> None:
    """A job that imports nothing of ours, where the package's metadata is on the path."""
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
    metadata = tmp_path / "packages" / "teccl_msccl-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: teccl-msccl\nVersion: 0\n")
    lines = [f"[{group}]\n{name} = {target}\n" for group, found in declared.items() for name, target in found.items()]
    (metadata / "entry_points.txt").write_text("".join(lines))
    (rank,) = start(1, "found", tmp_path, PYTHONPATH=str(metadata.parent))
    out, errors = rank.communicate(timeout=90)
    assert rank.returncode == 0, errors[-3000:]
    assert json.loads(out) == {"backend": "teccl", "why": {"allreduce: one rank": 1}}
