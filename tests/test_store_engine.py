"""Where jobs of a build run: processes here, or a dask cluster that loses a worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from teccl_msccl.errors import InputError
from teccl_msccl.store.engine import engine_named


def once_killed(marker: str) -> str:
    """Kills its own worker the first time."""
    if not Path(marker).exists():
        Path(marker).write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def test_names_are_checked() -> None:
    with pytest.raises(InputError, match="unknown engine 'slurm'; use local or dask"), engine_named("slurm", 1, None):
        pass


def test_dask_redoes_what_a_lost_worker_had_begun(tmp_path) -> None:
    pytest.importorskip("distributed", reason="dask.distributed is not installed: pip install 'teccl-msccl[dask]'")
    with engine_named("dask", 2, None) as engine:
        assert engine.submit(once_killed, str(tmp_path / "marker")).result(60) == "done"
