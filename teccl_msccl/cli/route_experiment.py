"""`route experiment`: the paper's comparison of routers, run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import output
from .route import route

if TYPE_CHECKING:
    from ..routing.experiment import Cell, Run


@route.command()
def experiment(
    out: Annotated[Path, typer.Option("-o", "--output", help="A directory for runs, table and figures.")],
    jobs: Annotated[str, typer.Option(help="Numbers of jobs: 1-5 or 1,3.")] = "1-5",
    dead_spines: Annotated[str, typer.Option("--dead-spines", help="Numbers of dead spines.")] = "0,1,4,8",
    draws: Annotated[int, typer.Option(help="Random draws of jobs and dead spines in each setting.")] = 3,
    seed: Annotated[int, typer.Option(help="What the draws start from.")] = 0,
) -> None:
    """Compare routers on 64 ToRs × 32 spines × 32 hosts per ToR at 100 Gb/s: GPT-3, BLOOM and LLaMA-2 70B jobs with
    rings of 2, 4 or 8 replicas on random whole ToRs. Slowdown is all-reduce time / time alone."""
    import json

    from ..errors import InputError
    from ..files import write_text
    from ..routing.experiment import as_csv, as_json, numbers, table
    from ..routing.experiment import experiment as run
    from ..routing.figures import draw

    counts, dead = numbers(jobs, "--jobs"), numbers(dead_spines, "--dead-spines")
    if draws < 1 or 0 in counts:
        raise InputError("--draws and --jobs must be 1 or more")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot write there: {error.strerror}; choose another -o") from None

    def tell(one: Run) -> None:
        output.note(
            f"{one.jobs} jobs, {one.dead_spines} dead spines, draw {one.draw + 1} of {draws}: {one.router} "
            f"{sum(one.slowdowns) / len(one.slowdowns):.2f}"
        )

    runs = run(counts, dead, draws, seed, tell=tell)
    cells = table(runs)
    files = [out / "runs.json", out / "table.csv"]
    write_text(files[0], json.dumps(as_json(runs)) + "\n")
    write_text(files[1], as_csv(cells))
    try:
        files += draw(cells, out)
    except InputError as error:
        output.warn(str(error))
    value = {"table": [cell._asdict() for cell in cells], "files": [str(file) for file in files]}
    output.answer(value, lambda: _show(cells, files))


def _show(cells: list[Cell], files: list[Path]) -> None:
    from rich.table import Table

    routers = list(dict.fromkeys(cell.router for cell in cells))
    printed = Table(
        "dead",
        "jobs",
        *routers,
        box=None,
        title="slowdown by dead spines and jobs: mean (largest)",
        title_justify="left",
    )
    for dead, jobs in sorted({(cell.dead_spines, cell.jobs) for cell in cells}):
        row = {cell.router: cell for cell in cells if (cell.dead_spines, cell.jobs) == (dead, jobs)}
        printed.add_row(str(dead), str(jobs), *(f"{row[r].mean:.2f} ({row[r].most:.3g})" for r in routers))
    output.stdout.print(printed)
    times = [sum(c.routing_ms for c in cells if c.router == r) / sum(c.router == r for c in cells) for r in routers]
    text = ", ".join(f"{router} {ms:.1f}" for router, ms in zip(routers, times, strict=True))
    output.stdout.print(f"ms to route, mean: {text}", soft_wrap=True)
    output.stdout.print(f"written {', '.join(map(str, files))}", markup=False, soft_wrap=True)
