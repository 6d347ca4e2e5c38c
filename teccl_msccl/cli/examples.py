"""Examples that end every command's `--help`: lines to be pasted, each a thing that people do."""

from __future__ import annotations

import typer

EXAMPLES: dict[str, tuple[str, ...]] = {
    "topo list": ("topo list",),
    "topo show": ("topo show dgx-h100x2 -o picture.svg", "topo show saved.txt"),
    "topo detect": ("topo detect -o here.json",),
    "topo convert": ("topo convert topo.xml saved.txt -o box.json",),
    "topo compose": ("topo compose dgx-h100 --hosts 16 --network fat-tree:2 -o cluster.json",),
    "topo match": ("topo match saved.txt dgx1",),
    "topo calibrate": ("topo calibrate dgx1 --from times.csv -o measured.json",),
    "synth": (
        "synth dgx-h100 allgather --size 64MB",
        "synth saved.txt allreduce --size 16MB --hosts 2 -o allreduce.xml --schedule allreduce.json",
        "synth dgx-a100 allreduce --size 1MB --target mscclpp -o plan.json",
        "synth dgx1 allreduce --size 1MB --group 0-3 --group 4-7 --without link:0-3",
        "synth dgx-a100 alltoallv --matrix bytes.csv --schedule moe.json",
    ),
    "bounds": ("bounds dgx-a100x2 allreduce --size 64MB",),
    "lower": (
        "lower schedule.json -o allgather.xml",
        "lower teccl-output.json --topology ndv2 --size 1MB -o allgather.xml",
    ),
    "check": ("check allgather.xml", "check anyones.xml --target all", "check plan.json"),
    "simulate": ("simulate allgather.xml --topology dgx-h100 --size 64MB --trace trace.json",),
    "run": ("run allgather.xml -b 1K -e 64M -f 4", "run allreduce.xml --dtype half,int64 --op sum,max"),
    "report": (
        "report schedule.json -o report.html",
        "report allgather.xml --topology dgx-h100 --size 64MB --format png,svg",
    ),
    "bench": ("bench dgx-a100 allreduce -b 1K -e 1G -f 8 -o bench.svg",),
    "doctor": ("doctor", "doctor --json"),
    "store build": (
        "store build dgx-a100 --hosts 2 --sizes 1KB:1GB:8",
        "store build saved.txt --collectives allreduce,alltoall --targets executor,rccl --degraded",
    ),
    "store list": ("store list --store programs",),
    "store show": ("store show dgx-a100x2",),
    "store select": ("store select dgx-a100x2 allreduce --size 16MB -o allreduce.xml",),
    "store verify": ("store verify",),
    "store diff": ("store diff /other/programs",),
    "store export": ("store export dgx-a100x2 -o files --target msccl",),
    "store env": ('eval "$(teccl-msccl store env --runtime executor --topology dgx-a100x2)"',),
    "store launch": ("store launch --runtime executor --topology dgx1 -- mpirun -np 8 all_reduce_perf -b 1M -e 256M",),
    "route metric": ("route metric traffic.json",),
    "route optimize": ("route optimize traffic.json --enforce rows.csv", "route optimize traffic.json --router greedy"),
    "route flows": ("route flows schedule.json --placement placement.json -o traffic.json",),
    "route simulate": ("route simulate scenario.json --router auto",),
    "route serve": ("route serve --state tables < events.jsonl", "route serve --state tables --listen 127.0.0.1:7000"),
    "route experiment": ("route experiment -o results --draws 2",),
}


def shown(line: str) -> str:
    """An example as it is typed; most begin with the command."""
    return f"  {line}" if "teccl-msccl " in line else f"  teccl-msccl {line}"


def add_examples(app: typer.Typer, path: tuple[str, ...] = ()) -> None:
    """Put each command's examples under its help."""
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__ if command.callback else "")
        lines = EXAMPLES.get(" ".join([*path, name.replace("_", "-")]))
        if lines:
            # The formatter leaves a paragraph alone that begins with \b.
            command.epilog = "\b\n" + "\n".join(["Examples:", *map(shown, lines)])
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_examples(group.typer_instance, (*path, str(group.name or group.typer_instance.info.name)))
