"""Calibrate: α and β of each class of links, by least squares from measured point-to-point times.

A transfer of n bytes over a path takes Σ α of its links + n / (bandwidth of its narrowest). Links of the same kind,
bandwidth and α between the same kinds of nodes are one class, which keeps one α and one bandwidth. What the
measurements cannot tell apart (two links that are always crossed together) keeps its proportion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .model import Link, Topology
from .paths import Path, direct_paths

#: Student's t for a two-sided 95 % interval, by degrees of freedom from 1; the normal distribution's beyond.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL95 = 1.960


@dataclass(frozen=True)
class Measurement:
    """`nbytes` from rank `src` to rank `dst` took `time_us`; `where` names it in errors."""

    src: int
    dst: int
    nbytes: float
    time_us: float
    where: str = ""


@dataclass(frozen=True)
class Fit:
    """The figures of the paths that cross the same classes of links; the intervals are ± at 95 % confidence."""

    path: str
    pairs: int
    measurements: int
    alpha_us: float
    alpha_interval_us: float
    bandwidth_GBps: float
    bandwidth_interval_GBps: float
    residual: float  # root mean square of (measured − fitted) / measured
    worst: float  # the largest of these
    was_alpha_us: float
    was_bandwidth_GBps: float


@dataclass(frozen=True)
class Calibration:
    """A topology with fitted figures, and the fits; `warnings` say what could not be fitted."""

    topology: Topology
    fits: tuple[Fit, ...]
    warnings: tuple[str, ...] = ()


Class = tuple[str, float, float, str, str]


def calibrate(topology: Topology, measurements: Sequence[Measurement]) -> Calibration:
    """Fit α and bandwidth of every kind of path that was measured, and write them into its links.

    Errors are weighed relative to the measured time, so that small sizes tell α and large ones β. A path's α is
    shared out among its links in proportion to the α they had (evenly where they had none); its bandwidth goes to
    the links that were its narrowest, and to others where they are narrower than it is now. A class of links in
    several kinds of paths takes the figures of the shortest. Raises `InputError` for ranks that are not there,
    pairs without a direct path, times that are no times, and a kind of path with fewer than two sizes.
    """
    if not measurements:
        raise InputError("no measurements; give at least two sizes for each kind of link")
    _check(topology, measurements)
    classes = _classes(topology)
    paths = direct_paths(topology, frozenset((m.src, m.dst) for m in measurements))
    path_of: dict[tuple[int, int], Path] = {}
    for path in paths:
        path_of.setdefault((path.src_rank, path.dst_rank), path)
    groups: dict[tuple[Class, ...], list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        found = path_of.get((measurement.src, measurement.dst))
        if found is None:
            raise InputError(
                f"{measurement.where}: no direct path from rank {measurement.src} to {measurement.dst}; only GPUs "
                f"lie between, so measure their neighbours"
            )
        groups[tuple(sorted(classes[link] for link in found.links))].append(measurement)
    fits: list[Fit] = []
    warnings: list[str] = []
    new: dict[Class, tuple[float, float]] = {}
    for crossed in sorted(groups, key=lambda crossed: (len(crossed), crossed)):
        fit, warning = _fit(crossed, groups[crossed])
        fits.append(fit)
        warnings += warning
        _share_out(fit, crossed, new)
    links = tuple(_refigured(link, new.get(classes[link.id])) for link in topology.links)
    unmeasured = sorted({_shown(classes[link.id]) for link in topology.links if classes[link.id] not in new})
    if unmeasured:
        warnings.append(f"not measured, left as it was: {', '.join(unmeasured)}")
    note = f"calibrated from {len(measurements)} measurements"
    source = "; ".join(filter(None, [topology.source, note]))
    return Calibration(replace(topology, links=links, source=source), tuple(fits), tuple(warnings))


def pairs_by_path(topology: Topology) -> list[list[tuple[int, int]]]:
    """The ordered pairs of ranks with a direct path, grouped by the classes of links that it crosses."""
    classes = _classes(topology)
    groups: dict[tuple[Class, ...], dict[tuple[int, int], None]] = defaultdict(dict)
    seen: set[tuple[int, int]] = set()
    for path in direct_paths(topology):
        ends = (path.src_rank, path.dst_rank)
        if ends not in seen:
            seen.add(ends)
            groups[tuple(sorted(classes[link] for link in path.links))][ends] = None
    return [list(pairs) for _, pairs in sorted(groups.items())]


def _check(topology: Topology, measurements: Sequence[Measurement]) -> None:
    for m in measurements:
        if not (0 <= m.src < topology.nranks and 0 <= m.dst < topology.nranks) or m.src == m.dst:
            raise InputError(f"{m.where}: {m.src}→{m.dst}: must be two different ranks of 0 to {topology.nranks - 1}")
        if not (np.isfinite(m.nbytes) and m.nbytes >= 0):
            raise InputError(f"{m.where}: {m.nbytes} bytes; must be zero or more")
        if not (np.isfinite(m.time_us) and m.time_us > 0):
            raise InputError(f"{m.where}: {m.time_us} µs; a time is positive")


def _classes(topology: Topology) -> dict[int, Class]:
    """Each link's class: kind, bandwidth, α, and the kinds of its ends."""
    kind = {node.id: node.kind for node in topology.nodes}
    return {
        x.id: (x.kind, x.bandwidth_GBps, x.alpha_us, *sorted((kind[x.src], kind[x.dst])))  # type: ignore[misc]
        for x in topology.links
    }


