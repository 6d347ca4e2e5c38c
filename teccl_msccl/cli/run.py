"""`teccl-msccl run`: execute a program on real data and compare every element."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError, Refused
from . import output
from .app import app

if TYPE_CHECKING:
    from ..program.program import Program
    from ..runtime.mpi import MpiWorld
    from ..runtime.sweep import Row, Sweep, WrongElement
    from ..runtime.world import Settings, World

_MAX_SIZES = 1000
_HOPS_SHOWN = 20
#: mpirun ends the whole job when one process fails, so without MPI the others give rank 0 this long to say why.
_RANK_0_SPEAKS_SECONDS = 3.0


@app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An MSCCL XML file.")],
    size: Annotated[str | None, typer.Option("--size", "-S", metavar="S,S", help="Sizes [default: 64KB,1MB].")] = None,
    begin: Annotated[str | None, typer.Option("--minbytes", "-b", metavar="SIZE", help="First size.")] = None,
    end: Annotated[str | None, typer.Option("--maxbytes", "-e", metavar="SIZE", help="Last size.")] = None,
    factor: Annotated[float, typer.Option("--stepfactor", "-f", help="From one size to the next.")] = 2.0,
    dtype: Annotated[
        str, typer.Option("--dtype", "-d", metavar="T,T", help="float, half, bfloat16, …, f8e4m3, or all.")
    ] = "float",
    op: Annotated[str, typer.Option("--op", "-o", metavar="OP,OP", help="sum, prod, max, min, avg, or all.")] = "sum",
    iters: Annotated[int, typer.Option("--iters", "-n", help="Timed runs of each case.")] = 5,
    warmup: Annotated[int, typer.Option("--warmup", "-w", help="Untimed runs before them.")] = 1,
    root: Annotated[int | None, typer.Option("--root", "-r", help="Root [default: the one the file serves].")] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", "-T", help="Seconds without progress that are a stall.")
    ] = 30.0,
    exact: Annotated[bool, typer.Option("--exact", help="Refuse sizes that do not divide; else round up.")] = False,
    slots: Annotated[int | None, typer.Option("--slots", help="Transfers in flight [default: the protocol's].")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Threads [default: min(ranks, cores)].")] = None,
    cuda: Annotated[bool, typer.Option("--cuda", help="All ranks on this machine's GPU.")] = False,
    inject: Annotated[
        str,
        typer.Option(
            "--inject",
            metavar="F,F",
            help="Faults under --seed, every run checked: shuffle (threadblocks in random order), delay (they pause), "
            "adversarial (one runs alone, one starves), reorder (connections overtake one another), one-slot "
            "(one transfer in flight), or all: all but one-slot, which right programs survive.",
        ),
    ] = "",
    seed: Annotated[int, typer.Option("--seed", help="Of --inject; alone, not 0: --inject shuffle.")] = 0,
) -> None:
    """Execute FILE on real data and compare every element: alone with threads, under mpirun one rank per process.

    Sizes count as in nccl-tests: 64KB is 1000s, 64KiB and 64K are 1024s.
    """
    from ..collective.demand import REDUCING
    from ..runtime.cuda import CudaWorld
    from ..runtime.elements import dtypes_named, reductions_named
    from ..runtime.launch import join, launched
    from ..runtime.sweep import Sweep
    from ..runtime.threads import ThreadWorld
    from ..runtime.world import Settings, faults_named

    def chosen(program: Program) -> tuple[Sweep, Settings]:
        dtypes = dtypes_named(dtype, program.collective in REDUCING)
        sweep = Sweep(_sizes(size, begin, end, factor), dtypes, reductions_named(op), iters, warmup, exact)
        return sweep, Settings(slots, None, workers, timeout, seed, faults_named(inject))

    options = {
        "--size": size, "-b": begin, "-e": end, "-f": factor, "--dtype": dtype, "--op": op, "--iters": iters,
        "--warmup": warmup, "--root": root, "--timeout": timeout, "--exact": exact, "--slots": slots,
        "--inject": inject, "--seed": seed,
    }  # fmt: skip
    launch = launched()
    if launch is None:
        program, _ = _load(file)
        sweep, settings = chosen(program)
        world: World = CudaWorld(program.nranks) if cuda else ThreadWorld(program.nranks)
        if not _execute(world, program, file, sweep, settings, root):
            raise typer.Exit(1)
        return

    try:
        if cuda:
            raise InputError("--cuda has all ranks on one GPU, in one process; leave mpirun out")
        mpi = join(launch)
    except InputError:
        if launch.rank == 0:
            raise
        time.sleep(_RANK_0_SPEAKS_SECONDS)
        raise typer.Exit(2) from None
    try:
        with mpi:
            program, digest = mpi.attempt(lambda: _load(file))
            _require_same(mpi, digest, options)
            sweep, settings = mpi.attempt(lambda: chosen(program))
            mpi.attempt(lambda: _require_ranks(mpi.nranks, program, file))
            right = _execute(mpi, program, file, sweep, settings, root)
    except (InputError, Refused) as error:
        if mpi.speaks:
            raise
        raise typer.Exit(2 if isinstance(error, InputError) else 1) from None
    if not right:
        raise typer.Exit(1)


# -- what to execute -------------------------------------------------------------------------------------------


def _sizes(listed: str | None, begin: str | None, end: str | None, factor: float) -> list[int]:
    from ..collective.size import parse_size

    def whole(text: str) -> int:
        return math.ceil(parse_size(text, one_letter=True))

    if begin is None and end is None:
        return [whole(text) for text in (listed or "64KB,1MB").split(",")]
    if listed is not None:
        raise InputError("--size and -b/-e both name the sizes; use one of them")
    if begin is None:
        raise InputError(f"-e {end} without -b; name the first size with -b")
    first = whole(begin)
    last = first if end is None else whole(end)
    if last < first:
        raise InputError(f"-e {end} is smaller than -b {begin}; swap them")
    if not 1 < factor < math.inf:
        raise InputError(f"-f {factor:g}; use a factor above 1")
    sizes = [first]
    while (following := max(sizes[-1] + 1, math.floor(sizes[-1] * factor))) <= last:
        sizes.append(following)
        if len(sizes) > _MAX_SIZES:
            raise InputError(f"-b {begin} -e {end} -f {factor:g} are over {_MAX_SIZES} sizes; use a larger -f")
    return sizes


def _load(file: Path) -> tuple[Program, bytes]:
    """The program and the SHA-256 of its file."""
    from ..errors import naming
    from ..files import read_bytes
    from ..program import xml
    from ..program.kind import plan_in

    data = read_bytes(file, "a program")  # once: a pipe has it once
    if plan_in(data, file) is not None:
        raise InputError(f"{file}: run executes MSCCL XML; use check or simulate on MSCCL++ plans")
    program = xml.parse(data, str(file))
    with naming(file, program.name):
        program.require_channels()
    return program, hashlib.sha256(data).digest()


def _require_same(world: MpiWorld, digest: bytes, options: Mapping[str, object]) -> None:
    """Every process must have the same file and options before the first byte moves."""
    digests = {"file": digest} | {
        name: hashlib.sha256(repr(given).encode()).digest() for name, given in options.items()
    }
    theirs = world.gather(b"".join(each.hex()[:32].encode() for each in digests.values()))

    def compare() -> None:
        for position, what in enumerate(digests):
            part = slice(32 * position, 32 * (position + 1))
            different = [rank for rank, said in enumerate(theirs) if said[part] != theirs[0][part]]
            if different:
                ranks = ", ".join(map(str, different[:8])) + ("…" if len(different) > 8 else "")
                raise InputError(f"rank {ranks} has a different {what} from rank 0; give all ranks the same {what}")

    world.attempt(compare)


def _require_ranks(nranks: int, program: Program, file: Path) -> None:
    if nranks != program.nranks:
        raise InputError(
            f"{file}: is for {program.nranks} ranks, but mpirun started {nranks}; use -np {program.nranks}"
        )


# -- executing and telling ---------------------------------------------------------------------------------------


def _execute(
    world: World, program: Program, file: Path, sweep: Sweep, settings: Settings, given_root: int | None
) -> bool:
    """Execute every case and tell; whether every element is right."""
    from ..runtime import table
    from ..runtime.root import root_of
    from ..runtime.sweep import measure
    from ..runtime.world import Stall

    root = world.attempt(lambda: root_of(program, given_root, str(file)))
    cases = world.attempt(lambda: list(sweep.cases(program, root, str(file))))
    shown = world.speaks and not output.as_json
    if shown:
        words = (
            f"warmup {sweep.warmup}, iters {sweep.iterations}, {program.protocol}, {settings.slots_of(program)} slots"
        )
        _print(table.header(program.collective, program.nranks, world.transport, str(file), words))
    rows: list[Row] = []
    pending: list[Row] = []
    for case, following in zip(cases, [*cases[1:], None], strict=True):
        try:
            row = measure(world, case, sweep, settings)
        except Stall as stall:
            for blocked in stall.blocked:
                output.note(blocked)
            raise
        rows.append(row)
        pending.append(row)
        last_mode = following is None or following.in_place <= case.in_place
        if shown and last_mode:
            _print([table.line(pending)])
        if last_mode:
            pending = []
    return _conclude(world, program, file, rows)


def _conclude(world: World, program: Program, file: Path, rows: list[Row]) -> bool:
    """Give the answer, rows as JSON or the table's last lines; whether every element is right."""
    from ..runtime import table

    first = next((row for row in rows if row.wrong or row.out_of_bounds), None)
    if world.speaks:
        answer: dict[str, Any] = {
            "ranks": world.nranks,
            "transport": world.transport,
            "file": str(file),
            "collective": program.collective,
            "rows": [row.to_json() for row in rows],
        }
        if first is not None:
            answer["first_wrong"] = first.first_wrong.to_json() if first.first_wrong else None
        output.answer(answer, lambda: _print(table.footer(rows)))
        if first is not None:
            case = f"{first.size} bytes {first.dtype} {first.op} {first.mode}"
            _tell_path(first.first_wrong)
            output.note(f"error: {file}: {first.wrong} wrong elements ({case}); first: {first.first_wrong}")
    return first is None


def _tell_path(wrong: WrongElement | None) -> None:
    """Which steps brought the first wrong element to where it is; of a long path, its ends."""
    if wrong is None:
        return
    hops = [str(hop) for hop in wrong.path] or ["no step writes it"]
    if len(hops) > _HOPS_SHOWN:
        half = _HOPS_SHOWN // 2
        hops = [*hops[:half], f"… {len(hops) - 2 * half} more …", *hops[-half:]]
    output.note("path of the first wrong element:")
    for hop in hops:
        output.note(f"  {hop}")


def _print(lines: list[str]) -> None:
    print("\n".join(lines), flush=True)
