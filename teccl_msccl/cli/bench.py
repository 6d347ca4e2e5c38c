"""`bench`: ours beside the field's algorithms, size by size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .app import app
from .options import CollectiveArgument, HostsOption, NetworkOption, RootOption, TopologyArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..report.sweep import SizeRow


#: Characters that a column needs; a table wider than the terminal wraps, rather than lose figures.
_COLUMN = 14


@app.command()
def bench(
    topology: TopologyArgument,
    collective: CollectiveArgument,
    begin: Annotated[
        str, typer.Option("-b", help="The smallest size; K, M and G are binary, as in nccl-tests.")
    ] = "1K",
    end: Annotated[str, typer.Option("-e", help="The largest size.")] = "1G",
    factor: Annotated[float, typer.Option("-f", help="From size to size.")] = 8.0,
    methods: Annotated[
        str | None, typer.Option("--methods", help="Which baselines, with commas (default: all that suit).")
    ] = None,
    hosts: HostsOption = 1,
    network: NetworkOption = None,
    root: RootOption = 0,
    time_limit: Annotated[float, typer.Option("--time-limit", min=0, help="Seconds for each schedule.")] = 2.0,
    picture: Annotated[Path | None, typer.Option("-o", help="A picture of it: .svg, .png or .pdf.")] = None,
) -> None:
    """Synthesize for every size, and compare with ring, tree, recursive doubling… and with the bound."""
    from ..collective.size import parse_size
    from ..errors import InputError
    from ..files import check_writable, write_bytes
    from ..report.sweep import geometric_sizes, size_label, sweep
    from ..topology.model import Topology

    check_writable(picture)
    if picture is not None and picture.suffix not in (".svg", ".png", ".pdf"):
        raise InputError(f"{picture}: a picture's name ends in .svg, .png or .pdf")
    machine = Topology.load(topology, hosts=hosts, network=network)
    sizes = geometric_sizes(parse_size(begin, one_letter=True), parse_size(end, one_letter=True), factor)
    rows = sweep(
        machine,
        collective,
        sizes,
        methods=methods.split(",") if methods else None,
        root=root,
        time_limit=time_limit,
        seen=lambda row: output.note(f"{size_label(row.size_bytes)}: ours {row.finish_us['ours']:.2f} µs"),
    )
    title = f"{collective} on {machine.name}"
    if picture is not None:
        from ..report.figures import sweep_figure
        from ..topology.picture import rendered

        write_bytes(picture, rendered(sweep_figure(rows, title), picture.suffix[1:]))
    output.answer(
        {
            "topology": machine.name,
            "collective": collective,
            "rows": [_json(row) for row in rows],
            "picture": str(picture) if picture else None,
        },
        lambda: _show(title, rows),
    )


def _json(row: SizeRow) -> dict[str, Any]:
    best = row.best_baseline
    return {
        "size_bytes": row.size_bytes,
        "bound_us": row.bound_us,
        "finish_us": row.finish_us,
        "algbw_GBps": {method: row.algbw_GBps(method) for method in row.finish_us},
        "best_baseline": best[0] if best else None,
        "speedup": row.speedup,
        "gap": row.gap,
    }


def _show(title: str, rows: Sequence[SizeRow]) -> None:
    from rich.table import Table

    from ..report.sweep import OURS, size_label

    others = [name for name in rows[0].finish_us if name != OURS]
    table = Table("size", "bound µs", "ours µs", "gap", "GB/s", *(f"{name} µs" for name in others), "best", "speed-up",
                  title=title, title_justify="left", box=None, pad_edge=False)  # fmt: skip
    for row in rows:
        best = row.best_baseline
        table.add_row(
            size_label(row.size_bytes),
            f"{row.bound_us:.2f}",
            f"{row.finish_us[OURS]:.2f}",
            "" if row.gap is None else f"{row.gap:.1%}",
            f"{row.algbw_GBps(OURS):.2f}",
            *(f"{row.finish_us[name]:.2f}" for name in others),
            best[0] if best else "",
            "" if row.speedup is None else f"{row.speedup:.2f}×",
        )
    if _COLUMN * len(table.columns) > output.stdout.width:
        table.width = _COLUMN * len(table.columns)
    output.stdout.print(table, crop=False, no_wrap=True, overflow="ignore")
