"""`route flows`: what a schedule sends between hosts, as traffic for the other commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import output
from .route import route


@route.command()
def flows(
    schedule_file: Annotated[Path, typer.Argument(metavar="SCHEDULE", help="A schedule JSON, as `synth` writes it.")],
    placement: Annotated[
        Path, typer.Option(help='Where ranks are: {"fabric": …, "hosts": [host of rank 0, …], "job": "J"}.')
    ],
    out: Annotated[Path | None, typer.Option("-o", "--output", help="The traffic JSON to write.")] = None,
) -> None:
    """Turn a schedule into flows, phase by phase: a ring's steps, a tree's levels. Phases do not share links."""
    import json

    from ..errors import InputError
    from ..files import check_writable, write_text
    from ..routing.schedule_flows import Placement, flows_of
    from ..schedule.schedule import Schedule

    check_writable(out)
    schedule = Schedule.read(schedule_file)
    place = Placement.read(placement)
    try:
        traffic = flows_of(schedule, place)
    except InputError as error:
        raise InputError(f"{placement}: {error}") from None
    value = traffic.to_json()
    text = json.dumps(value)
    if out is not None:
        write_text(out, text + "\n")
        phases = len(traffic.phases)
        output.answer(
            {**value, "phases": phases, "file": str(out)},
            lambda: output.stdout.print(
                f"{out}: {len(traffic.flows)} flows in {phases} phases", markup=False, soft_wrap=True
            ),
        )
    else:
        output.answer(value, lambda: typer.echo(text))
