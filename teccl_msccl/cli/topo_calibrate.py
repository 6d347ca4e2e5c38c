"""`topo calibrate`: α and β of each class of links from measured times."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError, Refused
from . import output
from .topo import Hosts, Network, topo

if TYPE_CHECKING:
    from ..runtime.launch import Launch
    from ..runtime.measure import Messengers
    from ..topology.calibrate import Calibration, Measurement
    from ..topology.model import Topology

#: Pairs that are measured of each kind of path.
PAIRS_PER_KIND = 3

#: Launchers end the others once one process has failed: rank 0 is given so long to say why.
RANK_0_SPEAKS_SECONDS = 1.0


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
    traces: Annotated[
        Path | None, typer.Option("--from-trace", help="The folder of a PyTorch job's traces ($TECCL_TRACE).")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--output", help="The calibrated topology JSON to write.")] = None,
    hosts: Hosts = 1,
    network: Network = None,
) -> None:
    """Fit α and β of each class of links by least squares, with residuals and 95 % intervals.

    Without --from the times are measured, one process per GPU of the topology: under torchrun over torch.distributed
    (NCCL between GPUs, gloo between hosts without), under mpirun over MPI between host memories.
    """
    from ..runtime.launch import launched
    from ..runtime.torch_ranks import torch_launched
    from ..topology.catalog import load

    if traces is not None:
        from ..topology.traced import read_traces

        if times is not None:
            raise InputError("--from and --from-trace; give one of them")
        machine = load(topology, hosts, network).topology
        _finish(machine, read_traces(traces, machine), out)
        return
    if times is not None:
        from ..topology.measured import read_measurements

        machine = load(topology, hosts, network).topology
        _finish(machine, read_measurements(times, machine), out)
        return
    launch = launched() or torch_launched()
    if launch is None:
        nranks = load(topology, hosts, network).topology.nranks
        raise InputError(
            f"nothing to calibrate from: give --from FILE, or start one process per GPU: torchrun --nproc-per-node "
            f"{nranks} --no-python teccl-msccl topo calibrate {topology} (or mpirun -np {nranks} teccl-msccl …)"
        )
    try:
        _calibrate_together(launch, lambda: load(topology, hosts, network).topology, out)
    except (InputError, Refused) as error:
        if launch.rank == 0:
            raise
        time.sleep(RANK_0_SPEAKS_SECONDS)
        raise typer.Exit(2 if isinstance(error, InputError) else 1) from None


def _calibrate_together(launch: Launch, load: Callable[[], Topology], out: Path | None) -> None:
    """Every rank takes part in measuring; rank 0 fits and writes. Errors are the same on all ranks."""
    from ..runtime.launch import join
    from ..runtime.measure import MpiMessengers
    from ..runtime.torch_ranks import TorchRanks

    with TorchRanks(launch) if launch.family == "torch" else join(launch) as world:
        machine = world.attempt(load)
        world.attempt(lambda: _check_size(world.nranks, machine, launch.family))
        measured = _measured(world if isinstance(world, TorchRanks) else MpiMessengers(world), machine)
        world.attempt(lambda: _finish(machine, measured, out) if world.speaks else None)


def _check_size(nranks: int, machine: Topology, family: str) -> None:
    if nranks == machine.nranks:
        return
    launcher, remedy = ("mpirun", "-np {}")
    if family == "torch":
        launcher, remedy = (
            "torchrun",
            "--nproc-per-node {}" if len(machine.hosts) == 1 else "{} on all nodes together",
        )
    raise InputError(
        f"{machine.name} has {machine.nranks} GPUs, but {launcher} started {nranks}; use "
        + remedy.format(machine.nranks)
    )


def _measured(ranks: Messengers, machine: Topology) -> list[Measurement]:
    """Times of a few pairs of each kind of path."""
    from ..runtime.measure import measure
    from ..topology.calibrate import Measurement, pairs_by_path

    pairs = [pair for kind in pairs_by_path(machine) for pair in kind[:PAIRS_PER_KIND]]
    return [Measurement(*timing, where=f"measured {timing.src}→{timing.dst}") for timing in measure(ranks, pairs)]


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
