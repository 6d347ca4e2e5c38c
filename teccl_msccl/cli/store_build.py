"""`store build`: synthesize, lower, check, execute and file everything for a machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError
from . import output
from .options import HostsOption, NetworkOption, TopologyArgument
from .store import StoreOption, _line, store_app

if TYPE_CHECKING:
    from ..store.candidate import Candidate


@store_app.command("build")
def build_(
    topology: TopologyArgument,
    hosts: HostsOption = 1,
    network: NetworkOption = None,
    collectives: Annotated[
        str, typer.Option("--collectives", metavar="C,C", help="Which.")
    ] = "allreduce,allgather,reduce_scatter,alltoall",
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="FIRST:LAST[:N]", help="N sizes, or a list S,S.")
    ] = "1KB:1GB:8",
    targets: Annotated[str, typer.Option("--targets", metavar="T,T", help="Runtimes to build for.")] = "executor",
    method: Annotated[str, typer.Option("--method", help="As of `synth`.")] = "auto",
    time_limit: Annotated[float, typer.Option("--time-limit", min=0, help="Seconds for each search.")] = 10,
    root: Annotated[int, typer.Option("--root", help="Root of the rooted collectives.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes.")] = 2,
    engine: Annotated[str, typer.Option("--engine", help="local, or dask or ray over many machines.")] = "local",
    scheduler: Annotated[str | None, typer.Option("--scheduler", help="Address of the engine's scheduler.")] = None,
    degraded: Annotated[
        bool, typer.Option("--degraded", help="Also for the machine with each NIC or link down.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Build a machine's programs; killed, the same command goes on where it was. Safe beside other builders."""
    from ..collective.demand import collective_named
    from ..program.targets import target_named
    from ..store.build import Plan, build
    from ..store.degraded import single_failures
    from ..store.engine import engine_named
    from ..store.store import Store
    from ..synthesis.portfolio import method_named
    from ..topology.catalog import load

    plan = Plan(
        tuple(dict.fromkeys(collective_named(name.strip()) for name in collectives.split(","))),
        _sizes(sizes),
        tuple(dict.fromkeys(target_named(name.strip()).name for name in targets.split(","))),
        method_named(method),
        time_limit,
        root,
    )
    machine = load(topology, hosts=hosts, network=network).topology
    if not 0 <= root < machine.nranks:
        raise InputError(f"root {root} is not a rank of {machine.name}; use 0..{machine.nranks - 1}")

    def report(done: int, total: int, candidate: Candidate) -> None:
        outcome = f": {candidate.refused}" if candidate.refused else ""
        output.note(f"{done}/{total} {candidate.job}{outcome}")

    home = Store(store)
    with engine_named(engine, jobs, scheduler) as executor:
        entries = build(home, machine, plan, executor, report)
        failures = list(single_failures(machine)) if degraded else []
        for left in failures:
            output.note(left.name)
            build(home, left, plan, executor, report)

    def show() -> None:
        for entry in entries:
            print(_line(entry))
        for left in failures:
            print(f"and for {left.name}")

    answer = {"store": str(home.root), "entries": [asdict(entry) for entry in entries]}
    output.answer(answer | {"degraded": [left.name for left in failures]}, show)


def _sizes(text: str) -> tuple[int, ...]:
    from ..collective.size import parse_size
    from ..store.build import sizes_between

    if ":" not in text:
        return tuple(sorted({int(parse_size(word)) for word in text.split(",")}))
    first, last, *number = text.split(":")
    if len(number) > 1 or (number and not number[0].isdigit()):
        raise InputError(f"--sizes {text}; use FIRST:LAST:N or S,S")
    return sizes_between(int(parse_size(first)), int(parse_size(last)), int(number[0]) if number else 8)
