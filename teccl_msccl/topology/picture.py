"""Picture: a topology drawn in rows, network on top, GPUs below, each link class in its own colour and width."""

from __future__ import annotations

import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..files import write_bytes
from .model import Node, Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NODES = 600
HOSTS_A_ROW = 4

#: From the top: what a node is, and where its row is.
_ROWS = ("network", "nic", "pcie", "cpu", "gpu", "nvswitch")
_FILL = {
    "gpu": "#76b900",
    "nic": "#f4a261",
    "cpu": "#9db4c0",
    "pcie": "#dfe7ec",
    "nvswitch": "#b8dc6a",
    "network": "#ffd9b3",
}
_COLOUR = {
    "nvlink": "#3f7d00",
    "xgmi": "#c1121f",
    "pcie": "#5c7c94",
    "socket": "#8d6cab",
    "network": "#e07a1f",
    "": "#444444",
}
_ORDER = tuple(_COLOUR)
_STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_COLUMN, _ROW, _GAP = 1.25, 1.5, 0.9
_BEND = 0.28  # of a wire within a row, as a share of its length


@dataclass(frozen=True)
class _Wire:
    """What joins two nodes, both directions and parallel links together."""

    one: int
    other: int
    kind: str
    GBps: float
    alpha_us: float
    both_ways: bool


def draw(topology: Topology, path: Path) -> None:
    """Write a picture of a topology: SVG, PNG or PDF by the name's ending.

    Raises `InputError` for another ending, too many nodes to tell apart, and where matplotlib is not installed.
    """
    ending = path.suffix.lower().lstrip(".")
    if ending not in ("svg", "png", "pdf"):
        raise InputError(f"{path}: a picture's name ends in .svg, .png or .pdf")
    if len(topology.nodes) > MOST_NODES:
        raise InputError(
            f"{path}: {len(topology.nodes)} nodes cannot be told apart in a picture; draw fewer hosts (at most "
            f"{MOST_NODES} nodes)"
        )
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(f"{path}: pictures need matplotlib: pip install 'teccl-msccl[report]'") from None
    at, frames, (width, height) = _layout(topology)
    figure = Figure(figsize=(max(7.0, width * 0.85), max(4.0, height * 0.85) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-0.9, width)
    axes.set_ylim(-height, max(y for _, y in at.values()) + 0.9)
    axes.set_title(_title(topology), fontsize=12, loc="left", parse_math=False)
    _draw_frames(axes, frames)
    _draw_wires(axes, topology, at)
    _draw_nodes(axes, topology, at)
    write_bytes(path, rendered(figure, ending))


def rendered(figure: Figure, ending: str) -> bytes:
    """The picture as "svg", "png" or "pdf"; the same figure gives the same bytes, and words in an SVG stay words."""
    import matplotlib as mpl

    picture = io.BytesIO()
    undated: dict[str, Any] | None = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "teccl-msccl"}):
        figure.savefig(picture, format=ending, dpi=150, metadata=undated)
    return picture.getvalue()


def _title(topology: Topology) -> str:
    hosts = len(topology.hosts)
    return f"{topology.name}: {topology.nranks} GPUs" + (f" in {hosts} hosts" if hosts > 1 else "")


# -- where things are ----------------------------------------------------------------------------------------


Point = tuple[float, float]


def _layout(topology: Topology) -> tuple[dict[int, Point], list[tuple[str, Point, Point]], Point]:
    """Each node's place, each host's frame (title, lower left, upper right), and the size of the whole."""
    role = {node.id: _role(topology, node) for node in topology.nodes}
    in_host: dict[int, list[Node]] = defaultdict(list)
    for node in topology.nodes:
        if role[node.id] != "network":
            in_host[node.host].append(node)
    neighbours: dict[int, set[int]] = defaultdict(set)
    for link in topology.links:
        neighbours[link.src].add(link.dst)
        neighbours[link.dst].add(link.src)
    at: dict[int, Point] = {}
    frames: list[tuple[str, Point, Point]] = []
    networks = [node.id for node in topology.nodes if role[node.id] == "network"]
    top = -2.2 if networks else 0.0
    left, width = 0.0, 0.0
    for i, host in enumerate(sorted(in_host)):
        if i and i % HOSTS_A_ROW == 0:
            left, top = 0.0, min(y for _, y in at.values()) - 2.4
        columns, bottom = _place_host(in_host[host], role, neighbours, (left, top), at)
        if len(in_host) > 1:
            frames.append((f"host {host}", (left - 0.8, bottom - 1.0), (left + columns * _COLUMN - 0.4, top + 0.75)))
        left += columns * _COLUMN + _GAP
        width = max(width, left - _GAP)
    leaves = [id for id in networks if any(role[other] != "network" for other in neighbours[id])]
    _spread(leaves, (0.0, width - _COLUMN), 0.0, at)
    _spread([id for id in networks if id not in leaves], (0.0, width - _COLUMN), _ROW, at)
    bends = [_BEND / 2 * abs(at[x.src][0] - at[x.dst][0]) for x in topology.links if at[x.src][1] == at[x.dst][1]]
    height = -min(y for _, y in at.values()) + max(1.4, 0.5 + max(bends, default=0.0))
    return at, frames, (width, height)


