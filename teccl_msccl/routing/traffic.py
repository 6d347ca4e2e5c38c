"""Traffic: the flows of collectives on a fabric, and the routes they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InputError
from ..files import read_json, require_keys
from .exact import exact, plain, whole
from .fabric import Clos
from .rocev2 import MOST_QPN

if TYPE_CHECKING:
    from .. import _core

#: A flow's spine; None inside a ToR, and where none is chosen yet.
Route = int | None
FlowKey = tuple[str, int]


class Flow(NamedTuple):
    """`weight` bytes (or any unit) from host to host, a part of a collective of a job.

    Collectives of different phases never run at one time, so they do not share links. `extra` has what enforcement
    may be told: rank, peer, channel, qp, communicator, src_ip, dst_ip, src_qpn, dst_qpn.
    """

    collective: str
    src: int
    dst: int
    weight: Fraction = Fraction(1)
    job: str = ""
    phase: int = 0
    extra: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Traffic:
    """Flows on a fabric. With `queue_pairs` = q, each q neighbours in `flows` are the q-th parts of one flow."""

    fabric: Clos
    flows: tuple[Flow, ...]
    queue_pairs: int = 1
    extra: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self.validate()

    @cached_property
    def collectives(self) -> tuple[str, ...]:
        """Names in the order of their first flows: a collective's number is its place here."""
        return tuple(dict.fromkeys(flow.collective for flow in self.flows))

    @cached_property
    def keys(self) -> tuple[FlowKey, ...]:
        """What names each flow wherever it stands: its collective, and its place there."""
        seen: Counter[str] = Counter()
        named = []
        for flow in self.flows:
            named.append((flow.collective, seen[flow.collective]))
            seen[flow.collective] += 1
        return tuple(named)

    @cached_property
    def jobs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(flow.job for flow in self.flows))

    @cached_property
    def phases(self) -> tuple[int, ...]:
        return tuple(sorted({flow.phase for flow in self.flows}))

    def crosses(self, flow: Flow) -> bool:
        """Whether the flow leaves its ToR, and so needs a spine."""
        return self.fabric.tor_of(flow.src) != self.fabric.tor_of(flow.dst)

    def spines_of(self, flow: Flow) -> list[int]:
        """The spines that the flow may take."""
        return self.fabric.spines_between(self.fabric.tor_of(flow.src), self.fabric.tor_of(flow.dst))

    def links_of(self, flow: Flow, route: Route) -> list[int]:
        """The links that the flow crosses on a route."""
        fabric = self.fabric
        if route is None:
            return [fabric.host_up(flow.src), fabric.host_down(flow.dst)]
        source, target = fabric.tor_of(flow.src), fabric.tor_of(flow.dst)
        return [
            fabric.host_up(flow.src),
            fabric.up(source, route),
            fabric.down(route, target),
            fabric.host_down(flow.dst),
        ]

    def split(self, q: int) -> Traffic:
        """The same traffic with each flow as q queue pairs, a q-th of its weight each."""
        if q < 1:
            raise InputError(f"split into {q} queue pairs; use 1 or more")
        parts = tuple(flow._replace(weight=flow.weight / q) for flow in self.flows for _ in range(q))
        return replace(self, flows=parts, queue_pairs=q * self.queue_pairs)

    def of_phase(self, phase: int) -> tuple[list[int], Traffic]:
        """The flows of one phase, as traffic and by their places in this one."""
        places = [i for i, flow in enumerate(self.flows) if flow.phase == phase]
        return places, replace(self, flows=tuple(self.flows[i] for i in places))

    def grouped_by_job(self) -> Traffic:
        """The same flows with every job (in each of its phases) as one collective."""
        merged = tuple(flow._replace(collective=f"{flow.job}\0{flow.phase}") for flow in self.flows)
        return replace(self, flows=merged)

    @cached_property
    def core(self) -> _core.Traffic:
        """The C++ twin (see `compiled`)."""
        from .compiled import compiled

        return compiled(self)

    # -- checks ----------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise `InputError` unless hosts exist, weights are more than 0, and a collective has one job and phase."""
        home: dict[str, tuple[str, int]] = {}
        for i, flow in enumerate(self.flows):
            where = f"flows[{i}]"
            for end in (flow.src, flow.dst):
                if not 0 <= end < self.fabric.hosts:
                    raise InputError(f"{where}: no host {end} among 0..{self.fabric.hosts - 1}")
            if flow.src == flow.dst:
                raise InputError(f"{where}: goes from host {flow.src} to itself; leave it out")
            if flow.weight <= 0:
                raise InputError(f"{where}: weight is {flow.weight}; it must be more than 0")
            if home.setdefault(flow.collective, (flow.job, flow.phase)) != (flow.job, flow.phase):
                raise InputError(f"{where}: collective {flow.collective!r} is of two jobs or phases; give each its own")

    def check_reachable(self) -> None:
        """Raise `InputError` where a flow has no spine with both hops alive, or a host's link has failed."""
        reachable: dict[tuple[int, int], bool] = {}
        capacity = self.fabric.capacity
        for i, flow in enumerate(self.flows):
            where = f"flows[{i // self.queue_pairs}] ({flow.collective}: {flow.src}>{flow.dst})"
            if not (capacity[self.fabric.host_up(flow.src)] and capacity[self.fabric.host_down(flow.dst)]):
                raise InputError(f"{where}: a host's link has capacity 0; mend the link or leave the flow out")
            pair = self.fabric.tor_of(flow.src), self.fabric.tor_of(flow.dst)
            if pair[0] != pair[1] and not reachable.setdefault(pair, bool(self.fabric.spines_between(*pair))):
                raise InputError(
                    f"{where}: ToR {pair[1]} cannot be reached from ToR {pair[0]}: no spine has both hops alive; "
                    "mend a link or leave the flow out"
                )

    def check_routes(self, routes: Sequence[Route]) -> None:
        """Raise `InputError` unless every flow that needs a spine has one with both hops alive."""
        if len(routes) != len(self.flows):
            raise InputError(f"{len(routes)} routes for {len(self.flows)} flows; give one each")
        for i, (flow, route) in enumerate(zip(self.flows, routes, strict=True)):
            where = f"flows[{i // self.queue_pairs}] ({flow.collective}: {flow.src}>{flow.dst})"
            if not self.crosses(flow):
                continue
            if route is None:
                raise InputError(f"{where}: has no spine; give one, or let `route optimize` choose")
            if not 0 <= route < self.fabric.spines:
                raise InputError(f"{where}: no spine {route} among 0..{self.fabric.spines - 1}")
            if route not in self.spines_of(flow):
                raise InputError(f"{where}: spine {route} has a failed hop on this way; choose another")

    # -- JSON ------------------------------------------------------------------------------------------

    @classmethod
    def from_json(cls, value: Any, where: str = "traffic") -> tuple[Traffic, list[Route]]:
        """Traffic and the routes that its flows name (None where they name none). Raises `InputError`."""
        require_keys(value, ("fabric", "flows"), where)
        fabric = Clos.from_json(value["fabric"], f"{where}: fabric")
        if not isinstance(value["flows"], list):
            raise InputError(f"{where}: 'flows' must be a list")
        flows, routes, ids = [], [], set()
        for i, item in enumerate(value["flows"]):
            at = f"{where}: flows[{i}]"
            flow, route = flow_from_json(item, at)
            if (name := item.get("id")) is not None:
                if str(name) in ids:
                    raise InputError(f"{at}: id {name!r} is given twice; give each flow its own")
                ids.add(str(name))
            flows.append(flow)
            routes.append(route)
        try:
            traffic = cls(fabric, tuple(flows))
            for i, (flow, route) in enumerate(zip(flows, routes, strict=True)):
                if route is not None and not 0 <= route < fabric.spines:
                    raise InputError(f"flows[{i}]: no spine {route} among 0..{fabric.spines - 1}")
                if not traffic.crosses(flow):
                    routes[i] = None
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return traffic, routes

    @classmethod
    def read(cls, path: str | Path) -> tuple[Traffic, list[Route]]:
        """Read a traffic JSON file."""
        return cls.from_json(read_json(path, "traffic"), str(path))

    def to_json(self, routes: Sequence[Route] | None = None) -> dict[str, Any]:
        return {"fabric": self.fabric.to_json(), "flows": list(flows_to_json(self.flows, routes))}


