"""`store`: what was generated once for a machine — list, show, select, verify, diff, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .app import app
from .options import CollectiveArgument, HostsOption, NetworkOption, SizeOption, TargetOption, TopologyArgument

if TYPE_CHECKING:
    from ..store.manifest import Entry
    from ..store.store import Machine, Store

store_app = typer.Typer(help="Programs generated once for a machine and found again by every job.")
app.add_typer(store_app, name="store")

StoreOption = Annotated[
    Path | None, typer.Option("--store", help="The store [default: $TECCL_STORE, else ~/.cache/teccl-msccl].")
]
StoreRootOption = Annotated[int | None, typer.Option("--root", help="Root of a broadcast, reduce, gather or scatter.")]


def machine_of(store: Store, topology: str, hosts: int, network: str | None) -> Machine:
    """The store's folder for a topology as the command line names it. Raises `InputError`, `Refused`."""
    from ..topology.catalog import load

    return store.find(load(topology, hosts=hosts, network=network).topology)


@store_app.command("list")
def list_(store: StoreOption = None) -> None:
    """The machines in the store."""
    from ..store.store import Store

    home = Store(store)
    machines: list[dict[str, Any]] = []
    for folder in home.folders():
        manifest = home.manifest(folder)
        topology = home.topology(folder, manifest)
        machines.append(
            {
                "fingerprint": manifest.fingerprint,
                "topology": manifest.topology,
                "nranks": topology.nranks,
                "programs": len({entry.file for entry in manifest.entries}),
                "collectives": sorted({entry.collective for entry in manifest.entries}),
                "targets": sorted({entry.target for entry in manifest.entries}),
            }
        )

    def show() -> None:
        print(f"{home.root}: {len(machines)} machine(s)")
        for each in machines:
            collectives = ", ".join(each["collectives"]) or "nothing yet"
            print(
                f"{each['fingerprint'][:12]}  {each['topology']}  {each['nranks']} ranks, {each['programs']} programs: "
                f"{collectives} ({', '.join(each['targets'])})"
            )

    output.answer({"store": str(home.root), "machines": machines}, show)


@store_app.command("show")
def show_(
    topology: TopologyArgument, hosts: HostsOption = 1, network: NetworkOption = None, store: StoreOption = None
) -> None:
    """The size ranges of a machine: which program serves them, how fast, and how near the bound."""
    from ..store.store import Store

    machine = machine_of(Store(store), topology, hosts, network)
    entries = machine.manifest.entries

    def show() -> None:
        print(f"{machine.folder}: {machine.manifest.topology}, rank r is {list(machine.permutation)}[r] in the files")
        for entry in entries:
            print(_line(entry))
            for row in entry.predicted:
                baseline = f", {row['baseline']} {row['baseline_us']:g} µs" if "baseline" in row else ""
                bound = f", bound {row['bound_us']:g} µs" if "bound_us" in row else ""
                print(f"    {row['size_bytes']:>12} bytes  {row['program_us']:g} µs{baseline}{bound}")

    answer = {
        "folder": str(machine.folder),
        "permutation": list(machine.permutation),
        **machine.manifest.to_json(),
    }
    output.answer(answer, show)


def _line(entry: Entry) -> str:
    root = "" if entry.root is None else f" root {entry.root}"
    return (
        f"{entry.collective}{root}  {entry.min_bytes} ≤ bytes < {entry.max_bytes}  {entry.target} {entry.protocol} "
        f"{entry.mode}  {entry.method} for {entry.made_for_bytes} bytes  {entry.file}"
    )


@store_app.command("select")
def select(
    topology: TopologyArgument,
    collective: CollectiveArgument,
    size: SizeOption,
    hosts: HostsOption = 1,
    network: NetworkOption = None,
    root: StoreRootOption = None,
    target: TargetOption = "executor",
    file: Annotated[Path | None, typer.Option("-o", help="Write the program for these ranks there.")] = None,
    store: StoreOption = None,
) -> None:
    """The program that serves one call, checked against its hash."""
    from dataclasses import asdict

    from ..collective.demand import ROOTED, collective_named
    from ..collective.size import parse_size
    from ..errors import Refused
    from ..store.store import Store

    name = collective_named(collective)
    machine = machine_of(Store(store), topology, hosts, network)
    entry = machine.select(name, int(parse_size(size)), target, (root or 0) if name in ROOTED else None)
    if entry is None:
        served = [_line(each) for each in machine.manifest.entries if each.collective == name]
        raise Refused(
            f"{machine.folder}: nothing for {name} of {size} for {target}; "
            + (f"it has {'; '.join(served[:4])}" if served else f"run store build {topology} --collectives {name}")
        )
    program = machine.program(entry)
    if file is not None:
        program.write(file)
    where = str(file or machine.folder / entry.file)
    output.answer({**asdict(entry), "path": where}, lambda: print(f"{where}\n{_line(entry)}"))


