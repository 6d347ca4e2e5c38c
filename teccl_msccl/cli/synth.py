"""`synth`: from a topology and a collective to a proved algorithm file."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .app import app
from .options import (
    CollectiveArgument,
    HostsOption,
    ModeOption,
    NetworkOption,
    ProtocolOption,
    RootOption,
    SizeOption,
    TargetOption,
    TopologyArgument,
)

if TYPE_CHECKING:
    from ..synthesis.portfolio import Synthesis
    from .proved import ProvedProgram


@app.command()
def synth(
    topology: TopologyArgument,
    collective: CollectiveArgument,
    size: SizeOption,
    file: Annotated[
        Path | None, typer.Option("-o", help="The file to write (default COLLECTIVE.xml, or .json).")
    ] = None,
    schedule_file: Annotated[Path | None, typer.Option("--schedule", help="Write the schedule JSON too.")] = None,
    report_file: Annotated[Path | None, typer.Option("--report", help="Write the report to a file too.")] = None,
    hosts: HostsOption = 1,
    network: NetworkOption = None,
    root: RootOption = 0,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="auto, greedy or milp; or as it is ring, tree, recursive-doubling, bruck, direct or hierarchical.",
        ),
    ] = "auto",
    chunks: Annotated[int | None, typer.Option("--chunks", help="Chunks per rank (default: chosen).")] = None,
    solver: Annotated[str, typer.Option("--solver", help="cbc or highs.")] = "cbc",
    time_limit: Annotated[float, typer.Option("--time-limit", min=0, help="Seconds; 0: the first schedule.")] = 60,
    start: Annotated[Path | None, typer.Option("--start", help="A schedule JSON to improve on.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another seed tries other ties.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Threads.")] = 2,
    target: TargetOption = "executor",
    mode: ModeOption = None,
    protocol: ProtocolOption = "auto",
) -> None:
    """Synthesize a schedule, lower it, prove the program, and write it as MSCCL XML."""
    from ..collective.demand import collective_named
    from ..collective.size import parse_size
    from ..files import check_writable, write_text
    from ..schedule.schedule import Schedule
    from ..synthesis.portfolio import run
    from ..synthesis.problem import Problem
    from ..synthesis.settings import Settings
    from ..topology.catalog import load
    from .progress import SynthesisProgress
    from .proved import lower_and_prove

    collective = collective_named(collective)
    file = file or Path(f"{collective}.{'json' if target == 'mscclpp' else 'xml'}")
    check_writable(file, schedule_file, report_file)
    detected = load(topology, hosts=hosts, network=network)
    for finding in detected.findings:
        if finding.level != "info":
            output.warn(f"{finding.device}: {finding.text}" if finding.device else finding.text)
    with SynthesisProgress() as progress:
        synthesis = run(
            Problem(detected.topology, collective, parse_size(size), root),
            Settings(nchunks=chunks, solver=solver, seed=seed, jobs=jobs),
            method=method,
            time_limit=time_limit,
            start=None if start is None else Schedule.read(start),
            report=progress,
        )
    if synthesis.interrupted:
        output.warn("interrupted: this is the best schedule so far")
    schedule = synthesis.schedule
    proved = lower_and_prove(schedule, target, mode, protocol)
    if schedule_file is not None:
        schedule.write(schedule_file)
    proved.write(file)
    text = "\n".join(_report(synthesis, proved, str(file))) + "\n"
    if report_file is not None:
        write_text(report_file, text)
    output.answer(
        _json(synthesis, proved, str(file)), lambda: output.stdout.print(text, end="", soft_wrap=True, markup=False)
    )


def _json(synthesis: Synthesis, proved: ProvedProgram, file: str) -> dict[str, Any]:
    schedule = synthesis.schedule
    return {
        "topology": schedule.topology.name,
        "collective": schedule.demand.collective,
        "size_bytes": schedule.demand.size_bytes,
        "method": synthesis.method,
        "solver": synthesis.solver,
        "finish_us": schedule.finish_us,
        "algbw_GBps": schedule.algbw_GBps,
        "bound_us": synthesis.bound_us,
        "gap": synthesis.gap,
        "synthesis_s": synthesis.seconds,
        "peak_rss_mb": _peak_rss_mb(),
        **proved.to_json(),
        "sends": len(schedule.sends),
        "bounds": {bound.term: bound.bound_us for bound in synthesis.bounds},
        "milp": [_milp_json(report) for report in synthesis.milp],
        "interrupted": synthesis.interrupted,
        "file": file,
    }


def _milp_json(report: Any) -> dict[str, Any]:
    outcome = report.outcome
    return {
        "nchunks": report.nchunks,
        "grid": report.grid,
        "solver": outcome.solver,
        "status": outcome.status,
        "columns": outcome.columns,
        "rows": outcome.rows,
        "epochs": report.epochs,
        "epochs_bound": report.epochs_bound,
        "dual_bound": outcome.dual_bound,
        "start_us": report.start_us,
        "finish_us": report.finish_us,
    }


def _report(synthesis: Synthesis, proved: ProvedProgram, file: str) -> list[str]:
    from ..collective.size import format_size

    schedule = synthesis.schedule
    topology, demand = schedule.topology, schedule.demand
    bound = synthesis.bounds[0]
    lines = [
        f"{demand.collective} of {format_size(demand.size_bytes)} on {topology.name} "
        f"({topology.nranks} GPUs, {len(topology.hosts)} host(s), {len(topology.links)} links)",
        f"schedule    {schedule.finish_us:.3f} µs, {schedule.algbw_GBps:.2f} GB/s: {len(schedule.sends)} sends of "
        f"{demand.nchunks} chunk(s) a share",
        f"bound       {bound.bound_us:.3f} µs ({bound.term}: {bound.certificate}); gap {synthesis.gap:.2%}",
        f"found by    {synthesis.method} in {synthesis.seconds:.1f} s, {_peak_rss_mb():.0f} MB",
    ]
    for report in synthesis.milp:
        after = "nothing better" if report.finish_us is None else f"{report.finish_us:.3f} µs"
        lines.append(
            f"  milp      {report.outcome.solver}, {report.nchunks} chunk(s), {report.grid} epochs: "
            f"{report.outcome.status}, {report.outcome.columns} columns, {report.outcome.rows} rows; "
            f"{report.start_us:.3f} → {after}"
        )
    return [*lines, *proved.lines(), f"written     {file}"]


def _peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
