"""The periodic controller: told what jobs and links do, it keeps a table of routes in force and improves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..errors import InputError
from ..files import require_keys
from .compiled import as_routes, as_spines, capacities, float_rates, scaled_weights
from .events import Event
from .fabric import Clos
from .job import Collective, Job
from .predict import Rhythm, groups_that_meet
from .routers import optimize
from .routers.auto import first_difference, moved
from .routers.choice import Choice
from .traffic import Flow, Route, Traffic


class Change(NamedTuple):
    """A new version of the table: how many flows left a route that they had, and φ (slowest first, per unit of
    weight relative to the link rate). A flow takes its new route at its next step boundary."""

    version: int
    moved: int
    phi: list[float]


@dataclass(frozen=True)
class Policy:
    """When routes change: `gain` is how much better the first differing component of φ must be, `most_moved` the share
    of flows that one change may move (but for what failed), `evaluations` the budget of polishing."""

    mode: str = "coll"
    gain: float = 0.05
    most_moved: float = 0.05
    evaluations: int = 200


@dataclass
class Controller:
    """The state, and `handle` for each event. An event that is refused (`InputError`) changes nothing.

    `handle` answers at once: new jobs are placed, flows on dead links re-placed. What may take longer is left to
    `background`, due where `due` says so: routes for all flows from those in force (auto), taken iff those in force
    are infeasible or φ's first differing component gains enough (arXiv 2503.05324, periodic optimization).
    """

    fabric: Clos
    policy: Policy = field(default_factory=Policy)
    jobs: dict[str, Job] = field(default_factory=dict)
    rhythms: dict[tuple[str, str], Rhythm] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    version: int = 0
    now: float = -np.inf
    due: bool = False

    def __post_init__(self) -> None:
        self.spines: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self.before = self.spines
        self._groups: dict[tuple[str, str], int] = {}
        self._nothing_better: tuple[int, Clos, dict[tuple[str, str], int]] | None = None
        self._core: _core.Traffic
        self._gather()

    @property
    def traffic(self) -> Traffic:
        """All flows, in the order of `routes`; flows that do not meet in time are of different phases."""
        return self._traffic

    @property
    def routes(self) -> list[Route]:
        return as_routes(self.spines)

    def handle(self, event: Event) -> list[Change]:
        """Take in an event. Raises `InputError` where it is out of order, or of a job, collective or link that is not
        known; nothing has changed then."""
        if event.t < self.now:
            raise InputError(f"{event.kind}: t is {event.t:g}, after an event at {self.now:g}; send events in order")
        act: dict[str, Callable[[Event], list[Change]]] = {
            "job_arrive": self._arrive,
            "job_leave": self._leave,
            "collective_start": self._start,
            "collective_end": self._end,
            "link": self._link,
            "spine": self._spine,
            "timer": self._timer,
            "nack": self._nack,
        }
        changes = act[event.kind](event)
        self.now = event.t
        return changes

    def background(self) -> list[Change]:
        """Optimize all routes; a change, or none."""
        self.due = False
        if self._regroup():
            self._gather()
        situation = (self.version, self.fabric, self._groups)
        if situation == self._nothing_better:  # the answer would be the same
            return []
        found = self._improve()
        self._nothing_better = None if found else situation
        return found

    def _improve(self) -> list[Change]:
        reachable = self._reachable()
        if not reachable:
            return []
        part = Traffic(self.fabric, tuple(self.traffic.flows[i] for i in reachable))
        in_force = [self.routes[i] for i in reachable]
        if self._at_best(part, in_force):
            return []
        routes = optimize(part, "auto", self._choice(in_force)).routes
        if not self._worth(part, in_force, routes):
            return []
        spines = self.spines.copy()
        spines[reachable] = as_spines(routes)
        return [self._publish(spines)]

    @property
    def unreachable(self) -> list[Flow]:
        """Flows that no live spine serves; they keep the routes that they had."""
        reachable = set(self._reachable())
        return [flow for i, flow in enumerate(self.traffic.flows) if i not in reachable]

    # -- jobs ------------------------------------------------------------------------------------------

    def _arrive(self, event: Event) -> list[Change]:
        job = Job.from_json(event.fields["job"], "job_arrive")
        if job.name in self.jobs:
            raise InputError(f"job_arrive: job {job.name!r} is here already; let it leave first")
        job.check_fits(self.fabric)
        new = Traffic(self.fabric, tuple(flow for c in job.collectives for flow in c.flows))
        new.check_reachable()
        self.jobs[job.name] = job
        self.rhythms |= {(job.name, collective.kind): Rhythm() for collective in job.collectives}
        self._regroup()
        self._gather()
        in_force = [*self.routes, *([None] * len(new.flows))]
        self.before = self.spines = as_spines(in_force)
        reachable = self._reachable()
        part = Traffic(self.fabric, tuple(self.traffic.flows[i] for i in reachable))
        choice = self._choice([in_force[i] for i in reachable])
        spines = self.spines.copy()
        spines[reachable] = as_spines(optimize(part, "auto", choice).routes)
        return [self._publish(spines)]

    def _leave(self, event: Event) -> list[Change]:
        self._known(event)
        staying = np.array([flow.job != event.job for flow in self.traffic.flows], dtype=bool)
        del self.jobs[event.job]
        self.rhythms = {key: rhythm for key, rhythm in self.rhythms.items() if key[0] != event.job}
        self.running = {name for name in self.running if not name.startswith(f"{event.job}/")}
        self.spines = self.spines[staying]
        self._regroup()
        self._gather()
        self.due = True
        return [self._publish(self.spines)]

    def _start(self, event: Event) -> list[Change]:
        named = self._named(event)
        for collective in named:
            if collective.name in self.running:
                raise InputError(f"collective_start: {collective.name!r} runs already; send its end first")
        for key in dict.fromkeys((event.job, collective.kind) for collective in named):
            if not self.rhythms[key].running:
                self.due |= self.rhythms[key].missed(event.t)
                self.rhythms[key] = self.rhythms[key].started(event.t)
        self.running |= {collective.name for collective in named}
        if self._regroup(event.t):
            self._gather()
            self.due = True
        return []

    def _end(self, event: Event) -> list[Change]:
        named = self._named(event)
        for collective in named:
            if collective.name not in self.running:
                raise InputError(f"collective_end: {collective.name!r} does not run; send its start first")
        self.running -= {collective.name for collective in named}
        for key in dict.fromkeys((event.job, collective.kind) for collective in named):
            if not any(collective.name in self.running for collective in self.jobs[event.job].of_kind(key[1])):
                self.rhythms[key] = self.rhythms[key].ended(event.t)
        return []

    def _named(self, event: Event) -> list[Collective]:
        """What an event of a collective is about: one, or all of a kind. Predictions follow kinds."""
        named = self._known(event).named(event.collective)
        if not named:
            raise InputError(f"{event.kind}: job {event.job!r} has no collective {event.collective!r}")
        return named

    def _known(self, event: Event) -> Job:
        if event.job not in self.jobs:
            raise InputError(f"{event.kind}: no job {event.job!r} is here; it must arrive first")
        return self.jobs[event.job]

    # -- links -----------------------------------------------------------------------------------------

    def _link(self, event: Event) -> list[Change]:
        link, capacity = event.link
        if capacity < 0:
            raise InputError("link: capacity is below 0; use 0 for a failed link")
        self.fabric.check_link(link, "link")
        fabric = self.fabric.with_link(link, capacity)
        values = self._capacity.copy()
        number = fabric.number(link)
        if link.kind not in ("up", "down") or link.spine not in fabric.dead_spines:
            values[number] = float(capacity)
        return self._refit(fabric, values)

    def _spine(self, event: Event) -> list[Change]:
        spine, alive = event.spine
        if not 0 <= spine < self.fabric.spines:
            raise InputError(f"spine: no spine {spine} among 0..{self.fabric.spines - 1}")
        fabric = self.fabric.with_spine(spine, alive)
        if alive:
            return self._refit(fabric, capacities(fabric))
        values = self._capacity.copy()
        cut = values[: fabric.fabric_links].reshape(2 * fabric.tors, fabric.spines)
        cut[:, spine] = 0
        return self._refit(fabric, values)

    def _refit(self, fabric: Clos, capacity: NDArray[np.float64]) -> list[Change]:
        """The failure fast path: flows on dead links are re-placed one by one, all others stay. O(F·M)."""
        self.fabric, self._capacity = fabric, capacity
        self._core = self._core.with_capacity(capacity)
        self.due = True
        alive = self._core.alive(self.spines)
        if np.array_equal(alive, self.spines):
            return []
        try:
            spines = self._core.greedy(alive)
        except ValueError:  # some cannot be placed at all: the others are
            spines = self.spines.copy()
            reachable = self._reachable()
            part = Traffic(fabric, tuple(self.traffic.flows[i] for i in reachable))
            spines[reachable] = part.core.greedy(alive[reachable])
            if np.array_equal(spines, self.spines):
                return []
        return [self._publish(spines)]

    def _timer(self, event: Event) -> list[Change]:
        self.due = True
        return []

    def _nack(self, event: Event) -> list[Change]:
        """A host did not take a route: the one before stays in force, unless it has failed."""
        named = {collective.name for collective in self._known(event).named(event.collective)}
        ends = event.fields["src"], event.fields["dst"]
        places = [
            i for i, flow in enumerate(self.traffic.flows) if flow.collective in named and (flow.src, flow.dst) == ends
        ]
        if not places:
            raise InputError(f"nack: job {event.job!r} has no flow {ends[0]}>{ends[1]} in {event.collective!r}")
        spines = self.spines.copy()
        before = self._core.alive(self.before)
        for i in places:
            if before[i] >= 0:
                spines[i] = before[i]
        return [] if np.array_equal(spines, self.spines) else [self._publish(spines)]

    # -- what is in force ------------------------------------------------------------------------------

    def _gather(self) -> None:
        """All flows of all jobs, with the phases that predictions give them."""
        flows = [
            flow._replace(phase=self._groups.get((job.name, collective.kind), 0))
            for job in self.jobs.values()
            for collective in job.collectives
            for flow in collective.flows
        ]
        self._traffic = Traffic(self.fabric, tuple(flows))
        self._core = self._traffic.core
        self._scale = scaled_weights(self._traffic)[1]
        self._phase = np.array([flow.phase for flow in flows], dtype=np.int32)
        self._capacity = capacities(self.fabric)

    def _regroup(self, t: float | None = None) -> bool:
        """Predict again who meets whom; whether that has changed."""
        groups = groups_that_meet(self.rhythms, self.now if t is None else t)
        changed, self._groups = groups != self._groups, groups
        return changed

    def _reachable(self) -> list[int]:
        pairs: dict[tuple[int, int], bool] = {}
        found = []
        for i, flow in enumerate(self.traffic.flows):
            pair = self.fabric.tor_of(flow.src), self.fabric.tor_of(flow.dst)
            if pair not in pairs:
                pairs[pair] = pair[0] == pair[1] or bool(self.fabric.spines_between(*pair))
            hosts = self.fabric.host_up(flow.src), self.fabric.host_down(flow.dst)
            if pairs[pair] and all(self._capacity[link] > 0 for link in hosts):
                found.append(i)
        return found

    def _choice(self, in_force: Sequence[Route]) -> Choice:
        policy = self.policy
        return Choice(policy.mode, 0, tuple(in_force), policy.most_moved, policy.evaluations)

    def _at_best(self, traffic: Traffic, routes: Sequence[Route]) -> bool:
        """Whether no routes can be better: φ is that of a non-blocking fabric."""
        best = self._phi(traffic, [None] * len(routes))
        return feasible(traffic, routes) and first_difference(best, self._phi(traffic, routes)) <= 0

    def _worth(self, traffic: Traffic, in_force: Sequence[Route], routes: Sequence[Route]) -> bool:
        if moved(in_force, routes) == 0 and None not in _needed(traffic, in_force):
            return False
        if not feasible(traffic, in_force):
            return True
        gain = first_difference(self._phi(traffic, routes), self._phi(traffic, in_force))
        return gain >= self.policy.gain - 1e-12

    def _phi(self, traffic: Traffic, routes: Sequence[Route]) -> NDArray[np.float64]:
        found = []
        for phase in traffic.phases:
            places, part = traffic.of_phase(phase) if len(traffic.phases) > 1 else (range(len(routes)), traffic)
            found.append(float_rates(part, [routes[i] for i in places], self.policy.mode))
        return np.sort(np.concatenate(found))

    def _publish(self, spines: NDArray[np.int32]) -> Change:
        had = self.spines if len(self.spines) == len(spines) else spines
        changed = int(np.count_nonzero((had >= 0) & (had != spines)))
        self.before, self.spines = had, spines
        self.version += 1
        return Change(self.version, changed, self._phi_in_force().tolist())

    def _phi_in_force(self) -> NDArray[np.float64]:
        found = [np.zeros(0)]
        for phase in self._traffic.phases:
            rates, _ = self._core.rates_of_active(self.spines, self.policy.mode, self._phase == phase)
            found.append(rates[np.isfinite(rates)])
        return np.sort(np.concatenate(found)) * self._scale

    # -- JSON ------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """All of the state, for `from_json`."""
        return {
            "fabric": self.fabric.to_json(),
            "version": self.version,
            "t": self.now if np.isfinite(self.now) else None,
            "due": self.due,
            "jobs": [job.to_json() for job in self.jobs.values()],
            "running": sorted(self.running),
            "rhythms": [{"job": job, "kind": kind, **r.to_json()} for (job, kind), r in self.rhythms.items()],
            "routes": self.spines.tolist(),
            "before": self.before.tolist(),
        }

    @classmethod
    def from_json(cls, value: Any, where: str, policy: Policy | None = None) -> Controller:
        """The controller as it was. Raises `InputError` where something is missing or does not fit."""
        require_keys(value, ("fabric", "version", "t", "due", "jobs", "running", "rhythms", "routes", "before"), where)
        controller = cls(Clos.from_json(value["fabric"], f"{where}: fabric"), policy or Policy())
        try:
            for i, item in enumerate(value["jobs"]):
                job = Job.from_json(item, f"{where}: jobs[{i}]")
                job.check_fits(controller.fabric)
                controller.jobs[job.name] = job
            for item in value["rhythms"]:
                rest: Mapping[str, Any] = {key: item[key] for key in item if key not in ("job", "kind")}
                controller.rhythms[item["job"], item["kind"]] = Rhythm(**rest)
            controller.running = set(value["running"])
            controller.version, controller.due = int(value["version"]), bool(value["due"])
            controller.now = -np.inf if value["t"] is None else float(value["t"])
            controller._regroup()
            controller._gather()
            controller.spines = np.array(value["routes"], dtype=np.int32)
            controller.before = np.array(value["before"], dtype=np.int32)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{where}: not a state that was saved here ({error}); restore it") from None
        if len(controller.spines) != len(controller.traffic.flows) or len(controller.before) != len(controller.spines):
            raise InputError(f"{where}: has {len(controller.spines)} routes for {len(controller.traffic.flows)} flows")
        return controller


def feasible(traffic: Traffic, routes: Sequence[Route]) -> bool:
    """Whether every flow that needs a spine has one with both hops alive."""
    spines = as_spines(routes)
    return bool(np.array_equal(traffic.core.alive(spines), spines)) and None not in _needed(traffic, routes)


def _needed(traffic: Traffic, routes: Sequence[Route]) -> list[Route]:
    return [route for flow, route in zip(traffic.flows, routes, strict=True) if traffic.crosses(flow)]