@store_app.command("verify")
def verify(store: StoreOption = None) -> None:
    """Check every file of the store against its hash and with the checker; exit 1 if one is bad."""
    from ..store.store import Store

    home = Store(store)
    problems = {folder.name: home.problems(folder) for folder in home.folders()}
    bad = [problem for found in problems.values() for problem in found]

    def show() -> None:
        for problem in bad:
            print(problem)
        print(f"{home.root}: {len(problems)} machine(s), {len(bad)} problem(s)")

    output.answer({"store": str(home.root), "ok": not bad, "problems": problems}, show)
    if bad:
        raise typer.Exit(1)


@store_app.command("diff")
def diff(
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="Another store.")], store: StoreOption = None
) -> None:
    """What two stores serve differently; exit 1 if anything."""
    from ..store.store import Store

    def served(home: Store) -> dict[str, str]:
        return {
            f"{manifest.topology} ({folder.name[:12]}) {entry.collective} {entry.target} "
            f"{entry.min_bytes}–{entry.max_bytes}": entry.sha256
            for folder in home.folders()
            for manifest in (home.manifest(folder),)
            for entry in manifest.entries
        }

    mine, theirs = served(Store(store)), served(Store(other))
    changes = {
        "only_here": sorted(mine.keys() - theirs.keys()),
        "only_there": sorted(theirs.keys() - mine.keys()),
        "different": sorted(what for what in mine.keys() & theirs.keys() if mine[what] != theirs[what]),
    }

    def show() -> None:
        for name, lines in changes.items():
            for line in lines:
                print(f"{name.replace('_', ' ')}: {line}")
        print("the same" if not any(changes.values()) else f"{sum(map(len, changes.values()))} difference(s)")

    output.answer(changes, show)
    if any(changes.values()):
        raise typer.Exit(1)


@store_app.command("export")
def export(
    topology: TopologyArgument,
    directory: Annotated[
        Path, typer.Option("-o", help="A directory for the files (made if missing); a file with --tuner and --nccl.")
    ],
    hosts: HostsOption = 1,
    network: NetworkOption = None,
    target: TargetOption = "executor",
    tuner: Annotated[
        bool, typer.Option("--tuner", help="Instead, the NCCL tuner plugin's cost file, to the file -o.")
    ] = False,
    nccl: Annotated[
        bool, typer.Option("--nccl", help="Instead, the NCCL interposer's programs, to the file -o.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Copy a machine's files for its ranks to a directory that a runtime can be pointed at, each checked first."""
    from ..files import check_writable, write_bytes, write_text
    from ..store.launch import exported
    from ..store.rounds_file import rounds_file
    from ..store.store import Store
    from ..store.tuner_file import cost_file

    machine = machine_of(Store(store), topology, hosts, network)
    if nccl:
        check_writable(directory)
        data, left_out = rounds_file(machine)
        write_bytes(directory, data)
        for why in left_out:
            output.note(f"left out: {why}")
        answer = {"file": str(directory), "left_out": left_out}
        output.answer(answer, lambda: print(f"{directory}: {len(data)} bytes of programs"))
        return
    if tuner:
        check_writable(directory)
        text = cost_file(machine).read_text()
        write_text(directory, text)
        lines = sum(line.startswith("cost ") for line in text.splitlines())
        output.answer({"file": str(directory), "costs": lines}, lambda: print(f"{directory}: {lines} costs"))
        return
    files = exported(machine, target, directory)
    output.answer(
        {"directory": str(directory), "files": [path.name for path in files]},
        lambda: print(f"{directory}: {len(files)} file(s)"),
    )
