"""Fixtures that several files of tests use."""

from __future__ import annotations

import pytest

from teccl_msccl.cli import main


@pytest.fixture
def call(capfd, tmp_path, monkeypatch):
    """Run a command line in an empty directory: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return stop.value.code, out, err

    return run
