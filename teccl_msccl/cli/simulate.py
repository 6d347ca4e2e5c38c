"""`simulate`: how long a program takes on a topology."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .app import app

if TYPE_CHECKING:
    from ..program.simulate import ProgramTiming
    from ..topology.model import Topology


@app.command()
def simulate(
    file: Annotated[Path, typer.Argument(help="A program, MSCCL XML or MSCCL++ plan, ours or anyone's.")],
    topology: Annotated[str, typer.Option("--topology", help="A preset's name or a file (see `topo list`).")],
    size: Annotated[str, typer.Option("--size", help="Size as in nccl-tests: 64MB, 1GiB, bytes.")],
    hosts: Annotated[int, typer.Option("--hosts", help="That many hosts of the topology.")] = 1,
    network: Annotated[str | None, typer.Option("--network", help="How the hosts are joined.")] = None,
    neutral: Annotated[
        bool, typer.Option("--neutral", help="Links as they are: without the protocol's efficiency and latency.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write the timeline too, for ui.perfetto.dev or chrome://tracing.")
    ] = None,
) -> None:
    """Simulate a program under the runtimes' rules: time, bandwidth, use of links and threadblocks, critical path."""
    from ..collective.size import format_size, parse_size
    from ..errors import naming
    from ..files import check_writable, read_bytes
    from ..program import xml
    from ..program.kind import plan_in
    from ..program.simulate import simulate as simulate_program
    from ..program.targets import target_named
    from ..topology.model import Topology

    check_writable(trace)
    size_bytes = parse_size(size)
    machine = Topology.load(topology, hosts=hosts, network=network)
    data = read_bytes(file, "a program")  # once: a pipe has it once
    plan = plan_in(data, file)
    if plan is not None:
        _simulate_plan(plan, file, machine, size_bytes, trace)
        return
    program = xml.parse(data, str(file))
    if not target_named(program.target).takes_bytes(program.min_bytes, program.max_bytes, size_bytes):
        limit = format_size(program.max_bytes) if program.max_bytes else "any size"
        output.warn(
            f"{file}: is for {format_size(program.min_bytes)} to {limit}; "
            f"a runtime does not choose it for {format_size(size_bytes)}"
        )
    with naming(file, program.name):
        program.require_channels()
        program.require_places()
        timing = simulate_program(program, machine, size_bytes, neutral=neutral)
    if trace is not None:
        from ..program.simulate import timeline
        from ..report.trace import write_trace

        steps = timeline(program, machine, size_bytes)
        write_trace(trace, program, machine, steps, timing)
        if steps.iterations < steps.of:
            output.note(f"{trace} has the first {steps.iterations} of {steps.of} iterations")
    output.answer(
        timing.to_json() | ({"trace": str(trace)} if trace else {}),
        lambda: _show(f"{file} on {machine.name}, {format_size(size_bytes)}", machine, program.protocol, timing),
    )


def _simulate_plan(read: Any, file: Path, machine: Topology, size_bytes: float, trace: Path | None) -> None:
    from ..collective.size import format_size
    from ..errors import naming
    from ..program.plan_file import plan_file
    from ..program.simulate_plan import simulate_plan

    plan = plan_file(read, str(file))
    if not plan.min_bytes <= size_bytes <= plan.max_bytes:
        output.warn(
            f"{file}: is for {format_size(plan.min_bytes)} to {format_size(plan.max_bytes)}, "
            f"not for {format_size(size_bytes)}"
        )
    with naming(file, plan.name):
        timing = simulate_plan(plan, machine, size_bytes)
    if trace is not None:
        from ..report.trace import write_plan_trace

        write_plan_trace(trace, plan, machine, timing)
    answer = timing.to_json()
    for key in ("steps", "transfers"):  # the trace has them
        del answer[key]
    output.answer(
        answer | ({"trace": str(trace)} if trace else {}),
        lambda: _show(f"{file} on {machine.name}, {format_size(size_bytes)}", machine, "", timing),
    )


def _show(title: str, machine: Topology, protocol: str, timing: ProgramTiming, rows: int = 12) -> None:
    from rich.table import Table

    from ..collective.size import format_size
    from ..report.trace import link_name

    output.stdout.print(title, markup=False, soft_wrap=True)
    rules = f"{protocol}'s launch {timing.launch_us:g} µs apart, {timing.iterations} iteration(s)" if protocol else ""
    output.stdout.print(
        f"finish {timing.finish_us:.2f} µs, algbw {timing.algbw_GBps:.2f} GB/s, {rules or 'launch apart'}",
        soft_wrap=True,
    )
    links = Table("link", "from → to", "busy µs", "used", "data", title="Busiest links", title_justify="left")
    for use in sorted(timing.links, key=lambda use: -use.busy_us)[:rows]:
        name = link_name(machine, use.link)
        links.add_row(str(use.link), name, f"{use.busy_us:.2f}", f"{use.utilisation:.1%}", format_size(use.bytes))
    output.stdout.print(links)
    threadblocks = Table("gpu", "tb", "busy µs", "used", "ends µs", title="Busiest threadblocks", title_justify="left")
    for tb in sorted(timing.threadblocks, key=lambda tb: -tb.busy_us)[:rows]:
        threadblocks.add_row(
            str(tb.gpu), str(tb.tb), f"{tb.busy_us:.2f}", f"{tb.utilisation:.1%}", f"{tb.finish_us:.2f}"
        )
    output.stdout.print(threadblocks)
    length = len(timing.critical_path)
    heading = "Critical path" if length <= rows else f"Critical path, the last {rows} of its {length} steps"
    path = Table(
        "gpu", "tb", "step", "iteration", "start µs", "end µs", "waited for", title=heading, title_justify="left"
    )
    for step in timing.critical_path[-rows:]:
        path.add_row(
            str(step.gpu), str(step.tb), str(step.step), str(step.iteration),
            f"{step.start_us:.2f}", f"{step.end_us:.2f}", step.why,
        )  # fmt: skip
    output.stdout.print(path)
