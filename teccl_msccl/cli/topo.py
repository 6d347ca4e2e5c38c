"""`topo`: list, show, convert and compose topologies (more of its commands are in the files beside)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .app import app
from .options import WithoutOption

if TYPE_CHECKING:
    from ..topology.detected import Detected, Finding
    from ..topology.model import Topology

topo = typer.Typer(help="Detect, name, show, compose, match and calibrate topologies.", rich_markup_mode=None)
app.add_typer(topo, name="topo")

NETWORK_HELP = (
    "What joins the hosts: rail (NIC i of each on switch i), fat-tree (4 hosts a leaf), single-switch, ring, or a JSON "
    "FILE naming switches, the NICs that each joins, and wires. rail:2 and fat-tree:2 have uplinks to a spine of half "
    "the bandwidth below them."
)
Name = Annotated[str, typer.Argument(metavar="TOPOLOGY", help="A preset, NAMExN, a generator, a file, or local.")]
Hosts = Annotated[int, typer.Option(help="Number of hosts, copies of the topology.")]
Network = Annotated[str | None, typer.Option(help=NETWORK_HELP)]
Out = Annotated[Path, typer.Option("-o", "--output", help="The topology JSON to write.")]


@topo.callback(invoke_without_command=True)
def help_where_no_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@topo.command("list")
def list_topologies() -> None:
    """List the preset boards and the generators."""
    from ..topology import catalog, generators

    boards = [
        {
            "name": name,
            "nranks": board.topology.nranks,
            "nics": sum(node.kind == "nic" for node in board.topology.nodes),
            "source": "; ".join([finding.text for finding in board.findings] + [board.topology.source]),
        }
        for name, board in catalog.presets().items()
    ]
    value = {"presets": boards, "generators": list(generators.SPELLINGS)}
    output.answer(value, lambda: _print_list(boards, generators.SPELLINGS))


@topo.command()
def show(
    topology: Name,
    hosts: Hosts = 1,
    network: Network = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="A picture to draw besides: NAME.svg, .png or .pdf.")
    ] = None,
    without: WithoutOption = None,
) -> None:
    """Show a topology's nodes, its classes of links, and what was assumed, doubted or found broken in reading it."""
    from ..topology.catalog import load
    from ..topology.detected import Detected
    from ..topology.without import without as degraded

    detected = load(topology, hosts, network)
    left = degraded(detected.topology, without or [])
    detected = Detected(left.topology, detected.findings + left.findings)
    value = topology_as_dict(detected)
    if out is not None:
        from ..topology.picture import draw

        draw(detected.topology, out)
        value["file"] = str(out)
    output.answer(value, lambda: print_topology(detected))


@topo.command()
def convert(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Saved outputs of one host.")],
    out: Out,
) -> None:
    """Turn saved outputs of one host into a topology JSON: `nvidia-smi topo -m` (with `topo -p2p r`, `nvlink -s`, `-L`,
    `-q`), an NCCL or RCCL topology XML, or both, each filling what the other leaves out."""
    from ..topology.catalog import read_captures, read_file

    write_topology(read_file(files[0]) if len(files) == 1 else read_captures(files), out)


@topo.command()
def compose(
    topologies: Annotated[list[str], typer.Argument(metavar="TOPOLOGY...", help="One host each.")],
    out: Out,
    hosts: Annotated[int, typer.Option(help="Number of copies of each.")] = 1,
    network: Network = None,
) -> None:
    """Join hosts into a cluster: N copies of a topology, or several different ones."""
    from ..errors import InputError
    from ..topology.catalog import load
    from ..topology.detected import Detected
    from ..topology.fabric import join

    if len(topologies) == 1:
        write_topology(load(topologies[0], hosts, network), out)
        return
    if hosts < 1:
        raise InputError(f"{hosts} hosts; at least 1 is needed")
    parts = [load(name) for name in topologies]
    joined = join([part.topology for part in parts for _ in range(hosts)], network)
    write_topology(Detected(joined, tuple(finding for part in parts for finding in part.findings)), out)


