"""Pictures with matplotlib: the Gantt chart, what is used how much, and the sweep over sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import InputError
from .chart import Gantt
from .sweep import OURS, SizeRow, size_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A link kind's colour, as in pictures of topologies.
KIND_COLOUR = {
    "nvlink": "#3f7d00",
    "xgmi": "#c1121f",
    "pcie": "#5c7c94",
    "socket": "#8d6cab",
    "network": "#e07a1f",
    "link": "#2b6cb0",
}
_MARKS = "osv^D<>Pp"
_OURS = "#d1495b"
#: As many as marks, and none as red as ours.
_OTHERS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22", "#1b3a6b")
_TALLEST = 120
_SIZES_MARKED = 6


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("pictures need matplotlib: pip install 'teccl-msccl[report]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def gantt_figure(gantt: Gantt, title: str) -> Figure:
    """Link × time."""
    rows = gantt.rows[:_TALLEST]
    figure = _figure(10, max(2.5, 0.16 * len(rows) + 1.4))
    axes = figure.add_subplot()
    for y, row in enumerate(rows):
        spans = [(bar.start_us, bar.end_us - bar.start_us) for bar in row.bars]
        colour = KIND_COLOUR.get(row.kind, "#2b6cb0")
        shades = [(colour, 0.1 + 0.9 * bar.share) for bar in row.bars]
        edge = {"linewidth": 0} if gantt.crowded else {"edgecolor": "white", "linewidth": 0.3}
        axes.broken_barh(spans, (y - 0.4, 0.8), facecolors=shades, **edge)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, gantt.finish_us or 1)
    axes.set_xlabel("µs")
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)
    return figure


def bars_figure(names: Sequence[str], shares: Sequence[float], title: str) -> Figure:
    """How much of the time each of the named is in use."""
    figure = _figure(8, max(2.0, 0.16 * len(names) + 1.2))
    axes = figure.add_subplot()
    axes.barh(range(len(names)), [100 * share for share in shares], color="#2b6cb0")
    axes.set_yticks(range(len(names)), list(names), fontsize=6)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time in use")
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)
    return figure


def sweep_figure(rows: Sequence[SizeRow], title: str) -> Figure:
    """Time and algorithm bandwidth over size, with the bound."""
    figure = _figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    sizes = [row.size_bytes for row in rows]
    for axes, label in ((left, "µs"), (right, "algbw, GB/s")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("size")
        axes.set_ylabel(label)
        marked = sizes[:: -(-len(sizes) // _SIZES_MARKED)]
        axes.set_xticks(marked, [size_label(size) for size in marked], fontsize=7)
        axes.minorticks_off()
        axes.grid(True, which="major", alpha=0.3)
    for number, method in enumerate(rows[0].finish_us):
        others = {"lw": 1.1, "alpha": 0.9, "color": _OTHERS[number % len(_OTHERS)]}
        style = {"lw": 2.2, "zorder": 5, "color": _OURS} if method == OURS else others
        mark = _MARKS[number % len(_MARKS)]
        left.plot(sizes, [row.finish_us[method] for row in rows], marker=mark, ms=3.5, label=method, **style)
        right.plot(sizes, [row.algbw_GBps(method) for row in rows], marker=mark, ms=3.5, label=method, **style)
    bounds = [row.bound_us for row in rows]
    left.plot(sizes, bounds, "k--", lw=1, label="bound")
    right.plot(
        sizes, [size / (bound * 1e3) for size, bound in zip(sizes, bounds, strict=True)], "k--", lw=1, label="bound"
    )
    left.legend(fontsize=7)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, parse_math=False)
    return figure
