"""Arguments and options that several commands share, and the words that explain them."""

from __future__ import annotations

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
        help="allgather, reduce_scatter, allreduce, alltoall, broadcast, reduce, gather or scatter.",
    ),
]
SizeOption = Annotated[
    str, typer.Option("--size", help="Size as nccl-tests count it: 64MB (10^6), 64MiB (2^20) or bytes.")
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
