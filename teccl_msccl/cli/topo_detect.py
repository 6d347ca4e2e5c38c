"""`topo detect`: the topology of this machine or, under mpirun, of the cluster that its hosts are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import output
from .topo import Network, print_topology, topo, topology_as_dict, write_topology

if TYPE_CHECKING:
    from ..runtime.mpi import MpiWorld
    from ..topology.detected import Detected


@topo.command()
def detect(
    out: Annotated[Path | None, typer.Option("-o", "--output", help="The topology JSON to write.")] = None,
    network: Network = None,
) -> None:
    """Detect this machine's GPUs, NVLinks or xGMI links, PCI tree and RDMA NICs.

    Under mpirun (any number of processes a host) every host detects itself, and rank 0 joins them by --network, in
    the order of their lowest ranks, and writes or prints the cluster.
    """
    from ..runtime.launch import join, launched
    from ..topology.detect.live import detect as detect_here

    launch = launched()
    if launch is None:
        _answer(detect_here(), out)
        return
    with join(launch) as world:
        cluster = _cluster(world, network)
        if cluster is not None:
            _answer(cluster, out)


def _cluster(world: MpiWorld, network: str | None) -> Detected | None:
    """The cluster that all hosts are, on rank 0; None on the others, whatever fails fails on all."""
    from ..topology.detect.live import detect as detect_here

    host = world.gather(world.MPI.Get_processor_name().encode())
    speaks = host.index(host[world.rank]) == world.rank
    mine = world.attempt(lambda: detect_here() if speaks else None)
    parts: list[Detected | None] | None = world.comm.gather(mine, root=0)
    return world.attempt(lambda: _joined([part for part in parts or () if part], network) if parts else None)


def _joined(parts: list[Detected], network: str | None) -> Detected:
    """Hosts in a cluster; each finding says which host it is of."""
    from dataclasses import replace

    from ..topology.detected import Detected
    from ..topology.fabric import join

    topology = join([part.topology for part in parts], network)
    if len(parts) == 1:
        return parts[0]
    findings = tuple(
        replace(finding, text=f"host {i} ({part.topology.name}): {finding.text}")
        for i, part in enumerate(parts)
        for finding in part.findings
    )
    return Detected(replace(topology, name=f"{parts[0].topology.name}+{len(parts) - 1}"), findings)


def _answer(detected: Detected, out: Path | None) -> None:
    if out is not None:
        write_topology(detected, out)
    else:
        output.answer(topology_as_dict(detected), lambda: print_topology(detected))
