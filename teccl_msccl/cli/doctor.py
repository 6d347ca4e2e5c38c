"""`doctor`: what is here, and what to do next."""

from __future__ import annotations

from dataclasses import asdict

import typer

from . import output
from .app import app


@app.command()
def doctor() -> None:
    """Say what this machine has (solvers, MPI, torch, GPUs, NCCL, runtimes that take our files) and what to do next."""
    from ..runtime.doctor import examine, libraries

    findings = examine()
    found = libraries()
    lacking = [finding for finding in findings if finding.needed and not finding.found]
    gpus = next((finding.found for finding in findings if finding.name == "NVIDIA GPUs"), False)
    machine = "local" if gpus else "dgx-h100"
    following = lacking[0].advice if lacking else f"teccl-msccl synth {machine} allgather --size 64MB"

    def show() -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=False)
        for column in ("no_wrap", "no_wrap", "fold"):
            table.add_column(no_wrap=column == "no_wrap", overflow="fold")
        for finding in findings:
            word, style = (
                ("yes", "green") if finding.found else ("MISSING", "bold red") if finding.needed else ("no", "yellow")
            )
            about = "; ".join(part for part in (finding.detail, finding.advice) if part)
            table.add_row(Text(word, style), finding.name, Text(about))
        for name, path in found.items():
            table.add_row(
                Text("yes" if path else "no", "green" if path else "yellow"), name, Text(path or "not in this build")
            )
        output.stdout.print(table)
        output.stdout.print(f"next: {following}", markup=False, soft_wrap=True)

    output.answer(
        {
            "ok": not lacking,
            "findings": [asdict(finding) for finding in findings],
            "libraries": found,
            "next": following,
        },
        show,
    )
    if lacking:
        raise typer.Exit(1)
