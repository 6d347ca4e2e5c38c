"""Schedule: which chunk crosses which links when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ..collective.custom import chunk_from_json, group_from_json
from ..collective.demand import SPELLINGS, Chunk, Demand, chunk_to_json, demand_for
from ..errors import InputError
from ..files import read_json, require_flag, require_keys, require_number, require_whole, write_text
from ..topology.model import Topology
from ..topology.paths import trunk


class Send(NamedTuple):
    """A chunk crosses `path` (link ids, GPU to GPU) from `start_us` on; with `reduce` it is merged into what the
    receiver holds, else copied."""

    chunk: int
    path: tuple[int, ...]
    start_us: float
    reduce: bool = False


@dataclass(frozen=True)
class Schedule:
    """Sends that meet a demand on a topology, with real-valued times in µs.

    `finish_us` is when the last wanted chunk has arrived. `validate()` proves all of it; `retimed()` starts every
    send as early as its data and links allow.
    """

    topology: Topology
    demand: Demand
    sends: tuple[Send, ...]
    finish_us: float
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def algbw_GBps(self) -> float:
        """size / finish time, in 1e9 bytes/s."""
        return self.demand.size_bytes / (self.finish_us * 1e3) if self.finish_us else 0.0

    def ends(self, send: Send) -> tuple[int, int]:
        """The ranks that `send` goes from and to."""
        sources, targets = self._ranks_at_links
        return sources[send.path[0]], targets[send.path[-1]]

    @cached_property
    def _ranks_at_links(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Link id → the rank that it comes from, or goes to, of those that do."""
        rank_of, links = self.topology.rank_of, self.topology.links
        return (
            {link.id: rank_of[link.src] for link in links if link.src in rank_of},
            {link.id: rank_of[link.dst] for link in links if link.dst in rank_of},
        )

    def arrival_us(self, send: Send) -> float:
        """When all of the chunk has arrived: start + Σα + bytes / least bandwidth of the path."""
        links = [self.topology.link_by_id[id] for id in send.path]
        nbytes = self.demand.chunks[send.chunk].bytes
        return send.start_us + sum(link.alpha_us for link in links) + max(link.beta_us(nbytes) for link in links)

    def multicasts(self) -> bool:
        """Whether copies of a chunk are sent on several paths at once, which a switch makes of one."""
        together: set[tuple[int, tuple[int, ...], float]] = set()
        for send in self.sends:
            shared = send.path[: trunk(self.topology, send.path)]
            key = send.chunk, shared, round(send.start_us, 6)
            if shared and not send.reduce and key in together:
                return True
            together.add(key)
        return False

    def validate(self) -> None:
        """Prove that every send's data is there, no link is used twice at once, and the demand is met by
        `finish_us`. Raises `Refused` naming the send, link or chunk."""
        from .validate import validate

        validate(self)

    def retimed(self) -> Schedule:
        """The same sends in the same order on every link, each as early as possible (left-shift)."""
        from .simulate import retime

        return retime(self)

    # -- JSON ------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The design's JSON form; unknown keys that were read are kept."""
        demand = self.demand
        return {
            **self.extra,
            "topology": self.topology.to_json(),
            "collective": demand.collective,
            "root": demand.root,
            "size_bytes": demand.size_bytes,
            "nchunks": demand.nchunks,
            **demand.to_json(),
            "sends": [
                {"chunk": s.chunk, "path": list(s.path), "start_us": s.start_us, "reduce": s.reduce} for s in self.sends
            ],
            "finish_us": self.finish_us,
        }

    def write(self, path: str | Path) -> None:
        """Write the JSON form, atomically."""
        write_text(path, json.dumps(self.to_json()) + "\n")

    @classmethod
    def from_json(cls, value: Any, where: str = "schedule") -> Schedule:
        """Build from the design's JSON form and check that its parts agree. Raises `InputError`."""
        if not isinstance(value, dict):
            raise InputError(f"{where}: a schedule is an object with topology, collective, chunks and sends")
        known = {"topology", "collective", "root", "size_bytes", "nchunks", "groups", "chunks", "sends", "finish_us"}
        missing = sorted({"topology", "collective", "size_bytes", "sends"} - value.keys())
        if missing:
            raise InputError(f"{where}: {missing[0]!r} is missing; a schedule needs it")
        try:
            topology = Topology.from_json(value["topology"], "topology")
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        demand = _demand(value, topology.nranks, where)
        sends = _sends(value["sends"], topology, demand, where)
        return cls(
            topology=topology,
            demand=demand,
            sends=sends,
            finish_us=require_number(value.get("finish_us", 0.0), f"{where}: finish_us"),
            extra={key: item for key, item in value.items() if key not in known},
        )

    @classmethod
    def read(cls, path: str | Path) -> Schedule:
        """Read a schedule JSON file."""
        return cls.from_json(read_json(path, "a schedule"), str(path))