def _place_host(
    nodes: Sequence[Node],
    role: Mapping[int, str],
    neighbours: Mapping[int, set[int]],
    corner: Point,
    at: dict[int, Point],
) -> tuple[int, float]:
    """Put a host's nodes in rows below `corner`: GPUs in the order of their PCIe switches, the rest above or below
    what they join. Returns the number of columns and the lowest row."""
    rows: dict[str, list[int]] = defaultdict(list)
    for node in nodes:
        rows[role[node.id]].append(node.id)
    left, top = corner
    columns = max(2, *(len(rows[name]) for name in _ROWS))
    present = [name for name in _ROWS if rows[name]]
    span = (left, left + (columns - 1) * _COLUMN)
    lift = {name: top - i * _ROW for i, name in enumerate(present)}
    _spread(rows["gpu"], span, lift.get("gpu", top), at)
    for name in ("pcie", "cpu", "nic", "nvswitch"):
        order = sorted(rows[name], key=lambda id: _middle(neighbours[id], at, id))
        _spread(order, span, lift.get(name, top), at)
    return columns, top - (len(present) - 1) * _ROW


def _spread(ids: Sequence[int], span: Point, y: float, at: dict[int, Point]) -> None:
    """Nodes evenly over a row."""
    for i, id in enumerate(ids):
        at[id] = (span[0] + (span[1] - span[0]) * (i + 0.5) / len(ids), y)


def _middle(neighbours: Iterable[int], at: Mapping[int, Point], otherwise: float) -> float:
    placed = [at[id][0] for id in neighbours if id in at]
    return sum(placed) / len(placed) if placed else otherwise


def _role(topology: Topology, node: Node) -> str:
    if node.kind != "switch":
        return node.kind
    if node.host < 0:
        return "network"
    kinds = {link.kind for link in topology.links if link.src == node.id}
    return "pcie" if "pcie" in kinds else "network" if kinds == {"network"} else "nvswitch"


# -- drawing -------------------------------------------------------------------------------------------------


def _draw_frames(axes: Axes, frames: Iterable[tuple[str, Point, Point]]) -> None:
    from matplotlib.patches import FancyBboxPatch

    for title, (left, low), (right, high) in frames:
        box = FancyBboxPatch(
            (left, low),
            right - left,
            high - low,
            boxstyle="round,pad=0,rounding_size=0.2",
            fc="#fafafa",
            ec="#bbbbbb",
            zorder=0,
        )
        axes.add_patch(box)
        axes.text(left + 0.15, low + 0.12, title, fontsize=9, color="#666666", zorder=1, parse_math=False)


def _draw_nodes(axes: Axes, topology: Topology, at: Mapping[int, Point]) -> None:
    for node in topology.nodes:
        role = _role(topology, node)
        label = (
            (node.name or f"{node.kind} {node.id}").replace("PCIe switch ", "PCIe sw ").replace("NUMA node ", "NUMA ")
        )
        if node.rank is not None and len(topology.hosts) > 1:
            label = f"{label}\nrank {node.rank}"
        style = {"boxstyle": "round,pad=0.35", "fc": _FILL[role], "ec": "#333333", "lw": 0.8}
        axes.text(*at[node.id], label, ha="center", va="center", fontsize=7.5, bbox=style, zorder=5, parse_math=False)


def _draw_wires(axes: Axes, topology: Topology, at: Mapping[int, Point]) -> None:
    """Every wire, bent where it stays in a row, and the legend of the classes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyArrowPatch

    wires = _wires(topology)
    classes = Counter((wire.kind, wire.GBps, wire.alpha_us) for wire in wires)
    order = sorted(classes, key=lambda c: (_ORDER.index(c[0]) if c[0] in _ORDER else 99, -c[1]))
    widest = max((GBps for _, GBps, _ in order), default=1.0)
    style: dict[tuple[str, float, float], dict[str, Any]] = {}
    nth: Counter[str] = Counter()
    for c in order:
        colour = _COLOUR.get(c[0], _COLOUR[""])
        width = 0.7 + 2.6 * math.sqrt(c[1] / widest)
        style[c] = {"color": colour, "lw": width, "ls": _STYLES[nth[c[0]] % len(_STYLES)]}
        nth[c[0]] += 1
    for wire in wires:
        start, end = at[wire.one], at[wire.other]
        flat = abs(start[1] - end[1]) < 1e-9
        bend = -_BEND if flat and abs(start[0] - end[0]) > 1.01 * _COLUMN else 0.0
        if flat and start[0] > end[0]:
            bend = -bend
        look = style[wire.kind, wire.GBps, wire.alpha_us]
        arrow = FancyArrowPatch(
            start,
            end,
            arrowstyle="-" if wire.both_ways else "-|>",
            mutation_scale=9,
            shrinkA=0,
            shrinkB=0 if wire.both_ways else 12,
            connectionstyle=f"arc3,rad={-bend}",
            alpha=0.85,
            zorder=2,
            **look,
        )
        axes.add_patch(arrow)
    lines = [Line2D([], [], **style[c]) for c in order]
    labels = [f"{c[0] or 'link'}  {c[1]:g} GB/s each way, α {c[2]:g} µs  × {classes[c]}" for c in order]
    axes.legend(
        lines, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2 if len(labels) > 3 else 1, fontsize=8,
        frameon=False, handlelength=4,
    )  # fmt: skip


def _wires(topology: Topology) -> list[_Wire]:
    """Links as they are drawn: a link and its return one wire, parallel ones of a class one of their sum."""
    total: dict[tuple[int, int, str, float], float] = defaultdict(float)
    for link in topology.links:
        total[link.src, link.dst, link.kind, link.alpha_us] += link.bandwidth_GBps
    wires = []
    for (src, dst, kind, alpha_us), GBps in total.items():
        both_ways = total.get((dst, src, kind, alpha_us)) == GBps
        if not both_ways or src < dst:
            wires.append(_Wire(src, dst, kind, GBps, alpha_us, both_ways))
    return wires
