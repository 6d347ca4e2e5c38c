"""Where jobs of a build run: processes here, or a cluster that loses a worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from teccl_msccl.errors import InputError
from teccl_msccl.store.engine import engine_named


def test_names_are_checked() -> None:
    with (
        pytest.raises(InputError, match=r"'slurm'.*local.*dask.*ray"),
        engine_named("slurm", 1, None),
    ):
        pass


@pytest.mark.parametrize(("name", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_an_engine_redoes_what_a_lost_worker_had_begun(tmp_path, name, module) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed: pip install 'teccl-msccl[{name}]'")

    def once_killed(marker: str) -> str:  # in here, it travels by value: workers need not find this file
        """Kills its own worker the first time."""
        if not Path(marker).exists():
            Path(marker).write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    with engine_named(name, 2, None) as engine:
        lost = engine.submit(once_killed, str(tmp_path / "marker"))
        fine = engine.submit(os.path.basename, "a/job")
        assert (lost.result(60), fine.result(60)) == ("done", "job")