def _demand(value: dict[str, Any], nranks: int, where: str) -> Demand:
    """The demand of the collective that `value` names, with which `chunks`, where given, must agree.

    A name that is none of ours leaves the demand to `chunks`.
    """
    collective = value["collective"]
    if not isinstance(collective, str):
        raise InputError(f"{where}: collective: must be a name, not {collective!r}")
    size = require_number(value["size_bytes"], f"{where}: size_bytes")
    nchunks = require_whole(value.get("nchunks", 1), f"{where}: nchunks")
    root = value.get("root")
    root = None if root is None else require_whole(root, f"{where}: root")
    chunks = value.get("chunks")
    if chunks is not None and not isinstance(chunks, list):
        raise InputError(f"{where}: 'chunks' must be a list")
    listed = value.get("groups", [])
    if not isinstance(listed, list):
        raise InputError(f"{where}: 'groups' must be a list")
    try:
        groups = tuple(group_from_json(item, f"groups[{i}]") for i, item in enumerate(listed))
        if chunks is not None and collective.lower() not in SPELLINGS:
            own = tuple(chunk_from_json(item, f"chunks[{i}]") for i, item in enumerate(chunks))
            return Demand(collective, nranks, own, nchunks, size, root, groups)
        demand = demand_for(collective, nranks, size, nchunks, root or 0, groups)
        if chunks is not None and len(chunks) != len(demand.chunks):
            raise InputError(
                f"{len(chunks)} chunks, but {demand.collective} among {nranks} GPUs with nchunks {nchunks} has "
                f"{len(demand.chunks)}; mend nchunks or chunks"
            )
        for i, item in enumerate(chunks or ()):
            _check_chunk(item, demand.chunks[i], f"chunks[{i}]")
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return demand


def _check_chunk(value: Any, chunk: Chunk, where: str) -> None:
    """What a file says of a chunk is what its collective means by it; `want` and `reduce` may be left out."""
    require_keys(value, ("id", "origin", "bytes"), where)
    if abs(require_number(value["bytes"], f"{where}: bytes") - chunk.bytes) > 1e-9 * chunk.bytes:
        raise InputError(f"{where}: {value['bytes']} bytes, but size_bytes and nchunks make it {chunk.bytes}")
    for key, due in {"group": 0, **chunk_to_json(chunk)}.items():
        if key != "bytes" and value.get(key, due) != due:
            raise InputError(f"{where}: {key} is {value[key]!r}; for this collective it is {due!r}")


def _sends(value: Any, topology: Topology, demand: Demand, where: str) -> tuple[Send, ...]:
    if not isinstance(value, list):
        raise InputError(f"{where}: 'sends' must be a list")
    sends = []
    for i, item in enumerate(value):
        at = f"{where}: sends[{i}]"
        require_keys(item, ("chunk", "path", "start_us"), at)
        if not isinstance(item["path"], list):
            raise InputError(f"{at}: path must be a list of link ids")
        send = Send(
            chunk=require_whole(item["chunk"], f"{at}: chunk"),
            path=tuple(require_whole(link, f"{at}: path") for link in item["path"]),
            start_us=require_number(item["start_us"], f"{at}: start_us"),
            reduce=require_flag(item.get("reduce", False), f"{at}: reduce"),
        )
        if not 0 <= send.chunk < len(demand.chunks):
            raise InputError(f"{at}: no chunk {send.chunk} among 0..{len(demand.chunks) - 1}")
        check_path(send.path, topology, at)
        sends.append(send)
    return tuple(sends)


def check_path(path: tuple[int, ...], topology: Topology, where: str) -> None:
    """Raise `InputError` unless `path` joins GPU to GPU, link after link, through nodes that do not store."""
    if not path:
        raise InputError(f"{where}: the path has no links; give at least one")
    for id in path:
        if id not in topology.link_by_id:
            raise InputError(f"{where}: the topology has no link {id}")
    links = [topology.link_by_id[id] for id in path]
    for link, following in pairwise(links):
        if link.dst != following.src:
            raise InputError(f"{where}: link {link.id} ends at node {link.dst}, link {following.id} starts elsewhere")
        if link.dst in topology.rank_of:
            raise InputError(f"{where}: the path crosses GPU {topology.rank_of[link.dst]}; split it into two sends")
    for node in (links[0].src, links[-1].dst):
        if node not in topology.rank_of:
            raise InputError(f"{where}: the path must start and end at a GPU, and node {node} is none")
