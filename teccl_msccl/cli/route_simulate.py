"""`route simulate`: jobs over iterations on a fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import output
from .route import Mode, route


@route.command()
def simulate(
    file: Annotated[Path, typer.Argument(metavar="JOBS.json", help="`fabric`, `jobs`, and `events` of its links.")],
    router: Annotated[
        str, typer.Option(help="auto (the periodic controller), or a router of `route optimize` used as jobs arrive.")
    ] = "auto",
    mode: Mode = "coll",
    period: Annotated[float, typer.Option(help="Seconds between the controller's timers; 0 for none.")] = 0.0,
    seed: Annotated[int, typer.Option(help="For ecmp and anneal.")] = 0,
) -> None:
    """Simulate jobs flow by flow: all-reduce times, slowdowns, flow completion times, throughput, what routing cost.

    JOBS.json: {"fabric": {…}, "jobs": [{"job": "J", "model": "gpt3", "dp": 4, "hosts": [0, 1, …], "iterations": 10,
    "compute_s": 1.0}], "events": [{"t": 3, "event": "spine", "spine": 0, "alive": false}]}. Models: gpt3, bloom,
    llama2-70b, or null with "bytes" (gradients of a GPU). A job has tp × pp × dp ranks, rank (d·pp + p)·tp + t, and a
    host (NIC) for each or for each so many; "ep", "pp_bytes", "ep_bytes" and "start_s" may be given, or "flows".
    """
    from ..errors import InputError, unknown
    from ..routing.metric import MODES
    from ..routing.routers import ROUTERS
    from ..routing.scenario import Scenario
    from ..routing.simulate import simulate as run

    if mode not in MODES:
        raise unknown("mode", mode, MODES)
    if router not in ROUTERS:
        raise unknown("router", router, ROUTERS)
    if not 0 <= period < float("inf"):
        raise InputError(f"--period is {period}; use 0 or more seconds")
    value = {"router": router, "mode": mode, **run(Scenario.read(file), router, mode, seed, period).to_json()}
    output.answer(value, lambda: _show(value))


def _show(value: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("job", "communication", "mean s", "alone s", "slowdown", "iterations", box=None)
    for job, kinds in value["jobs"].items():
        for kind, row in kinds.items():
            table.add_row(
                Text(job), kind, f"{row['mean_s']:.6g}", f"{row['alone_s']:.6g}", f"{row['slowdown']:.3f}",
                str(len(row["iterations"])),
            )  # fmt: skip
    output.stdout.print(table)
    times, control = value["flow_completion_s"], value["controller"]
    if times["mean"] is not None:
        output.stdout.print(
            f"flow completion: mean {times['mean']:.6g} s, median {times['p50']:.6g}, 99 % {times['p99']:.6g}, "
            f"max {times['max']:.6g}; throughput {value['throughput_GBps']:.6g} GB/s over {value['end_s']:.6g} s",
            soft_wrap=True,
        )
    output.stdout.print(
        f"routing ({value['router']}): asked {control['runs']} times, {control['seconds'] * 1e3:.1f} ms in all, "
        f"{control['versions']} tables, {control['moved']} flows moved",
        soft_wrap=True,
    )
