"""Arguments and options that several commands share, and the words that explain them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TopologyArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPOLOGY",
        help="A preset (see `topo list`; NAMExN for N hosts), a topology JSON, a saved `nvidia-smi topo -m`, an "
        "NCCL topology XML, or local.",
    ),
]
CollectiveArgument = Annotated[
    str,
    typer.Argument(
        metavar="COLLECTIVE",
        help="allgather, reduce_scatter, allreduce, alltoall, broadcast, reduce, gather or scatter; alltoallv with a "
        "--matrix, custom with a --demand.",
    ),
]
SizeOption = Annotated[
    str, typer.Option("--size", help="Size as nccl-tests count it: 64MB (10^6), 64MiB (2^20) or bytes.")
]
AskedSizeOption = Annotated[
    str | None,
    typer.Option(
        "--size",
        help="Size as nccl-tests count it: 64MB (10^6), 64MiB (2^20) or bytes. It scales a --matrix (its longest row) "
        "or a --demand (all chunks), which can do without.",
    ),
]
GroupOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="RANKS",
        help="Ranks with the collective among themselves: 0-3, 0,2,4 or 0-12/4; RANKS:2 for twice the priority. Repeat "
        "it for groups at once on the same links; the size is each group's.",
    ),
]
MatrixOption = Annotated[
    Path | None, typer.Option("--matrix", help="A CSV of bytes for alltoallv, row = sender (0: nothing).")
]
DemandOption = Annotated[
    Path | None,
    typer.Option("--demand", help='A JSON for custom: {"chunks": [{"origin": [0], "want": [1, 2], "reduce": false}]}.'),
]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="PART",
        help="A part that has failed: link:3-5 (both directions), nic:2 or nic:HOST.N, gpu:4. Repeatable.",
    ),
]
HostsOption = Annotated[int, typer.Option("--hosts", help="That many hosts of the topology.")]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        "--network",
        help="How hosts are joined: rail, fat-tree, single-switch, ring or a JSON FILE (see `topo compose --help`).",
    ),
]
RootOption = Annotated[int, typer.Option("--root", help="Root of a broadcast, reduce, gather or scatter.")]
TargetOption = Annotated[
    str,
    typer.Option("--target", help="The runtime the program is for: executor, msccl, rccl or mscclpp (a JSON plan)."),
]
ModeOption = Annotated[
    str | None, typer.Option("--mode", help="both, inplace or outofplace (default: both where the target can).")
]
ProtocolOption = Annotated[str, typer.Option("--protocol", help="auto (by simulation), Simple, LL or LL128.")]
InstancesOption = Annotated[
    str, typer.Option("--instances", help="auto (by simulation), or N: every chunk in N parts that move side by side.")
]


def instances_named(text: str) -> int | None:
    """The number that --instances says; None: auto."""
    from ..errors import InputError

    if text == "auto":
        return None
    if not (text.isdecimal() and 1 <= int(text) <= 32):
        raise InputError(f"--instances {text}; use auto or a number from 1 to 32")
    return int(text)