#: What a flow may say beside its ends, for enforcement.
EXTRAS = ("id", "rank", "peer", "channel", "qp", "communicator", "src_ip", "dst_ip", "src_qpn", "dst_qpn")


def flow_from_json(value: Any, where: str) -> tuple[Flow, Route]:
    require_keys(value, ("src", "dst"), where)
    known = {"collective", "job", "src", "dst", "weight", "spine", "phase", *EXTRAS}
    unknown = sorted(value.keys() - known)
    if unknown:
        raise InputError(f"{where}: unknown key {unknown[0]!r}; a flow has {', '.join(sorted(known))}")
    extra = tuple((key, value[key]) for key in EXTRAS if key in value)
    check_extras(dict(extra), where)
    job = str(value.get("job", ""))
    flow = Flow(
        collective=str(value.get("collective", job)),
        src=whole(value["src"], f"{where}: src"),
        dst=whole(value["dst"], f"{where}: dst"),
        weight=exact(value.get("weight", 1), f"{where}: weight"),
        job=job,
        phase=whole(value.get("phase", 0), f"{where}: phase"),
        extra=extra,
    )
    spine = value.get("spine")
    return flow, None if spine is None else whole(spine, f"{where}: spine")


def flows_to_json(flows: Iterable[Flow], routes: Sequence[Route] | None = None) -> Iterable[dict[str, Any]]:
    for i, flow in enumerate(flows):
        value: dict[str, Any] = {"collective": flow.collective}
        if flow.job:
            value["job"] = flow.job
        value |= {"src": flow.src, "dst": flow.dst, "weight": plain(flow.weight)}
        if flow.phase:
            value["phase"] = flow.phase
        if routes is not None and routes[i] is not None:
            value["spine"] = routes[i]
        yield value | dict(flow.extra)


def check_extras(extra: dict[str, Any], where: str) -> None:
    """Raise `InputError` unless what a flow says for enforcement is of the right kind."""
    for key in ("rank", "peer", "channel", "qp", "src_qpn", "dst_qpn"):
        value = extra.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_QPN:
            raise InputError(f"{where}: {key} must be a whole number in 0..{MOST_QPN:#x}, not {value!r}")
    for key in ("src_ip", "dst_ip"):
        if key in extra:
            try:
                IPv4Address(extra[key] if isinstance(extra[key], str) else "")
            except ValueError:
                raise InputError(f"{where}: {key} is {extra[key]!r}; give an IPv4 address") from None
