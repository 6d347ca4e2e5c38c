"""Simulation of jobs over iterations: flows at max-min rates, from event to event."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import Refused
from .compiled import as_spines, capacities
from .controller import Change, Controller, Policy
from .events import Event
from .fabric import Clos
from .job import Collective, Job, traffic_of
from .metric import non_blocking
from .routers import optimize
from .routers.choice import Choice
from .scenario import Scenario
from .simulated import Communication, Simulated
from .traffic import FlowKey

#: Kinds of communication that run while a job computes, and those that follow.
WITHIN, AFTER = ("ep", "pp"), ("flows", "dp")
#: What is left of a flow below this share has arrived: rounding.
DONE = 1e-9


class Router(Protocol):
    """Who chooses routes in a simulation: told events as the controller is."""

    @property
    def fabric(self) -> Clos: ...
    @property
    def spine_of(self) -> dict[FlowKey, int]:
        """The spine of every flow that needs one."""

    def handle(self, event: Event) -> list[Change]: ...
    def background(self) -> list[Change]: ...


class Controlled(Controller):
    """The periodic controller, in a simulation."""

    @property
    def spine_of(self) -> dict[FlowKey, int]:
        return {key: spine for key, spine in zip(self.traffic.keys, self.spines.tolist(), strict=True) if spine >= 0}

    def background(self) -> list[Change]:
        return super().background() if self.due else []


@dataclass
class Fixed:
    """A router that routes all jobs anew when one arrives or a link changes, and does nothing between."""

    fabric: Clos
    router: str
    choice: Choice = field(default_factory=Choice)
    jobs: dict[str, Job] = field(default_factory=dict)
    spine_of: dict[FlowKey, int] = field(default_factory=dict)
    version: int = 0

    def handle(self, event: Event) -> list[Change]:
        if event.kind == "job_arrive":
            job = Job.from_json(event.fields["job"], "job_arrive")
            self.jobs[job.name] = job
        elif event.kind == "link":
            link, capacity = event.link
            self.fabric.check_link(link, "link")
            self.fabric = self.fabric.with_link(link, capacity)
        elif event.kind == "spine":
            self.fabric = self.fabric.with_spine(*event.spine)
        else:
            if event.kind == "job_leave":
                del self.jobs[event.job]
            return []
        traffic = traffic_of(self.fabric, (c for job in self.jobs.values() for c in job.collectives))
        routes = optimize(traffic, self.router, self.choice).routes
        found = {key: route for key, route in zip(traffic.keys, routes, strict=True) if route is not None}
        moved = sum(self.spine_of.get(key, spine) != spine for key, spine in found.items())
        self.spine_of = found
        self.version += 1
        return [Change(self.version, moved, [])]

    def background(self) -> list[Change]:
        return []


def alone_s(fabric: Clos, collectives: Iterable[Collective]) -> float:
    """How long collectives take that have a fabric which never blocks to themselves, in seconds."""
    traffic = traffic_of(Clos(fabric.tors, fabric.spines, fabric.hosts_per_tor, fabric.link_gbps), collectives)
    slowest = non_blocking(traffic).phi[0]
    return float(8 / (slowest * fabric.link_gbps * 10**9))


def simulate(
    scenario: Scenario, router: str | Router = "auto", mode: str = "coll", seed: int = 0, period_s: float = 0
) -> Simulated:
    """Run all jobs to their ends. `router` auto is the periodic controller (with a timer each `period_s`, if given);
    any other routes all when a job arrives or a link changes.

    Rates are max-min under `mode`, and change only where something starts, ends or moves. A flow takes a new route at
    its next step boundary, at once if its old one has failed. Raises `Refused` if a job can never end.
    """
    if router == "auto":
        router = Controlled(scenario.fabric, Policy(mode=mode))
    elif isinstance(router, str):
        router = Fixed(scenario.fabric, router, Choice(mode=mode, seed=seed))
    return _Run(scenario, router, mode, period_s).run()


class _Run:
    """The state of a simulation: what each flow still has to send, and what happens next."""

    def __init__(self, scenario: Scenario, router: Router, mode: str, period_s: float) -> None:
        self.scenario, self.router, self.mode, self.period_s = scenario, router, mode, period_s
        self.collectives = [collective for job in scenario.jobs for collective in job.collectives]
        traffic = traffic_of(scenario.fabric, self.collectives)
        self.flows = traffic.flows
        self.core = traffic.core
        self.keys = traffic.keys
        self.places: dict[str, list[int]] = {c.name: [] for c in self.collectives}
        for i, (name, _) in enumerate(self.keys):
            self.places[name].append(i)
        self.bytes = np.array([float(flow.weight) for flow in self.flows])
        self.steps = np.array([float(c.steps) for c in self.collectives for _ in c.flows])
        self.left = np.zeros(len(self.flows))
        self.started = np.zeros(len(self.flows))
        self.active = np.zeros(len(self.flows), dtype=bool)
        self.spine = np.full(len(self.flows), -1, dtype=np.int32)
        self.next_spine = self.spine.copy()
        self.switch_at = np.full(len(self.flows), -np.inf)  # what is left when the new route is taken
        self.bytes_per_s = float(scenario.fabric.link_gbps) * 1e9 / 8
        self.now = 0.0
        self.next_tick = period_s if period_s > 0 else math.inf
        self.order = count()
        self.agenda: list[tuple[float, int, Any]] = []
        self.unfinished_parts: dict[str, set[str]] = {}
        self.unfinished = {job.name for job in scenario.jobs}
        self.alone = {
            (job.name, kind): alone_s(scenario.fabric, job.of_kind(kind))
            for job in scenario.jobs
            for kind in (*WITHIN, *AFTER)
            if job.of_kind(kind)
        }
        self.waiting: dict[tuple[str, str], tuple[Job, int, float, NDArray[np.int64]]] = {}
        self.done: list[Communication] = []
        self.times: list[float] = []
        self.carried = 0.0
        self.routing_s, self.runs, self.versions, self.moved = 0.0, 0, 0, 0

    def run(self) -> Simulated:
        for job in self.scenario.jobs:
            self.at(job.start_s, lambda job=job: self.arrive(job))
        for event in self.scenario.events:
            self.at(event.t, lambda event=event: self.tell(event.kind, event.fields))
        while self.unfinished:
            rate = self.rates()
            until = self.next_completion(rate)
            due = self.agenda[0][0] if self.agenda else math.inf
            if min(until, due) == math.inf:
                stuck = ", ".join(sorted(self.unfinished))
                raise Refused(f"job {stuck} can never end: its flows have no live links; mend a link in `events`")
            clock = min(due, self.next_tick)
            if until <= clock - self.now:
                self.advance(until, self.now + until, rate)
            else:
                self.advance(clock - self.now, clock, rate)
            if self.now >= self.next_tick:
                self.tell("timer", {})
                self.next_tick = self.now + self.period_s
            while self.agenda and self.agenda[0][0] <= self.now:
                heapq.heappop(self.agenda)[2]()
            self.settle()
        return Simulated(
            tuple(self.done), np.array(self.times), self.carried, self.now,
            self.routing_s, self.runs, self.versions, self.moved, len(self.flows),
        )  # fmt: skip

    def at(self, t: float, action: Any) -> None:
        heapq.heappush(self.agenda, (max(t, self.now), next(self.order), action))

    # -- flows -----------------------------------------------------------------------------------------

    def rates(self) -> NDArray[np.float64]:
        """Bytes per second of every flow."""
        if not self.active.any():
            return np.zeros(len(self.flows))
        _, rate = self.core.rates_of_active(self.spine, self.mode, self.active)
        return np.where(self.active, rate, 0.0) * self.bytes_per_s

    def next_completion(self, rate: NDArray[np.float64]) -> float:
        """How long until a flow ends, or reaches the step boundary where it takes its new route."""
        moving = self.active & (rate > 0)
        if not moving.any():
            return math.inf
        target = np.maximum(0.0, np.where(self.next_spine != self.spine, self.switch_at, 0.0))
        return float(((self.left - target)[moving] / rate[moving]).min())

    def advance(self, seconds: float, t: float, rate: NDArray[np.float64]) -> None:
        """Let `seconds` pass, to time t. What is sent follows from the seconds: a short span is lost in a late t."""
        sent = np.minimum(self.left, rate * max(0.0, seconds))
        self.left -= sent
        self.carried += float(sent.sum())
        self.now = t

    def settle(self) -> None:
        """Flows that have arrived, communications that have ended, and flows at the boundary of a step."""
        arrived = self.active & (self.left <= DONE * self.bytes)
        self.times += (self.now - self.started[arrived]).tolist()
        self.active[arrived] = False
        at_boundary = (self.next_spine != self.spine) & (
            ~self.active | (self.left <= self.switch_at + DONE * self.bytes)
        )
        self.spine[at_boundary] = self.next_spine[at_boundary]
        for key, (job, iteration, start, places) in list(self.waiting.items()):
            if not self.active[places].any():
                del self.waiting[key]
                self.done.append(Communication(*key, iteration, start, self.now, self.alone[key]))
                self.tell("collective_end", {"job": job.name, "collective": key[1]})
                self.go_on(job, iteration, key[1])

    # -- jobs: an iteration computes, while pipelines and experts communicate; then gradients are reduced -----

    def arrive(self, job: Job) -> None:
        self.tell("job_arrive", {"job": job.to_json()})
        self.iterate(job, 0)

    def iterate(self, job: Job, iteration: int) -> None:
        self.unfinished_parts[job.name] = {"compute", *(kind for kind in WITHIN if job.of_kind(kind))}
        self.at(self.now + job.compute_s, lambda: self.go_on(job, iteration, "compute"))
        for kind in WITHIN:
            self.communicate(job, iteration, kind)

    def go_on(self, job: Job, iteration: int, ended: str) -> None:
        """What follows once a part of an iteration has ended, if no other part still runs."""
        parts = self.unfinished_parts[job.name]
        parts.discard(ended)
        if parts:
            return
        if ended not in AFTER:
            parts |= {kind for kind in AFTER if job.of_kind(kind)}
            for kind in AFTER:
                self.communicate(job, iteration, kind)
        if parts:
            return
        if iteration + 1 < job.iterations:
            self.iterate(job, iteration + 1)
        else:
            self.tell("job_leave", {"job": job.name})
            self.unfinished.discard(job.name)

    def communicate(self, job: Job, iteration: int, kind: str) -> None:
        """Start all of the job's collectives of a kind, if it has any."""
        places = np.array([i for c in job.of_kind(kind) for i in self.places[c.name]], dtype=np.int64)
        if len(places):
            self.tell("collective_start", {"job": job.name, "collective": kind})
            self.left[places] = self.bytes[places]
            self.started[places] = self.now
            self.active[places] = True
            self.spine[places] = self.next_spine[places]
            self.waiting[job.name, kind] = (job, iteration, self.now, places)

    # -- routes ----------------------------------------------------------------------------------------

    def tell(self, kind: str, fields: Mapping[str, Any]) -> None:
        """An event for the router, and what it changes."""
        began = time.perf_counter()
        changes = self.router.handle(Event(self.now, kind, fields))
        changes += self.router.background()
        self.routing_s += time.perf_counter() - began
        self.runs += 1
        self.versions += len(changes)
        self.moved += sum(change.moved for change in changes)
        if kind in ("link", "spine"):
            self.core = self.core.with_capacity(capacities(self.router.fabric))
        if changes:
            self.take(as_spines(list(map(self.router.spine_of.get, self.keys))))

    def take(self, spines: NDArray[np.int32]) -> None:
        """New routes: at once where a flow is idle or its route has failed, else at its next step boundary."""
        self.next_spine = np.where(spines >= 0, spines, self.next_spine)
        at_once = ~self.active | (self.core.alive(self.spine) != self.spine)
        self.spine[at_once] = self.next_spine[at_once]
        step = self.bytes / self.steps
        self.switch_at = np.floor(self.left / step * (1 - DONE)) * step
