"""Clos: a two-layer fabric of ToRs and spines, with what of it is unequal or has failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from ..errors import InputError
from ..files import require_keys
from .exact import exact, plain, whole

#: Links that a fabric may have: far beyond any cluster that exists.
MOST_LINKS = 1_000_000


class Link(NamedTuple):
    """A directed link: up (tor → spine), down (spine → tor), host_up or host_down. What does not apply is 0."""

    kind: str
    tor: int = 0
    spine: int = 0
    host: int = 0

    def __str__(self) -> str:
        if self.kind in ("up", "down"):
            return f"{self.kind} link of ToR {self.tor} and spine {self.spine}"
        return f"{self.kind} link of host {self.host}"


#: What names a link of each kind.
_NAMED_BY = {"up": ("tor", "spine"), "down": ("tor", "spine"), "host_up": ("host",), "host_down": ("host",)}


@dataclass(frozen=True)
class Clos:
    """`tors` × `spines`, each ToR with `hosts_per_tor` hosts (NICs); host h sits below ToR h // hosts_per_tor.

    Capacities are exact and relative to `link_gbps`: 1, but for `exceptions`; 0 is a failed link. A spine in
    `dead_spines` has no live link. Fewer spines than hosts per ToR is an oversubscribed fabric.
    """

    tors: int
    spines: int
    hosts_per_tor: int
    link_gbps: Fraction = Fraction(100)
    dead_spines: frozenset[int] = frozenset()
    exceptions: Mapping[Link, Fraction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.validate()

    @property
    def hosts(self) -> int:
        return self.tors * self.hosts_per_tor

    @property
    def nlinks(self) -> int:
        return 2 * self.tors * self.spines + 2 * self.hosts

    @property
    def fabric_links(self) -> int:
        """How many links join ToRs and spines; they come first."""
        return 2 * self.tors * self.spines

    def tor_of(self, host: int) -> int:
        return host // self.hosts_per_tor

    # -- link numbers: up, down, host_up, host_down ------------------------------------------------------

    def up(self, tor: int, spine: int) -> int:
        return tor * self.spines + spine

    def down(self, spine: int, tor: int) -> int:
        return (self.tors + tor) * self.spines + spine

    def host_up(self, host: int) -> int:
        return self.fabric_links + host

    def host_down(self, host: int) -> int:
        return self.fabric_links + self.hosts + host

    def number(self, link: Link) -> int:
        if link.kind == "up":
            return self.up(link.tor, link.spine)
        if link.kind == "down":
            return self.down(link.spine, link.tor)
        return self.host_up(link.host) if link.kind == "host_up" else self.host_down(link.host)

    def link(self, number: int) -> Link:
        """The link of a number."""
        if number >= self.fabric_links:
            host = number - self.fabric_links
            return Link("host_up", host=host) if host < self.hosts else Link("host_down", host=host - self.hosts)
        tor, spine = divmod(number, self.spines)
        return Link("up", tor, spine) if tor < self.tors else Link("down", tor - self.tors, spine)

    @cached_property
    def capacity(self) -> tuple[Fraction, ...]:
        """Of every link, by its number."""
        capacity = [Fraction(1)] * self.nlinks
        for link, value in self.exceptions.items():
            capacity[self.number(link)] = value
        for spine in self.dead_spines:
            for tor in range(self.tors):
                capacity[self.up(tor, spine)] = capacity[self.down(spine, tor)] = Fraction(0)
        return tuple(capacity)

    def spines_between(self, source_tor: int, target_tor: int) -> list[int]:
        """S(u, v): the spines with both hops alive."""
        capacity = self.capacity
        return [
            spine
            for spine in range(self.spines)
            if capacity[self.up(source_tor, spine)] and capacity[self.down(spine, target_tor)]
        ]

    @cached_property
    def symmetric_spines(self) -> tuple[int, ...] | None:
        """The live spines, if every ToR has links of one capacity to and from all of them and none to others; else
        None. O(T·M)."""
        capacity = self.capacity
        live = self.spines_between(0, 0)
        values: set[Fraction] = set()
        for tor in range(self.tors):
            if self.spines_between(tor, tor) != live:
                return None
            for spine in range(self.spines):
                pair = capacity[self.up(tor, spine)], capacity[self.down(spine, tor)]
                if spine in live:
                    values.update(pair)
                elif any(pair):
                    return None
        return tuple(live) if len(values) <= 1 else None

    # -- changes ---------------------------------------------------------------------------------------

    def with_link(self, link: Link, capacity: Fraction) -> Clos:
        """The fabric with another capacity of one link."""
        return replace(self, exceptions={**self.exceptions, link: capacity})

    def with_spine(self, spine: int, alive: bool) -> Clos:
        """The fabric with a spine dead or back; its links keep the capacities they had."""
        dead = self.dead_spines - {spine} if alive else self.dead_spines | {spine}
        return replace(self, dead_spines=dead)

    def validate(self) -> None:
        """Raise `InputError` unless counts are positive, capacities finite and ≥ 0, and what is named exists."""
        for name in ("tors", "spines", "hosts_per_tor"):
            if getattr(self, name) < 1:
                raise InputError(f"fabric: {name} is {getattr(self, name)}; at least 1 is needed")
        if self.nlinks > MOST_LINKS:
            raise InputError(f"fabric: {self.nlinks} links; at most {MOST_LINKS} are supported")
        if self.link_gbps <= 0:
            raise InputError("fabric: link_gbps must be more than 0")
        for spine in self.dead_spines:
            if not 0 <= spine < self.spines:
                raise InputError(f"fabric: dead_spines: no spine {spine} among 0..{self.spines - 1}")
        for link, capacity in self.exceptions.items():
            self.check_link(link, "fabric: links")
            if capacity < 0:
                raise InputError(f"fabric: links: the {link} has a capacity below 0; use 0 for a failed link")

    def check_link(self, link: Link, where: str) -> None:
        """Raise `InputError` unless the fabric has the link."""
        limits = {"tor": self.tors, "spine": self.spines, "host": self.hosts}
        for name in _NAMED_BY[link.kind]:
            if not 0 <= getattr(link, name) < limits[name]:
                raise InputError(f"{where}: no {name} {getattr(link, name)} among 0..{limits[name] - 1}")

    # -- JSON ------------------------------------------------------------------------------------------

    @classmethod
    def from_json(cls, value: Any, where: str = "fabric") -> Clos:
        """Build from the `fabric` object of a traffic file. Raises `InputError`."""
        require_keys(value, ("tors", "spines", "hosts_per_tor"), where)
        known = {"tors", "spines", "hosts_per_tor", "link_gbps", "dead_spines", "links"}
        unknown = sorted(value.keys() - known)
        if unknown:
            raise InputError(f"{where}: unknown key {unknown[0]!r}; a fabric has {', '.join(sorted(known))}")
        for key in ("dead_spines", "links"):
            if not isinstance(value.get(key, []), list):
                raise InputError(f"{where}: {key!r} must be a list")
        dead = [whole(item, f"{where}: dead_spines") for item in value.get("dead_spines", [])]
        _refuse_twice(dead, f"{where}: dead_spines: spine")
        links = []
        for i, item in enumerate(value.get("links", [])):
            at = f"{where}: links[{i}]"
            require_keys(item, ("capacity",), at)
            links.append((link_from_json(item, at), exact(item["capacity"], f"{at}: capacity")))
        _refuse_twice([link for link, _ in links], f"{where}: links: the")
        counts = {name: whole(value[name], f"{where}: {name}") for name in ("tors", "spines", "hosts_per_tor")}
        gbps = exact(value.get("link_gbps", 100), f"{where}: link_gbps")
        try:
            return cls(**counts, link_gbps=gbps, dead_spines=frozenset(dead), exceptions=dict(links))
        except InputError as error:
            raise InputError(f"{where}{str(error).removeprefix('fabric')}") from None

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"tors": self.tors, "spines": self.spines, "hosts_per_tor": self.hosts_per_tor}
        value["link_gbps"] = plain(self.link_gbps)
        if self.dead_spines:
            value["dead_spines"] = sorted(self.dead_spines)
        if self.exceptions:
            value["links"] = [
                {"kind": link.kind, **{name: getattr(link, name) for name in _NAMED_BY[link.kind]}}
                | {"capacity": plain(capacity)}
                for link, capacity in self.exceptions.items()
            ]
        return value


def link_from_json(value: Any, where: str) -> Link:
    """The link that `kind`, `tor`, `spine` and `host` name."""
    require_keys(value, ("kind",), where)
    kind = value["kind"]
    if not isinstance(kind, str) or kind not in _NAMED_BY:
        raise InputError(f"{where}: kind is {kind!r}; use {', '.join(_NAMED_BY)}")
    require_keys(value, _NAMED_BY[kind], where)
    return Link(kind, **{name: whole(value[name], f"{where}: {name}") for name in _NAMED_BY[kind]})


def _refuse_twice(items: list[Any], where: str) -> None:
    seen = set()
    for item in items:
        if item in seen:
            raise InputError(f"{where} {item} is given twice; keep one")
        seen.add(item)
