"""`bounds`: how fast any schedule can possibly be, and why."""

from __future__ import annotations

from . import output
from .app import app
from .options import CollectiveArgument, HostsOption, NetworkOption, RootOption, SizeOption, TopologyArgument


@app.command()
def bounds(
    topology: TopologyArgument,
    collective: CollectiveArgument,
    size: SizeOption,
    hosts: HostsOption = 1,
    network: NetworkOption = None,
    root: RootOption = 0,
) -> None:
    """Lower bounds on the time of a collective, each with what proves it."""
    from rich.table import Table

    from ..collective.demand import demand_for
    from ..collective.size import format_size, parse_size
    from ..synthesis.bounds import lower_bounds
    from ..topology.model import Topology

    size_bytes = parse_size(size)
    machine = Topology.load(topology, hosts=hosts, network=network)
    demand = demand_for(collective, machine.nranks, size_bytes, 1, root)
    found = lower_bounds(machine, demand)

    def show() -> None:
        table = Table(
            "bound", "µs", "because", title=f"{demand.collective} of {format_size(size_bytes)} on {machine.name}"
        )
        for bound in found:
            table.add_row(bound.term, f"{bound.bound_us:.4g}", bound.certificate)
        output.stdout.print(table)

    best = found[0].bound_us
    output.answer(
        {
            "topology": machine.name,
            "collective": demand.collective,
            "size_bytes": size_bytes,
            "bound_us": best,
            "algbw_bound_GBps": size_bytes / (best * 1e3) if best else None,
            "terms": {b.term: {"bound_us": b.bound_us, "certificate": b.certificate} for b in found},
        },
        show,
    )
