"""The paper's comparison, run again: random jobs on a Clos fabric, with and without dead spines, router by router."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import InputError
from .controller import Change
from .events import Event
from .fabric import Clos
from .job import MODELS, Job, traffic_of
from .routers import optimize
from .routers.choice import Choice
from .scenario import Scenario
from .simulate import simulate
from .traffic import FlowKey

ROUTERS = ("ecmp", "anneal", "edge-colour", "greedy", "equitable", "auto")
#: The paper's fabric: 64 ToRs × 32 spines, 32 hosts per ToR, 100 Gb/s.
FABRIC = Clos(64, 32, 32)
RING_SIZES = (2, 4, 8)


class Run(NamedTuple):
    """One router on one draw of jobs: each job's all-reduce time / its time alone, and how long routing took."""

    jobs: int
    dead_spines: int
    draw: int
    router: str
    slowdowns: tuple[float, ...]
    seconds: float
    flows: int


class Cell(NamedTuple):
    """A router's runs in one setting: mean, least and largest slowdown over jobs and draws, mean routing time."""

    jobs: int
    dead_spines: int
    router: str
    mean: float
    least: float
    most: float
    routing_ms: float


@dataclass(frozen=True)
class Given:
    """Routes that are chosen already, for a simulation in which nothing happens to them."""

    fabric: Clos
    spine_of: dict[FlowKey, int]

    def handle(self, event: Event) -> list[Change]:
        return [Change(1, 0, [])] if event.kind == "job_arrive" else []

    def background(self) -> list[Change]:
        return []


def draw_jobs(fabric: Clos, count: int, seed: str) -> tuple[Job, ...]:
    """Jobs of a random model and ring size on whole ToRs drawn at random, all that fit what is left of the fabric.

    Raises `InputError` where none fits any more.
    """
    draw = random.Random(seed)
    free = draw.sample(range(fabric.tors), fabric.tors)
    jobs = []
    for number in range(count):
        kept = count - number - 1  # ToRs for the smallest job that each of the others may be
        fits = [
            (model, k)
            for model in MODELS
            for k in RING_SIZES
            if _tors(fabric, model, k) + kept * _smallest(fabric) <= len(free)
        ]
        if not fits:
            raise InputError(
                f"{count} jobs do not fit {fabric.tors} ToRs of {fabric.hosts_per_tor} hosts; ask for fewer"
            )
        model, k = draw.choice(fits)
        tors, free = free[: _tors(fabric, model, k)], free[_tors(fabric, model, k) :]
        hosts = [tor * fabric.hosts_per_tor + i for tor in tors for i in range(fabric.hosts_per_tor)]
        shape = MODELS[model]
        value = {
            "job": f"{model}-{number}",
            "model": model,
            "dp": k,
            "hosts": hosts[: shape.tp * shape.pp * k],
            "pp_bytes": 0,
        }
        jobs.append(Job.from_json(value, "experiment"))
    return tuple(jobs)


def run(fabric: Clos, jobs: Sequence[Job], router: str, seed: int) -> tuple[tuple[float, ...], float]:
    """All jobs' all-reduces at one time on a router's routes: each one's slowdown, and seconds that routing took."""
    traffic = traffic_of(fabric, (c for job in jobs for c in job.collectives))
    found = optimize(traffic, router, Choice(seed=seed))
    spine_of = {key: route for key, route in zip(traffic.keys, found.routes, strict=True) if route is not None}
    result = simulate(Scenario(fabric, tuple(jobs)), Given(fabric, spine_of))
    return tuple(result.slowdown(job.name) for job in jobs), found.seconds


def experiment(
    jobs: Iterable[int],
    dead_spines: Iterable[int],
    draws: int = 3,
    seed: int = 0,
    routers: Sequence[str] = ROUTERS,
    fabric: Clos = FABRIC,
    tell: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Every router on `draws` draws of each number of jobs with each number of dead spines; all routers meet the same
    jobs and the same dead spines."""
    runs = []
    for count in jobs:
        for dead in dead_spines:
            if not 0 <= dead < fabric.spines:
                raise InputError(f"{dead} dead spines of {fabric.spines}; at least one must live")
            for number in range(draws):
                drawn = draw_jobs(fabric, count, f"{seed} {count} {number}")
                spines = random.Random(f"{seed} {count} {number} dead").sample(range(fabric.spines), dead)
                broken = Clos(fabric.tors, fabric.spines, fabric.hosts_per_tor, fabric.link_gbps, frozenset(spines))
                flows = sum(len(c.flows) for job in drawn for c in job.collectives)
                for router in routers:
                    slowdowns, seconds = run(broken, drawn, router, seed + number)
                    runs.append(Run(count, dead, number, router, slowdowns, seconds, flows))
                    tell(runs[-1])
    return runs


def table(runs: Iterable[Run]) -> list[Cell]:
    """The runs by setting and router, in the order in which they were made."""
    by: dict[tuple[int, int, str], list[Run]] = {}
    for one in runs:
        by.setdefault((one.jobs, one.dead_spines, one.router), []).append(one)
    cells = []
    for key, found in by.items():
        slowdowns = [slowdown for one in found for slowdown in one.slowdowns]
        mean = sum(slowdowns) / len(slowdowns)
        seconds = sum(one.seconds for one in found) / len(found)
        cells.append(Cell(*key, mean, min(slowdowns), max(slowdowns), seconds * 1e3))
    return cells


def as_csv(cells: Iterable[Cell]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Cell._fields)
    writer.writerows(cells)
    return out.getvalue()


def as_json(runs: Iterable[Run]) -> list[dict[str, Any]]:
    return [one._asdict() for one in runs]


def numbers(text: str, what: str) -> list[int]:
    """The whole numbers of "1-5" or "0,1,4". Raises `InputError`."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise InputError(f"{what} {text}: give whole numbers, such as 1-5 or 0,1,4,8")
        found.extend(range(int(first), int(last if dash else first) + 1))
    return list(dict.fromkeys(found))


def _tors(fabric: Clos, model: str, k: int) -> int:
    return -(-MODELS[model].tp * MODELS[model].pp * k // fabric.hosts_per_tor)


def _smallest(fabric: Clos) -> int:
    return min(_tors(fabric, model, RING_SIZES[0]) for model in MODELS)
