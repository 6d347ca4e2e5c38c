"""Results as nccl-tests prints them."""

from __future__ import annotations

from collections.abc import Sequence

from .sweep import MODES, Row

_UNITS = (
    f"#{'':62}  {'out-of-place':^32}  {'in-place':^32}",
    f"# {'size':>12}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
    + f"  {'time':>8}  {'algbw':>7}  {'busbw':>7}  #wrong" * 2,
    f"# {'(B)':>12}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}"
    + f"  {'(us)':>8}  {'(GB/s)':>7}  {'(GB/s)':>7}        " * 2,
)


def header(collective: str, nranks: int, transport: str, path: str, settings: str) -> list[str]:
    """The comment lines above the table."""
    return [f"# {collective} on {nranks} ranks ({transport}): {path}", f"# {settings}", "#", *map(str.rstrip, _UNITS)]


def line(rows: Sequence[Row]) -> str:
    """One line: the rows of one size, type and reduction, one a mode; N/A for a mode that the file does not claim."""
    any_row = rows[0]
    cells = f"  {any_row.size:>12}  {any_row.count:>12}  {any_row.dtype:>8}  {any_row.op:>6}  {any_row.root:>6}"
    for mode in MODES:
        row = next((row for row in rows if row.mode == mode), None)
        if row is None:
            cells += f"  {'N/A':>8}  {'N/A':>7}  {'N/A':>7}     N/A"
        else:
            time = f"{row.time_us:.1f}" if row.time_us < 1e5 else f"{row.time_us:.0f}"
            cells += f"  {time:>8}  {row.algbw:>7.2f}  {row.busbw:>7.2f}  {row.wrong:>6}"
    return cells


def footer(rows: Sequence[Row]) -> list[str]:
    """The comment lines below the table. The average leaves out sizes of 0, as they have no bandwidth."""
    overrun = sum(row.out_of_bounds for row in rows)
    timed = [row.busbw for row in rows if row.size]
    average = sum(timed) / len(timed) if timed else 0.0
    return [
        f"# Out of bounds values : {overrun} {'FAILED' if overrun else 'OK'}",
        f"# Avg bus bandwidth    : {average:g}",
        "#",
    ]
