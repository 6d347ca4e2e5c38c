"""`route`: how efficiently a Clos fabric serves collectives, and better routes for their flows (more of its commands
are in the files beside)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .app import app

if TYPE_CHECKING:
    from ..routing.efficiency import Report
    from ..routing.traffic import Route, Traffic

route = typer.Typer(help="Measure and optimize the routes of collectives over a Clos fabric.", rich_markup_mode=None)
app.add_typer(route, name="route")

TrafficFile = Annotated[Path, typer.Argument(metavar="FILE", help="Traffic: a JSON with `fabric` and `flows`.")]
Mode = Annotated[
    str,
    typer.Option(
        help="coll (two-layer max-min: a collective runs at one pace), flow (max-min rates of flows, as congestion "
        "control gives them) or static (the busiest link's share)."
    ),
]
#: Rows of a table on the terminal; --json has all.
ROWS = 24


@route.callback(invoke_without_command=True)
def help_where_no_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@route.command()
def metric(file: TrafficFile, mode: Mode = "coll") -> None:
    """Rate every collective, job and flow on the routes (`spine`) that the flows have.

    FILE: {"fabric": {"tors": 2, "spines": 2, "hosts_per_tor": 4, "link_gbps": 100, "dead_spines": [], "links": []},
    "flows": [{"collective": "A", "job": "J", "src": 0, "dst": 4, "weight": 1, "spine": 0}]}. Host h is below ToR
    h // hosts_per_tor; `links` lists those of another capacity (relative; 0 has failed): {"kind": "up", "tor": 0,
    "spine": 1, "capacity": 0.5}, or down, host_up and host_down with "host". Weights are bytes, or any unit.
    """
    from ..routing.efficiency import Report
    from ..routing.traffic import Traffic

    traffic, routes = Traffic.read(file)
    check(file, traffic, routes)
    report = Report(traffic, tuple(routes), mode)
    value = report.to_json()
    output.answer(value, lambda: show_report(report, value))


@route.command()
def optimize(
    file: TrafficFile,
    router: Annotated[str, typer.Option(help="auto, greedy, equitable, edge-colour, ecmp, anneal or ilp.")] = "auto",
    mode: Mode = "coll",
    split: Annotated[int, typer.Option(help="Queue pairs of each flow, which share its bytes equally.")] = 1,
    seed: Annotated[int, typer.Option(help="For ecmp and anneal.")] = 0,
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds for ilp.")] = 60.0,
    enforce: Annotated[
        Path | None, typer.Option(help="A CSV to write: UDP source port and flow label of each queue pair.")
    ] = None,
    hash_name: Annotated[
        str,
        typer.Option(
            "--hash", metavar="crc|FILE", help="How ToRs choose a spine: CRC-32, or a CSV of ports that were probed."
        ),
    ] = "crc",
    hash_seed: Annotated[int, typer.Option("--hash-seed", help="What the CRC starts from.")] = 0,
) -> None:
    """Choose a spine for every flow; where flows have one already, auto starts from those."""
    import json

    from ..errors import unknown
    from ..files import check_writable, write_text
    from ..routing.efficiency import Report
    from ..routing.enforcement import enforce as rows_for
    from ..routing.hash_model import hash_model
    from ..routing.metric import MODES
    from ..routing.routers import optimize as find
    from ..routing.routers.choice import Choice
    from ..routing.traffic import Traffic

    if mode not in MODES:
        raise unknown("mode", mode, MODES)
    check_writable(enforce)
    traffic, in_force = Traffic.read(file)
    check(file, traffic)
    model = hash_model(hash_name, hash_seed)
    parts = traffic.split(split)
    choice = Choice(mode=mode, seed=seed, time_limit=time_limit)
    if any(spine is not None for spine in in_force):
        choice = Choice(mode, seed, tuple(spine for spine in in_force for _ in range(split)), time_limit=time_limit)
    found = find(parts, router, choice)
    report = Report(parts, found.routes, mode)
    value: dict[str, Any] = {"router": router, **report.to_json(), "seconds": found.seconds}
    if enforce is not None:
        rows = rows_for(parts, found.routes, model)
        write_text(enforce, rows.csv())
        value |= {"file": str(enforce), "unreachable": list(rows.unreachable)}
        for line in rows.unreachable:
            output.warn(line)
    output.answer(json.loads(json.dumps(value)), lambda: show_report(report, value))
    if value.get("unreachable"):
        raise typer.Exit(1)


def check(file: Path, traffic: Traffic, routes: list[Route] | None = None) -> None:
    """Raise `InputError` that names the file where traffic cannot flow, or has not the routes it needs."""
    from ..errors import InputError

    try:
        traffic.check_reachable()
        if routes is not None:
            traffic.check_routes(routes)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def show_report(report: Report, value: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    def table(of: str, rows: dict[str, Any]) -> None:
        listed = Table(of, "rate", "efficiency", "time", box=None)
        for name, row in sorted(rows.items(), key=lambda item: item[1]["efficiency"])[:ROWS]:
            listed.add_row(Text(name or "(no name)"), row["rate"], f"{row['efficiency']:.3f}", row["time"] or "never")
        output.stdout.print(listed)
        if len(rows) > ROWS:
            output.stdout.print(f"… and {len(rows) - ROWS} more, none less efficient")
        output.stdout.print()

    if "router" in value:
        output.stdout.print(f"{value['router']}: {len(report.routes)} routes in {value['seconds'] * 1e3:.2f} ms")
    table("collective", value["collectives"])
    if list(value["jobs"]) != [""]:
        table("job", value["jobs"])
    shares = value["efficiency"]
    output.stdout.print(
        f"efficiency: min {shares['min']:.3f}, mean {shares['mean']:.3f}, by bytes {shares['byte_weighted']:.3f}; "
        f"Jain's index {value['jain']:.3f}",
        soft_wrap=True,
    )
    output.stdout.print(
        f"largest load between ToRs and spines: {value['max_load']} (no routes: below {value['bounds']['max_load']})",
        soft_wrap=True,
    )
    if "file" in value:
        output.stdout.print(f"written {value['file']}", markup=False, soft_wrap=True)
