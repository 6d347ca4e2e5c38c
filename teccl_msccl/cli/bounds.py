"""`bounds`: how fast any schedule can possibly be, and why."""

from __future__ import annotations

from . import output
from .app import app
from .options import (
    AskedSizeOption,
    CollectiveArgument,
    DemandOption,
    GroupOption,
    HostsOption,
    MatrixOption,
    NetworkOption,
    RootOption,
    TopologyArgument,
    WithoutOption,
)


@app.command()
def bounds(
    topology: TopologyArgument,
    collective: CollectiveArgument,
    size: AskedSizeOption = None,
    hosts: HostsOption = 1,
    network: NetworkOption = None,
    root: RootOption = 0,
    group: GroupOption = None,
    matrix: MatrixOption = None,
    demand: DemandOption = None,
    without: WithoutOption = None,
) -> None:
    """Lower bounds on the time of a collective, each with what proves it."""
    from rich.table import Table

    from ..collective.size import format_size
    from ..synthesis.ask import ask
    from ..synthesis.bounds import program_bounds
    from ..topology.catalog import load
    from ..topology.without import without as degraded

    left = degraded(load(topology, hosts=hosts, network=network).topology, without or [])
    for finding in left.findings:
        output.warn(finding.text)
    machine = left.topology
    problem = ask(machine, collective, size, root=root, groups=group or [], matrix=matrix, demand=demand)
    size_bytes, wanted = problem.size_bytes, problem.demand(1)
    found = program_bounds(machine, wanted)

    def show() -> None:
        table = Table(
            "bound", "µs", "because", title=f"{wanted.collective} of {format_size(size_bytes)} on {machine.name}"
        )
        for bound in found:
            table.add_row(bound.term, f"{bound.bound_us:.4g}", bound.certificate)
        output.stdout.print(table)

    best = found[0].bound_us
    output.answer(
        {
            "topology": machine.name,
            "collective": wanted.collective,
            "size_bytes": size_bytes,
            "bound_us": best,
            "algbw_bound_GBps": size_bytes / (best * 1e3) if best else None,
            "terms": {b.term: {"bound_us": b.bound_us, "certificate": b.certificate} for b in found},
        },
        show,
    )