def write_topology(detected: Detected, out: Path) -> None:
    detected.topology.write(out)
    value = {**topology_as_dict(detected), "file": str(out)}
    output.answer(value, lambda: _print_written(detected, out))


def topology_as_dict(detected: Detected) -> dict[str, Any]:
    topology = detected.topology
    findings = [{"level": f.level, "device": f.device, "text": f.text} for f in detected.findings]
    return {**topology.to_json(), "nranks": topology.nranks, "hosts": len(topology.hosts), "findings": findings}


# -- what is printed -----------------------------------------------------------------------------------------


def _print_list(boards: list[dict[str, Any]], generators: tuple[str, ...]) -> None:
    from rich.table import Table

    table = Table("preset", "GPUs", "NICs", "", box=None)
    for board in boards:
        what, *_ = board["source"].split("; ")  # the figures' source is for `show`
        table.add_row(board["name"], str(board["nranks"]), str(board["nics"]), what)
    output.stdout.print(table)
    output.stdout.print("\ngenerators: " + ", ".join(generators), markup=False)
    output.stdout.print("Any preset with NICs: NAMExN for N hosts.", markup=False)


def print_topology(detected: Detected) -> None:
    topology = detected.topology
    hosts = len(topology.hosts)
    head = f"{topology.name}: {topology.nranks} GPU{'s' * (topology.nranks != 1)}"
    output.stdout.print(head + (f" in {hosts} hosts" if hosts > 1 else ""), markup=False)
    if topology.source:
        output.stdout.print(topology.source, markup=False)
    output.stdout.print()
    output.stdout.print(_nodes_table(topology))
    output.stdout.print()
    output.stdout.print(_links_table(topology))
    if detected.findings:
        output.stdout.print()
        for finding in detected.findings:
            output.stdout.print(_line(finding), markup=False, soft_wrap=True)


def _print_written(detected: Detected, out: Path) -> None:
    for finding in detected.findings:
        output.note(_line(finding))
    topology = detected.topology
    output.stdout.print(f"{out}: {topology.nranks} GPUs, {len(topology.links)} links", markup=False, soft_wrap=True)


def _nodes_table(topology: Topology) -> Any:
    """Nodes by host and kind; hosts that look alike share a row."""
    from rich.table import Table

    by_host: dict[int, dict[str, list[str]]] = {}
    for node in topology.nodes:
        by_host.setdefault(node.host, {}).setdefault(node.kind, []).append(node.name or f"node {node.id}")
    alike: dict[str, tuple[dict[str, list[str]], list[int]]] = {}
    for host in sorted(by_host, key=lambda host: (host < 0, host)):
        alike.setdefault(str(by_host[host]), (by_host[host], []))[1].append(host)
    table = Table("host", "kind", "nodes", "", box=None)
    for kinds, hosts in alike.values():
        label = "network" if hosts[0] < 0 else str(hosts[0]) if len(hosts) == 1 else f"{hosts[0]}–{hosts[-1]}"
        for i, (kind, names) in enumerate(kinds.items()):
            shown = names if len(names) <= 9 else [*names[:8], f"… {names[-1]}"]
            table.add_row("" if i else label, kind, str(len(names)), ", ".join(shown))
    return table


def _links_table(topology: Topology) -> Any:
    """Link classes, fastest first, with the number of directed links in each."""
    from collections import Counter

    from rich.table import Table

    kind = {node.id: node.kind for node in topology.nodes}
    classes = Counter(
        (link.bandwidth_GBps, link.alpha_us, link.kind or "link", "–".join(sorted((kind[link.src], kind[link.dst]))))
        for link in topology.links
    )
    table = Table("links", "between", "count", "GB/s", "α µs", box=None)
    for (GBps, alpha_us, name, ends), count in sorted(classes.items(), reverse=True):
        table.add_row(name, ends, str(count), f"{GBps:g}", f"{alpha_us:g}")
    return table


def _line(finding: Finding) -> str:
    return f"{finding.level}: {finding.device + ': ' if finding.device else ''}{finding.text}"
