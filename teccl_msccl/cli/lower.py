"""`lower`: from a schedule JSON to a proved algorithm file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import output
from .app import app
from .options import InstancesOption, ModeOption, ProtocolOption, TargetOption, instances_named


@app.command()
def lower(
    schedule_file: Annotated[
        Path,
        typer.Argument(
            metavar="SCHEDULE",
            help="A schedule JSON, as `synth` writes it, or TE-CCL's, SCCL's, TACCL's, ForestColl's; an MSCCL XML.",
        ),
    ],
    file: Annotated[Path, typer.Option("-o", help="The MSCCL XML to write; for mscclpp, the JSON plan.")],
    size: Annotated[
        str | None,
        typer.Option("--size", help="Another size than the file's; theirs may have none: 64MB, 64MiB, bytes."),
    ] = None,
    topology: Annotated[
        str | None, typer.Option("--topology", help="The machine that another tool's file is for, as for `synth`.")
    ] = None,
    target: TargetOption = "executor",
    mode: ModeOption = None,
    protocol: ProtocolOption = "auto",
    instances: InstancesOption = "auto",
) -> None:
    """Validate a schedule, ours or another tool's, lower it, prove the program, and write it as MSCCL XML."""
    from ..collective.size import parse_size
    from ..errors import Refused
    from ..files import check_writable
    from ..schedule.read import read_schedule
    from ..topology.model import Topology
    from .programs import programs_of
    from .proved import lower_and_prove

    parts = instances_named(instances)
    check_writable(file)
    schedule = read_schedule(
        schedule_file,
        None if topology is None else Topology.load(topology),
        None if size is None else parse_size(size),
    )
    schedule.validate()
    programs = programs_of([schedule], file, lambda each: lower_and_prove(each, target, mode, protocol, parts))
    for program in programs:
        if program.proved is None or program.file is None:
            raise Refused(f"{schedule_file}: {program.why_not}")
        program.proved.write(program.file)
    first, *others = (program.to_json() for program in programs)
    lines = [line for program in programs for line in program.lines()]
    output.answer(
        {"schedule": str(schedule_file), "finish_us": schedule.finish_us, **first, "programs": [first, *others]},
        lambda: output.stdout.print("\n".join(lines), soft_wrap=True, markup=False),
    )
