"""Times measured between the processes that torchrun starts, over gloo on the loopback."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import teccl_msccl
from teccl_msccl.topology.model import Topology

PACKAGES = Path(teccl_msccl.__file__).parents[1]
#: What only a traceback of ours names; torchrun prints one of its own whenever a process fails.
OUR_FILES = str(PACKAGES / "teccl_msccl")
COMMAND = "from teccl_msccl.cli import main; main()"
LAUNCHERS_OWN = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_")
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install 'teccl-msccl[torch]'"
)


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS_OWN)}
    packages = os.pathsep.join(filter(None, (str(PACKAGES), inherited.get("PYTHONPATH"))))
    on_cpus = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    return inherited | on_cpus | {"PYTHONPATH": packages} | more


def torchrun(script: Path, nranks: int, *arguments: object, code: str = COMMAND) -> subprocess.CompletedProcess[str]:
    script.write_text(code)
    words = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    words += ["--nproc-per-node", str(nranks), script, *arguments]
    return subprocess.run(
        [sys.executable, *map(str, words)], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )


def alone(*arguments: str, code: str = COMMAND, **variables: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", code, "topo", "calibrate", *arguments]
    return subprocess.run(words, env=environment(**variables), capture_output=True, text=True, timeout=60, check=False)


def errors(told: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in told.stderr.splitlines() if line.startswith("error:")]


@needs_torch
@pytest.mark.parametrize(("machine", "nranks", "times"), [("full-2", 2, 12), ("ring-4", 4, 18)])
def test_measuring_between_ranks(tmp_path, machine, nranks, times) -> None:
    out = tmp_path / "measured.json"
    told = torchrun(tmp_path / "calibrate.py", nranks, "topo", "calibrate", machine, "-o", out, "--json")
    assert told.returncode == 0, told.stderr
    (fit,) = json.loads(told.stdout)["fits"]  # one object: rank 0's
    assert fit["measurements"] == times
    assert fit["bandwidth_GBps"] > 0.001
    assert {link.bandwidth_GBps for link in Topology.read(out).links} == {float(f"{fit['bandwidth_GBps']:.6g}")}


@needs_torch
def test_a_wrong_number_of_processes_is_said_once(tmp_path) -> None:
    told = torchrun(tmp_path / "calibrate.py", 2, "topo", "calibrate", "ring-3", "-o", tmp_path / "out.json")
    assert told.returncode != 0
    assert errors(told) == ["error: ring-3 has 3 GPUs, but torchrun started 2; use --nproc-per-node 3"]
    assert OUR_FILES not in told.stderr
    assert not (tmp_path / "out.json").exists()


LOST = """
import os
from teccl_msccl.runtime import measure
from teccl_msccl.cli import main
timed = measure._half_round_trip_us
def lose_one(ranks, src, dst, nbytes, iterations):
    if ranks.rank == 1 and nbytes > 1:
        os._exit(7)
    return timed(ranks, src, dst, nbytes, iterations)
measure._half_round_trip_us = lose_one
main()
"""


@needs_torch
def test_a_lost_process_ends_the_others_and_writes_nothing(tmp_path) -> None:
    out = tmp_path / "out.json"
    told = torchrun(tmp_path / "calibrate.py", 2, "topo", "calibrate", "full-2", "-o", out, code=LOST)
    assert told.returncode != 0
    assert not out.exists()
    assert OUR_FILES not in told.stderr


ALONE = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_without_torch_it_says_what_to_install() -> None:
    hidden = "import sys; sys.modules['torch'] = None; " + COMMAND
    told = alone("full-2", code=hidden, **ALONE)
    assert told.returncode == 2
    assert told.stderr == "error: started by torchrun, but torch is not installed; pip install 'teccl-msccl[torch]'\n"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "first"}, "RANK='first' in the environment is no number"),
        ({"WORLD_SIZE": "-2"}, "WORLD_SIZE='-2'"),
        ({"RANK": "2"}, "RANK=2 with WORLD_SIZE=2; ranks are 0 to 1"),
    ],
)
def test_an_environment_that_torchrun_never_sets(variables, said) -> None:
    told = alone("full-2", **ALONE | variables)
    assert told.returncode == 2
    assert said in told.stderr
    assert len(told.stderr.splitlines()) == 1


@needs_torch
def test_a_group_that_cannot_be_joined() -> None:
    told = alone("full-2", **ALONE | {"MASTER_PORT": "port"})
    assert told.returncode == 2
    (line,) = errors(told)
    assert "cannot join torchrun's process group at 127.0.0.1:port" in line
