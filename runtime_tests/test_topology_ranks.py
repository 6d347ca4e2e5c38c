"""Topologies from several ranks: a cluster whose hosts detect themselves, and times measured between ranks."""

from __future__ import annotations

import json
import os

import pytest

from teccl_msccl.topology.model import Topology

COMMAND = "from teccl_msccl.cli import main; main()"
#: Every two ranks take themselves for a host of their own.
ON_HOSTS = """
from teccl_msccl.runtime import launch
start = launch.join
def on_hosts(found):
    world = start(found)
    world.MPI.Get_processor_name = lambda: f"host{world.rank // 2}"
    return world
launch.join = on_hosts
"""
MATRIX = (
    r"\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tNV4\tPIX\t0-7\nGPU1\tNV4\t X \tPIX\t0-7\nmlx5_0\tPIX\tPIX\t X \t\n"
)


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """An nvidia-smi that knows two bridged A100 and a NIC."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\n[ "$1" = topo ] && printf "{MATRIX}" || echo "GPU 0: NVIDIA A100-PCIE-40GB (UUID: x)"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    return tool


def test_every_host_detects_itself_and_rank_0_composes(mpirun, tmp_path, nvidia_smi) -> None:
    out = tmp_path / "cluster.json"
    told = mpirun.start(
        (4, ["-c", ON_HOSTS + COMMAND, "topo", "detect", "--network", "single-switch", "-o", out, "--json"])
    )
    assert told.returncode == 0, told.stderr
    answer = json.loads(told.stdout)
    assert (answer["nranks"], answer["hosts"], answer["file"]) == (4, 2, str(out))
    cluster = Topology.read(out)
    assert [node.host for node in cluster.nodes if node.kind == "gpu"] == [0, 0, 1, 1]
    assert {link.bandwidth_GBps for link in cluster.links if link.kind == "nvlink"} == {80.0}


def test_a_host_without_gpus_ends_detection_on_all_in_one_line(mpirun, tmp_path, nvidia_smi) -> None:
    nvidia_smi.write_text("#!/bin/sh\nexit 9\n")
    told = mpirun.start((4, ["-c", ON_HOSTS + COMMAND, "topo", "detect", "-o", tmp_path / "cluster.json"]))
    assert told.returncode == 2
    assert "no GPU here" in told.stderr
    assert "Traceback" not in told.stderr
    assert not (tmp_path / "cluster.json").exists()


def test_measuring_between_ranks(mpirun, tmp_path) -> None:
    out = tmp_path / "pair.json"
    told = mpirun.start((2, ["-c", COMMAND, "topo", "calibrate", "full-2", "-o", out, "--json"]))
    assert told.returncode == 0, told.stderr
    (fit,) = json.loads(told.stdout)["fits"]
    assert fit["measurements"] == 12
    assert fit["bandwidth_GBps"] > 0.01
    assert {link.bandwidth_GBps for link in Topology.read(out).links} == {float(f"{fit['bandwidth_GBps']:.6g}")}


def test_a_wrong_np_is_one_line(mpirun) -> None:
    told = mpirun.start((2, ["-c", COMMAND, "topo", "calibrate", "ring-3"]))
    assert told.returncode == 2
    assert "use -np 3" in told.stderr
