"""`topo calibrate`: α and β of each class of links from measured times."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import output
from .topo import Hosts, Network, topo

if TYPE_CHECKING:
    from ..topology.calibrate import Calibration, Measurement
    from ..topology.model import Topology

#: Pairs that are measured of each kind of path.
PAIRS_PER_KIND = 3


@topo.command()
def calibrate(
    topology: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="A preset, NAMExN, a file, or local.")],
    times: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="A CSV (src,dst,bytes,time_us, or kind,bytes,time_us), or the output of nccl-tests' sendrecv_perf or "
            "of CUDA's p2pBandwidthLatencyTest.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--output", help="The calibrated topology JSON to write.")] = None,
    hosts: Hosts = 1,
    network: Network = None,
) -> None:
    """Fit α and β of each class of links by least squares, with residuals and 95 % intervals.

    Without --from the times are measured: run it under mpirun with one process per GPU of the topology. They are
    MPI's, between host memories.
    """
    from ..errors import InputError
    from ..runtime.launch import join, launched
    from ..topology.catalog import load
    from ..topology.measured import read_measurements

    machine = load(topology, hosts, network).topology
    if times is not None:
        _finish(machine, read_measurements(times, machine), out)
        return
    launch = launched()
    if launch is None:
        raise InputError(
            f"nothing to calibrate from: give --from FILE, or start one process per GPU: mpirun -np {machine.nranks} "
            f"teccl-msccl topo calibrate {topology}"
        )
    with join(launch) as world:
        world.attempt(lambda: _check_size(world.nranks, machine))
        measured = _measured(world, machine)
        world.attempt(lambda: _finish(machine, measured, out) if world.speaks else None)


def _check_size(nranks: int, machine: Topology) -> None:
    from ..errors import InputError

    if nranks != machine.nranks:
        raise InputError(
            f"{machine.name} has {machine.nranks} GPUs, but mpirun started {nranks}; use -np {machine.nranks}"
        )


def _measured(world: object, machine: Topology) -> list[Measurement]:
    """Times of a few pairs of each kind of path."""
    from ..runtime.measure import measure
    from ..runtime.mpi import MpiWorld
    from ..topology.calibrate import Measurement, pairs_by_path

    assert isinstance(world, MpiWorld)
    pairs = [pair for kind in pairs_by_path(machine) for pair in kind[:PAIRS_PER_KIND]]
    timings = measure(world, pairs)
    return [Measurement(*timing, where=f"measured {timing.src}→{timing.dst}") for timing in timings]


def _finish(machine: Topology, measured: list[Measurement], out: Path | None) -> None:
    from ..topology.calibrate import calibrate as fit

    calibration = fit(machine, measured)
    if out is not None:
        calibration.topology.write(out)
    value = {
        "topology": machine.name,
        "measurements": len(measured),
        "fits": [dataclasses.asdict(found) for found in calibration.fits],
        "warnings": list(calibration.warnings),
        "file": None if out is None else str(out),
    }
    for warning in calibration.warnings:
        output.warn(warning)
    output.answer(value, lambda: _print(calibration, out))


def _print(calibration: Calibration, out: Path | None) -> None:
    from rich.table import Table

    table = Table("path", "pairs", "times", "α µs", "was", "GB/s", "was", "residual", box=None)
    for fit in calibration.fits:
        table.add_row(
            fit.path,
            str(fit.pairs),
            str(fit.measurements),
            f"{fit.alpha_us:.3g} ± {fit.alpha_interval_us:.2g}",
            f"{fit.was_alpha_us:g}",
            f"{fit.bandwidth_GBps:.4g} ± {fit.bandwidth_interval_GBps:.2g}",
            f"{fit.was_bandwidth_GBps:g}",
            f"{fit.residual:.1%} (worst {fit.worst:.1%})",
        )
    output.stdout.print(table)
    if out is not None:
        output.stdout.print(f"written to {out}", markup=False, soft_wrap=True)
