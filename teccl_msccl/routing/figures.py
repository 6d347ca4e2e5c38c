"""Figures of the experiment: slowdown and routing time of each router."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..files import write_bytes
from ..topology.picture import rendered
from .experiment import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "ecmp": "#c1121f",
    "anneal": "#e07a1f",
    "edge-colour": "#8d6cab",
    "greedy": "#3a86c8",
    "equitable": "#76b900",
    "auto": "#1b4332",
}
_MARKS = {"ecmp": "o", "anneal": "s", "edge-colour": "^", "greedy": "D", "equitable": "v", "auto": "*"}


def draw(cells: Sequence[Cell], directory: Path) -> list[Path]:
    """Write slowdown.svg and routing-time.svg. Raises `InputError` where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("figures need matplotlib: pip install 'teccl-msccl[report]'") from None
    dead = list(dict.fromkeys(cell.dead_spines for cell in cells))
    written = []
    for name, label, draw_one in (
        ("slowdown.svg", "all-reduce time / time alone", _slowdowns),
        ("routing-time.svg", "ms to route all flows", _times),
    ):
        figure = Figure(figsize=(1.2 + 3.2 * len(dead), 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(dead), sharey=True, squeeze=False)[0]
        for axes, count in zip(panels, dead, strict=True):
            draw_one(axes, [cell for cell in cells if cell.dead_spines == count])
            axes.set_title(f"{count} dead spine{'s' * (count != 1)}")
            axes.set_xlabel("jobs")
            axes.grid(alpha=0.3)
        panels[0].set_ylabel(label)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        write_bytes(directory / name, rendered(figure, "svg"))
        written.append(directory / name)
    return written


def _slowdowns(axes: Axes, cells: Sequence[Cell]) -> None:
    """Means, with bars from the least to the largest."""
    routers = list(dict.fromkeys(cell.router for cell in cells))
    for place, router in enumerate(routers):
        mine = [cell for cell in cells if cell.router == router]
        x = [cell.jobs + (place - (len(routers) - 1) / 2) * 0.09 for cell in mine]
        spread = [[max(0.0, c.mean - c.least) for c in mine], [max(0.0, c.most - c.mean) for c in mine]]
        axes.errorbar(
            x, [c.mean for c in mine], yerr=spread, label=router, color=_COLOURS.get(router, "#444444"),
            marker=_MARKS.get(router, "o"), linestyle="none", markersize=5, elinewidth=1,
        )  # fmt: skip
    axes.set_xticks(sorted({cell.jobs for cell in cells}))
    axes.set_ylim(bottom=0.8)


def _times(axes: Axes, cells: Sequence[Cell]) -> None:
    for router in dict.fromkeys(cell.router for cell in cells):
        mine = [cell for cell in cells if cell.router == router]
        axes.plot(
            [c.jobs for c in mine], [c.routing_ms for c in mine], label=router,
            color=_COLOURS.get(router, "#444444"), marker=_MARKS.get(router, "o"), markersize=5,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xticks(sorted({cell.jobs for cell in cells}))
