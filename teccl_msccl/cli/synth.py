"""`synth`: from a topology and a collective to a proved algorithm file."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .app import app
from .options import (
    AskedSizeOption,
    CollectiveArgument,
    DemandOption,
    GroupOption,
    HostsOption,
    InstancesOption,
    MatrixOption,
    ModeOption,
    NetworkOption,
    ProtocolOption,
    RootOption,
    TargetOption,
    TopologyArgument,
    WithoutOption,
    instances_named,
)

if TYPE_CHECKING:
    from ..schedule.schedule import Schedule
    from ..synthesis.portfolio import Synthesis
    from ..synthesis.rules import Rules
    from .programs import Part


@app.command()
def synth(
    topology: TopologyArgument,
    collective: CollectiveArgument,
    size: AskedSizeOption = None,
    file: Annotated[
        Path | None,
        typer.Option("-o", help="The file to write (default COLLECTIVE.xml, or .json); of group N, NAME.groupN.xml."),
    ] = None,
    schedule_file: Annotated[
        Path | None,
        typer.Option("--schedule", help="Write the schedule JSON too (by default where it is all there is to write)."),
    ] = None,
    report_file: Annotated[Path | None, typer.Option("--report", help="Write the report to a file too.")] = None,
    hosts: HostsOption = 1,
    network: NetworkOption = None,
    root: RootOption = 0,
    group: GroupOption = None,
    matrix: MatrixOption = None,
    demand: DemandOption = None,
    without: WithoutOption = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="auto, trees, greedy, bfb, lp, milp, astar; "
            "ring, tree, recursive-doubling, bruck, direct or hierarchical.",
        ),
    ] = "auto",
    chunks: Annotated[int | None, typer.Option("--chunks", help="Chunks per rank (default: chosen).")] = None,
    solver: Annotated[str, typer.Option("--solver", help="cbc or highs.")] = "cbc",
    epochs: Annotated[
        str,
        typer.Option("--epochs", help="The MILP's: fast (a chunk's time on the fastest link), slow, or auto: both."),
    ] = "auto",
    time_limit: Annotated[float, typer.Option("--time-limit", min=0, help="Seconds; 0: the first schedule.")] = 60,
    start: Annotated[
        Path | None,
        typer.Option("--start", help="A schedule or MSCCL XML to improve on or repair."),
    ] = None,
    relay_chunks: Annotated[
        int | None,
        typer.Option("--relay-chunks", min=0, help="With --method milp: chunks a GPU may hold only to pass them on."),
    ] = None,
    shares: Annotated[
        Path | None,
        typer.Option(
            "--shares",
            help="With --method milp: a CSV of links that others use too; a line 0-1,250,0.5 leaves half the bandwidth "
            "between GPUs 0 and 1 from 250 µs on (0>1: one direction).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another seed tries other ties.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Threads.")] = 2,
    target: TargetOption = "executor",
    mode: ModeOption = None,
    protocol: ProtocolOption = "auto",
    instances: InstancesOption = "auto",
) -> None:
    """Synthesize a schedule, lower it, prove the program, and write it as MSCCL XML."""
    from ..files import check_writable, write_text
    from ..schedule.read import read_start
    from ..synthesis.ask import ask
    from ..synthesis.portfolio import run
    from ..synthesis.rules import Rules
    from ..synthesis.settings import Settings
    from ..synthesis.shares import read_shares
    from ..topology.catalog import load
    from ..topology.without import without as degraded
    from .programs import programs_of, untold
    from .progress import SynthesisProgress
    from .proved import check_names, lower_and_prove

    parts = instances_named(instances)
    check_names(target, mode, protocol, parts)
    detected = load(topology, hosts=hosts, network=network)
    left = degraded(detected.topology, without or [])
    problem = ask(left.topology, collective, size, root=root, groups=group or [], matrix=matrix, demand=demand)
    rules = Rules(relay_chunks, {} if shares is None else read_shares(shares, problem.topology))
    file = file or Path(f"{problem.collective}.{'json' if target == 'mscclpp' else 'xml'}")
    if untold(problem.collective):
        schedule_file = schedule_file or Path(f"{problem.collective}.json")
    check_writable(file, schedule_file, report_file)
    for finding in (*detected.findings, *left.findings):
        if finding.level != "info":
            output.warn(f"{finding.device}: {finding.text}" if finding.device else finding.text)
    with SynthesisProgress() as progress:
        synthesis = run(
            problem,
            Settings(nchunks=chunks, solver=solver, epochs=epochs, seed=seed, jobs=jobs, rules=rules),
            method=method,
            time_limit=time_limit,
            start=None if start is None else read_start(start, problem.topology, problem.size_bytes),
            report=progress,
        )
    if synthesis.interrupted:
        output.warn("interrupted: this is the best schedule so far")
    programs = programs_of(
        synthesis.schedules,
        file,
        lambda each: lower_and_prove(each, target, mode, protocol, parts, synthesis.seconds_left),
    )
    if programs[0].proved and programs[0].group is None:
        synthesis = synthesis.choosing(programs[0].proved.schedule)
    schedule = synthesis.schedule
    if schedule_file is not None:
        schedule.write(schedule_file)
    for program in programs:
        if program.proved and program.file:
            program.proved.write(program.file)
        else:
            elsewhere = "" if schedule_file else ": ask for it with --schedule"
            output.warn(f"{program.why_not}; only the schedule is there{elsewhere}")
    text = "\n".join(_report(synthesis, programs, schedule_file, rules)) + "\n"
    if report_file is not None:
        write_text(report_file, text)
    output.answer(
        _json(synthesis, programs, schedule_file, rules),
        lambda: output.stdout.print(text, end="", soft_wrap=True, markup=False),
    )


def _json(synthesis: Synthesis, programs: Sequence[Part], schedule_file: Path | None, rules: Rules) -> dict[str, Any]:
    schedule = synthesis.schedule
    first, *others = (program.to_json() for program in programs)
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
        **first,
        "programs": [first, *others],
        "groups": _groups_json(schedule),
        "sends": len(schedule.sends),
        "bounds": {bound.term: bound.bound_us for bound in synthesis.bounds},
        "rules": _rules_json(rules),
        "milp": [_milp_json(report) for report in synthesis.milp],
        "interrupted": synthesis.interrupted,
        "schedule": None if schedule_file is None else str(schedule_file),
    }


def _groups_json(schedule: Schedule) -> list[dict[str, Any]]:
    from ..schedule.group import group_finish_us

    return [
        {"ranks": list(group.ranks), "weight": group.weight, "finish_us": group_finish_us(schedule, number)}
        for number, group in enumerate(schedule.demand.groups)
    ]


def _rules_json(rules: Rules) -> dict[str, Any] | None:
    if not rules.constrain:
        return None
    return {
        "relay_chunks": rules.relay_chunks,
        "shares": {str(link): [list(step) for step in steps] for link, steps in rules.shares.items()},
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


def _report(synthesis: Synthesis, programs: Sequence[Part], schedule_file: Path | None, rules: Rules) -> list[str]:
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
        f"found by    {synthesis.method} in {synthesis.seconds:.1f} s, {_peak_rss_mb():.0f} MB"
        + _choice(synthesis, programs),
    ]
    if rules.constrain:
        lines.append(
            f"under       {_rules_text(rules)}; the program keeps the schedule's ways and order, not its times"
        )
    for report in synthesis.milp:
        after = "nothing better" if report.finish_us is None else f"{report.finish_us:.3f} µs"
        epochs = f"{report.epochs or 'none found'}, at least {report.epochs_bound}"
        lines.append(
            f"  milp      {report.outcome.solver}, {report.nchunks} chunk(s), {report.grid} epochs ({epochs}): "
            f"{report.outcome.status}, {report.outcome.columns} columns, {report.outcome.rows} rows; "
            f"{report.start_us:.3f} → {after}"
        )
    for number, group in enumerate(_groups_json(schedule)):
        ranks = ",".join(map(str, group["ranks"]))
        lines.append(f"group {number}     ranks {ranks}: {group['finish_us']:.3f} µs")
    lines += [line for program in programs for line in program.lines()]
    return [*lines, *([f"written     {schedule_file} (the schedule)"] if schedule_file else [])]


def _rules_text(rules: Rules) -> str:
    room = [] if rules.relay_chunks is None else [f"{rules.relay_chunks} chunk(s) at most on a relay"]
    return ", ".join(room + ([f"shares of {len(rules.shares)} link(s)"] if rules.shares else []))


def _choice(synthesis: Synthesis, programs: Sequence[Part]) -> str:
    nearby = len(synthesis.candidates)
    chosen = nearby > 1 and programs[0].proved and programs[0].group is None
    return f"; chosen for its program from {nearby} schedules nearly as fast" if chosen else ""


def _peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
