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
}


def add_examples(app: typer.Typer, path: tuple[str, ...] = ()) -> None:
    """Put each command's examples under its help."""
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__ if command.callback else "")
        lines = EXAMPLES.get(" ".join([*path, name.replace("_", "-")]))
        if lines:
            # The formatter leaves a paragraph alone that begins with \b.
            command.epilog = "\b\n" + "\n".join(["Examples:", *(f"  teccl-msccl {line}" for line in lines)])
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_examples(group.typer_instance, (*path, str(group.name or group.typer_instance.info.name)))
