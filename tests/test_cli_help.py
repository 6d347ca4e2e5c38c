"""Help, examples, completion and suggestions: what they name exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from teccl_msccl.cli import main
from teccl_msccl.cli.app import app
from teccl_msccl.cli.examples import EXAMPLES


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(argv))
    return int(stop.value.code or 0)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_of_this_command_and_parse(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example's words are taken by the command's own parser, and its help shows them."""
    assert run(*name.split(), "--help") == 0
    shown = capsys.readouterr().out
    command = typer.main.get_command(app)
    words = name.split()
    while words:
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
    for example in EXAMPLES[name]:
        assert example in shown
        typed = re.sub(r"^.*teccl-msccl |[)\"]+$| <.*$", "", example)
        assert typed.startswith(name)
        rest = shlex.split(typed)[len(name.split()) :]
        command.make_context(name, [word for word in rest if word != "--json"])


def test_every_command_has_examples() -> None:
    def names(group: Any, path: str = "") -> Iterator[str]:
        for name, command in group.commands.items():
            yield from names(command, f"{path}{name} ") if hasattr(command, "commands") else [path + name]

    assert sorted(names(typer.main.get_command(app))) == sorted(EXAMPLES)


def test_completion() -> None:
    environment = os.environ | {
        "_TECCL_MSCCL_COMPLETE": "complete_bash",
        "COMP_WORDS": "teccl-msccl sy",
        "COMP_CWORD": "1",
    }
    for way in (["-c", "from teccl_msccl.cli import main; main()"], ["-m", "teccl_msccl"]):
        done = subprocess.run([sys.executable, *way], capture_output=True, text=True, env=environment, timeout=60)
        assert done.stdout.split() == ["synth"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("sinth",), "Did you mean 'synth'"),
        (("synth", "dgx1", "allgater", "--size", "1MB"), "did you mean allgather?"),
        (("synth", "dgx-a10", "allgather", "--size", "1MB"), "did you mean dgx-a100?"),
        (("check", "x.xml", "--target", "mscclp"), "did you mean mscclpp?"),
        (("synth", "dgx1", "allgather", "--sise", "1MB"), "did you mean --size?"),
        (("synth", "dgx1", "allgather", "--size", "1MB", "--time-limt", "3"), "did you mean --time-limit?"),
        (("topo", "shwo", "dgx1"), "Did you mean 'show'"),
        (("bounds", "rnig-8", "allgather", "--size", "1MB"), "did you mean ring-8?"),
        (("bounds", "dgx1x2", "allgather", "--size", "1MB", "--network", "rails"), "did you mean rail?"),
        (("synth", "dgx1", "allgather", "--size", "1MB", "--method", "gredy"), "did you mean greedy?"),
        (("synth", "dgx1", "allgather", "--size", "1MB", "--solver", "higs"), "did you mean highs?"),
        (("synth", "dgx1", "allgather", "--size", "1MB", "--target", "excutor"), "did you mean executor?"),
        (("synth", "dgx1", "allgather", "--size", "1MB", "--mode", "inplce"), "did you mean inplace?"),
        (("synth", "dgx1", "allgather", "--size", "1MB", "--protocol", "simple"), "did you mean Simple?"),
        (("synth", "dgx1", "allgather", "--size", "1MB", "--target", "mscclpp", "--mode", "both"), "or outofplace"),
        (("synth", "dgx1", "allgather", "--size", "1MB", "--target", "msccl", "--mode", "both"), "or outofplace"),
        (("bench", "dgx1", "allgather", "--methods", "rin"), "did you mean ring?"),
        (("store", "build", "dgx1", "--engine", "dsk"), "did you mean dask?"),
        (("report", "x.xml", "--format", "sgv"), "did you mean svg?"),
    ],
)
def test_suggestions(
    argv: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest right name, and no search before a wrong one is noticed."""
    monkeypatch.setattr("teccl_msccl.synthesis.incumbent.Incumbent.offer", lambda *_: pytest.fail("searched"))
    assert run(*argv) == 2
    assert words in capsys.readouterr().err


def test_help_and_import_are_light() -> None:
    """Neither loads what only commands need."""
    heavy = {"rich", "numpy", "networkx", "mip", "lxml", "matplotlib", "igraph", "torch", "mpi4py", "teccl_msccl._core"}
    for code in ("import teccl_msccl", "import sys; sys.argv = ['x', '--help']\nfrom teccl_msccl.cli import main\n"
                 "try: main()\nexcept SystemExit: pass"):  # fmt: skip
        told = f"{code}\nimport sys; print(sorted(set(sys.modules) & {heavy!r}), file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=60)
        assert done.stderr.strip() == "[]"
