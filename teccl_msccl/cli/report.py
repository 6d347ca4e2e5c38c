"""`report`: a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import output
from .app import app

if TYPE_CHECKING:
    from ..report.facts import Facts


@app.command()
def report(
    file: Annotated[Path, typer.Argument(help="A program (MSCCL XML or MSCCL++ plan) or a schedule, ours or others'.")],
    page_file: Annotated[Path, typer.Option("-o", help="The page to write.")] = Path("report.html"),
    topology: Annotated[
        str | None, typer.Option("--topology", help="The machine, as for `synth`: for programs and others' schedules.")
    ] = None,
    hosts: Annotated[int, typer.Option("--hosts", help="That many hosts of the topology.")] = 1,
    network: Annotated[str | None, typer.Option("--network", help="How the hosts are joined.")] = None,
    size: Annotated[
        str | None, typer.Option("--size", help="64MB, 64MiB or bytes (a program: by default 64MB).")
    ] = None,
    root: Annotated[int | None, typer.Option("--root", help="The root, where the data flow does not tell.")] = None,
    format: Annotated[
        str, typer.Option("--format", help="Each picture in a file of its own too: png, svg or pdf, with commas.")
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Without the sweep over sizes.")] = False,
) -> None:
    """Write one self-contained page: topology, links over time, utilisation, critical path, sizes, proofs."""
    from ..errors import unknown
    from ..files import check_writable, write_bytes, write_text
    from ..report.page import page
    from ..report.pictures import pictures

    endings = [ending for ending in format.lower().split(",") if ending]
    if bad := [ending for ending in endings if ending not in ("png", "svg", "pdf")]:
        raise unknown("picture format", bad[0], ("png", "svg", "pdf"))
    check_writable(page_file)
    facts = _facts(file, topology, hosts, network, size, root, quick)
    drawn = pictures(facts, "svg", output.warn)
    write_text(page_file, page(facts, drawn))
    written = [str(page_file)]
    for ending in endings:
        for name, data in pictures(facts, ending, output.warn, all_of_them=True).items():
            path = page_file.with_name(f"{page_file.stem}-{name}.{ending}")
            write_bytes(path, data)
            written.append(str(path))
    output.answer(
        {
            "file": str(page_file),
            "written": written,
            "finish_us": facts.finish_us,
            "bound_us": facts.bounds[0][1] if facts.bounds else None,
            "ok": facts.verdict.ok if facts.verdict else True,
        },
        lambda: output.stdout.print("\n".join(f"written     {path}" for path in written), soft_wrap=True, markup=False),
    )


def _facts(
    file: Path,
    topology: str | None,
    hosts: int,
    network: str | None,
    size: str | None,
    root: int | None,
    quick: bool,
) -> Facts:
    from ..collective.size import parse_size
    from ..errors import InputError, naming
    from ..files import parse_json, read_bytes
    from ..program import xml
    from ..program.kind import is_json
    from ..program.plan_file import is_plan
    from ..report.facts import plan_facts, program_facts, schedule_facts, sizes_for
    from ..schedule.read import read_schedule
    from ..topology.model import Topology

    machine = None if topology is None else Topology.load(topology, hosts=hosts, network=network)
    size_bytes = None if size is None else parse_size(size)
    data = read_bytes(file, "a program or schedule")
    if b"<algo" in data[:10_000]:
        if machine is None:
            raise InputError(f"{file}: a program does not tell its machine; name its --topology")
        swept = [] if quick else sizes_for(machine)
        program = xml.parse(data, str(file))
        with naming(file, program.name):
            program.require_channels()
            program.require_places()
            return program_facts(program, machine, size_bytes or 64e6, swept, root)
    if is_json(data) and is_plan(value := parse_json(data, file, "a schedule or a plan")):
        if machine is None:
            raise InputError(f"{file}: a plan does not tell its machine; name its --topology")
        with naming(file, value.get("name", "")):
            return plan_facts(value, str(file), machine, size_bytes or 64e6, [] if quick else sizes_for(machine))
    schedule = read_schedule(file, machine, size_bytes)
    swept = [] if quick else sizes_for(schedule.topology)
    return schedule_facts(schedule, swept)
