"""A collective over many sizes: ours, the field's algorithms, and the bound that none can beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..collective.demand import collective_named, demand_for
from ..collective.size import format_size
from ..errors import InputError, Refused
from ..schedule.schedule import Schedule
from ..synthesis.baselines.search import BASELINES
from ..synthesis.bounds import program_bound_us
from ..synthesis.portfolio import method_named, synthesize
from ..topology.model import Topology

#: What is ours, in tables and pictures.
OURS = "ours"


@dataclass(frozen=True)
class SizeRow:
    """One size: the bound, and every method's time in µs."""

    size_bytes: float
    bound_us: float
    finish_us: dict[str, float]

    def algbw_GBps(self, method: str) -> float:
        return self.size_bytes / (self.finish_us[method] * 1e3) if self.finish_us[method] else 0.0

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """The fastest method that is not ours."""
        others = [(time, name) for name, time in self.finish_us.items() if name != OURS]
        return (min(others)[1], min(others)[0]) if others else None

    @property
    def speedup(self) -> float | None:
        """How many times faster than the best baseline ours is."""
        best = self.best_baseline
        return best[1] / self.finish_us[OURS] if best and self.finish_us.get(OURS) else None

    @property
    def gap(self) -> float | None:
        """Ours over the bound, less 1."""
        return self.finish_us[OURS] / self.bound_us - 1 if self.bound_us > 0 and OURS in self.finish_us else None


def baselines_for(collective: str) -> tuple[str, ...]:
    """The field's algorithms that do `collective`."""
    collective = collective_named(collective)
    return tuple(name for name, baseline in BASELINES.items() if collective in baseline.serves)


def size_label(size_bytes: float) -> str:
    """nccl-tests' sizes by their binary names, others by decimal ones."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes / factor:.0f} {unit}"
    return format_size(size_bytes)


def geometric_sizes(first: float, last: float, factor: float) -> list[float]:
    """Sizes from `first` to `last`, each `factor` times the one before. Raises `InputError` for none or too many."""
    if not (0 < first <= last and factor > 1):
        raise InputError(
            f"sizes from {first:g} to {last:g} by a factor of {factor:g}: need 0 < first <= last, factor > 1"
        )
    sizes = [first]
    while sizes[-1] * factor <= last * (1 + 1e-9):
        sizes.append(sizes[-1] * factor)
        if len(sizes) > 64:
            raise InputError("more than 64 sizes; use a larger factor")
    return sizes


def sweep(
    topology: Topology,
    collective: str,
    sizes: Sequence[float],
    *,
    methods: Sequence[str] | None = None,
    root: int = 0,
    time_limit: float = 2.0,
    ours: Callable[[float], Schedule] | None = None,
    seen: Callable[[SizeRow], None] = lambda row: None,
) -> list[SizeRow]:
    """Time the methods (by default, all baselines that suit the machine) at every size, `time_limit` seconds each.

    `ours` makes our schedule of a size (by default, it is synthesized). `seen` gets every row as it is done.
    """
    collective = collective_named(collective)
    names = list(baselines_for(collective) if methods is None else map(method_named, methods))
    make = ours or (lambda size: synthesize(topology, collective, size=size, root=root, time_limit=time_limit))
    rows = []
    for size in sizes:
        bound = program_bound_us(topology, demand_for(collective, topology.nranks, size, 1, root))
        times = {OURS: make(size).finish_us}
        for name in tuple(names):
            try:
                schedule = synthesize(topology, collective, size=size, root=root, time_limit=time_limit, method=name)
                times[name] = schedule.finish_us
            except (InputError, Refused):
                if methods is not None:
                    raise
                names.remove(name)  # not an algorithm for this machine
        rows.append(SizeRow(size, bound, times))
        seen(rows[-1])
    kept = {OURS, *names}
    return [
        replace(row, finish_us={name: time for name, time in row.finish_us.items() if name in kept}) for row in rows
    ]
