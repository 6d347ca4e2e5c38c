"""`lower`: from a schedule JSON to a proved algorithm file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import output
from .app import app
from .options import ModeOption, ProtocolOption, TargetOption


@app.command()
def lower(
    schedule_file: Annotated[Path, typer.Argument(metavar="SCHEDULE", help="A schedule JSON, as `synth` writes it.")],
    file: Annotated[Path, typer.Option("-o", help="The MSCCL XML to write.")],
    target: TargetOption = "executor",
    mode: ModeOption = "both",
    protocol: ProtocolOption = "auto",
) -> None:
    """Validate a schedule, lower it, prove the program, and write it as MSCCL XML."""
    from ..files import check_writable
    from ..program.lower import lower as lower_schedule
    from ..schedule.schedule import Schedule
    from .proved import prove

    check_writable(file)
    schedule = Schedule.read(schedule_file)
    schedule.validate()
    proved = prove(schedule, lower_schedule(schedule, target, mode=mode, protocol=protocol))
    proved.program.write(file)
    output.answer(
        {"schedule": str(schedule_file), "finish_us": schedule.finish_us, **proved.to_json(), "file": str(file)},
        lambda: output.stdout.print("\n".join([*proved.lines(), f"written     {file}"]), soft_wrap=True, markup=False),
    )
