"""Efficiency: how much of a non-blocking fabric's speed routes give, by collective, by job and over the network."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from .exact import plain
from .metric import Rates, load_bound, max_load, non_blocking, rates
from .traffic import Route, Traffic


@dataclass(frozen=True)
class Group:
    """A collective or a job: its rate x per unit of weight, η = x / its rate on a non-blocking fabric that carries the
    same traffic, and its bytes."""

    rate: Fraction
    efficiency: Fraction
    weight: Fraction

    def time_s(self, link_gbps: Fraction) -> float | None:
        """T = 1/x, where weights are bytes."""
        return float(8 * self.weight_time / (link_gbps * 10**9)) if self.rate else None

    @property
    def weight_time(self) -> Fraction:
        return 1 / self.rate


@dataclass(frozen=True)
class Report:
    """What routes are worth under a mode of the metric. Everything is exact."""

    traffic: Traffic
    routes: tuple[Route, ...]
    mode: str

    @cached_property
    def rates(self) -> Rates:
        return rates(self.traffic, self.routes, self.mode)

    @cached_property
    def collectives(self) -> dict[str, Group]:
        return _groups(self.traffic, self.rates, non_blocking(self.traffic, self.mode))

    @cached_property
    def jobs(self) -> dict[str, Group]:
        """Jobs as units: a job's x is the rate at which all its flows of a phase run; of phases, the slowest."""
        merged = self.traffic.grouped_by_job()
        by_phase = _groups(merged, rates(merged, self.routes, self.mode), non_blocking(merged, self.mode))
        jobs: dict[str, Group] = {}
        for name, group in by_phase.items():
            job = name.split("\0")[0]
            before = jobs.get(job)
            slower = group if before is None or group.rate < before.rate else before
            jobs[job] = Group(slower.rate, slower.efficiency, group.weight + (before.weight if before else 0))
        return jobs

    @cached_property
    def phi(self) -> list[Fraction]:
        return self.rates.phi

    @cached_property
    def max_load(self) -> Fraction:
        """The largest load of a link between ToRs and spines, in weight per capacity."""
        return max_load(self.traffic, self.routes)

    @property
    def min_efficiency(self) -> Fraction:
        return min((group.efficiency for group in self.collectives.values()), default=Fraction(1))

    @property
    def mean_efficiency(self) -> Fraction:
        groups = self.collectives.values()
        return sum((group.efficiency for group in groups), Fraction(0)) / len(groups) if groups else Fraction(1)

    @property
    def weighted_efficiency(self) -> Fraction:
        """The mean over bytes."""
        total = sum((group.weight for group in self.collectives.values()), Fraction(0))
        share = sum((group.weight * group.efficiency for group in self.collectives.values()), Fraction(0))
        return share / total if total else Fraction(1)

    @property
    def jain(self) -> Fraction:
        """Jain's index of the collectives' efficiencies: (Σ η)² / (n · Σ η²), 1 where all are served alike."""
        shares = [group.efficiency for group in self.collectives.values()]
        squares = sum((share * share for share in shares), Fraction(0))
        return sum(shares, Fraction(0)) ** 2 / (len(shares) * squares) if squares else Fraction(1)

    def to_json(self) -> dict[str, Any]:
        """The output form: rates as exact strings, shares and loads as numbers. With `queue_pairs` = q, routes and
        flow rates are lists of q."""
        q = self.traffic.queue_pairs
        gbps = self.traffic.fabric.link_gbps
        bound = load_bound(self.traffic)
        return {
            "mode": self.mode,
            "routes": _by_flow(list(self.routes), q),
            "collectives": {name: _group_json(group, gbps) for name, group in self.collectives.items()},
            "jobs": {name: _group_json(group, gbps) for name, group in self.jobs.items()},
            "flow_rates": _by_flow([str(rate) for rate in self.rates.flows], q),
            "phi": [str(rate) for rate in self.phi],
            "max_load": _number(self.max_load),
            "efficiency": {
                "min": _number(self.min_efficiency),
                "mean": _number(self.mean_efficiency),
                "byte_weighted": _number(self.weighted_efficiency),
            },
            "jain": _number(self.jain),
            "bounds": {
                "max_load": _number(bound),
                "phi": [str(rate) for rate in non_blocking(self.traffic, self.mode).phi],
            },
        }


def _groups(traffic: Traffic, reached: Rates, ideal: Rates) -> dict[str, Group]:
    weight = dict.fromkeys(traffic.collectives, Fraction(0))
    for flow in traffic.flows:
        weight[flow.collective] += flow.weight
    return {
        name: Group(rate, rate / ideal.collectives[name] if ideal.collectives[name] else Fraction(0), weight[name])
        for name, rate in reached.collectives.items()
    }


def _group_json(group: Group, gbps: Fraction) -> dict[str, Any]:
    return {
        "rate": str(group.rate),
        "efficiency": _number(group.efficiency),
        "time": str(group.weight_time) if group.rate else None,
        "time_s": group.time_s(gbps),
    }


def _by_flow(values: list[Any], q: int) -> list[Any]:
    return values if q == 1 else [values[i : i + q] for i in range(0, len(values), q)]


def _number(value: Fraction) -> int | float:
    number = plain(value)
    return float(value) if isinstance(number, str) else number