def _fit(crossed: tuple[Class, ...], measured: Sequence[Measurement]) -> tuple[Fit, list[str]]:
    sizes = np.array([m.nbytes for m in measured])
    times = np.array([m.time_us for m in measured])
    name = _path_name(crossed)
    if len(np.unique(sizes)) < 2:
        raise InputError(f"{measured[0].where}: one size only for {name}; α and β need at least two")
    warnings = []
    columns = np.stack([np.ones_like(sizes), sizes], axis=1)
    (alpha, beta), covariance = _least_squares(columns, times)
    if alpha < 0:
        warnings.append(f"{name}: the fit's α is {alpha:.3g} µs: taken as 0; measure smaller sizes")
        (beta,), small = _least_squares(columns[:, 1:], times)
        alpha, covariance = 0.0, np.array([[0.0, 0.0], [0.0, small[0, 0]]])
    if not beta > 0:
        raise InputError(f"{measured[0].where}: {name}: times do not grow with sizes; measure larger ones")
    relative = (alpha + beta * sizes - times) / times
    t95 = _t95(len(measured) - 2)
    GBps = 1e-3 / beta
    return Fit(
        path=name,
        pairs=len({(m.src, m.dst) for m in measured}),
        measurements=len(measured),
        alpha_us=float(alpha),
        alpha_interval_us=float(t95 * np.sqrt(covariance[0, 0])),
        bandwidth_GBps=float(GBps),
        bandwidth_interval_GBps=float(t95 * np.sqrt(covariance[1, 1]) * GBps / beta),
        residual=float(np.sqrt(np.mean(relative**2))),
        worst=float(np.max(np.abs(relative))),
        was_alpha_us=sum(alpha_us for _, _, alpha_us, _, _ in crossed),
        was_bandwidth_GBps=min(GBps for _, GBps, *_ in crossed),
    ), warnings


def _least_squares(
    columns: NDArray[np.float64], times: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The solution that least misses the times relative to themselves, and its covariance (NaN where times are as
    few as unknowns)."""
    weighted = columns / times[:, None]
    scale = np.linalg.norm(weighted, axis=0)  # bytes and ones are of very different sizes
    solution, *_ = np.linalg.lstsq(weighted / scale, np.ones_like(times), rcond=None)
    residual = weighted / scale @ solution - 1
    freedom = len(times) - columns.shape[1]
    variance = residual @ residual / freedom if freedom > 0 else np.nan
    inverse = np.linalg.inv((weighted / scale).T @ (weighted / scale))
    return solution / scale, variance * inverse / np.outer(scale, scale)


def _t95(freedom: int) -> float:
    if freedom < 1:
        return float("nan")
    return _T95[freedom - 1] if freedom <= len(_T95) else _NORMAL95


def _share_out(fit: Fit, crossed: tuple[Class, ...], new: dict[Class, tuple[float, float]]) -> None:
    """Give the classes of a path that have no new figures yet theirs, so that the path as a whole has the fit's."""
    open_ones = [c for c in crossed if c not in new]
    if not open_ones:
        return
    left = max(0.0, fit.alpha_us - sum(new[c][1] for c in crossed if c in new))
    before = sum(c[2] for c in open_ones)
    narrowest = min(c[1] for c in crossed)
    for c in set(open_ones):
        alpha_us = left * c[2] / before if before else left / len(open_ones)
        GBps = fit.bandwidth_GBps if c[1] == narrowest else max(c[1], fit.bandwidth_GBps)
        new[c] = (GBps, alpha_us)


def _refigured(link: Link, figures: tuple[float, float] | None) -> Link:
    if figures is None:
        return link
    return replace(link, bandwidth_GBps=float(f"{figures[0]:.6g}"), alpha_us=float(f"{figures[1]:.6g}"))


def _path_name(crossed: tuple[Class, ...]) -> str:
    kinds = dict.fromkeys(kind or "link" for kind, *_ in sorted(crossed, key=lambda c: -c[1]))
    return f"{' + '.join(kinds)} ({min(c[1] for c in crossed):g} GB/s)"


def _shown(c: Class) -> str:
    return f"{c[0] or 'link'} {c[3]}–{c[4]} ({c[1]:g} GB/s)"
