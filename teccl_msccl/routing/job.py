"""Job: a training job's parallelism and placement, and the collectives that come of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from ..errors import InputError
from ..files import require_keys
from .exact import exact, plain, whole
from .fabric import Clos
from .traffic import Flow, Traffic, flow_from_json, flows_to_json


class Model(NamedTuple):
    """A language model as it is commonly trained: `tp` × `pp` GPUs a replica, with 4-byte gradients. `activations` are
    the bytes of one sequence between two layers (sequence length × hidden size × 2)."""

    parameters: int
    tp: int
    pp: int
    activations: int


#: Beyond any cluster, and beyond patience.
MOST_FLOWS = 2**22
MOST_ITERATIONS = 10**6

MODELS: Mapping[str, Model] = {
    "gpt3": Model(175 * 10**9, 8, 8, 2048 * 12288 * 2),
    "bloom": Model(176 * 10**9, 4, 12, 2048 * 14336 * 2),
    "llama2-70b": Model(70 * 10**9, 8, 16, 4096 * 8192 * 2),
}


@dataclass(frozen=True)
class Collective:
    """One ring, pipeline or expert group. Its flows run together, in `steps` equal steps."""

    name: str
    kind: str
    steps: int
    flows: tuple[Flow, ...]


@dataclass(frozen=True)
class Job:
    """`dp` replicas of `pp` stages of `tp` GPUs; expert groups join `ep` neighbouring replicas.

    Rank ((d·pp + p)·tp + t) uses host (NIC) `hosts[rank // (ranks / len(hosts))]`: one NIC per GPU, or one for several.
    `bytes` are a GPU's gradients, `pp_bytes` what a stage sends the next in an iteration (and gets back), `ep_bytes`
    what a GPU sends in an all-to-all. An iteration computes for `compute_s`, while pipelines and
    experts communicate, then reduces the gradients. `flows`, where given,
    are traffic of its own instead of what parallelism says.
    """

    name: str
    hosts: tuple[int, ...] = ()
    model: str | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    start_s: float = 0.0
    iterations: int = 1
    compute_s: float = 0.0
    bytes: Fraction = Fraction(0)
    pp_bytes: Fraction = Fraction(0)
    ep_bytes: Fraction = Fraction(0)
    flows: tuple[Flow, ...] = ()

    def __post_init__(self) -> None:
        self.validate()

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp

    def host(self, d: int, p: int, t: int) -> int:
        """The host of stage p of replica d, tensor-parallel rank t."""
        rank = (d * self.pp + p) * self.tp + t
        return self.hosts[rank // (self.ranks // len(self.hosts))]

    @cached_property
    def chunk(self) -> int:
        """Bytes of a step of the gradients' ring: ⌈bytes / dp⌉."""
        return -(-self.bytes // self.dp)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """Data parallel: a ring all-reduce for each shard of the model. Pipeline parallel: to and from the neighbour.
        Expert parallel: all pairs. Tensor parallel: nothing leaves the host. Flows that stay in a host are left out.
        """
        made = [*self._own(), *self._expert_groups(), *self._pipelines(), *self._rings()]
        return tuple(collective for collective in made if collective.flows)

    def of_kind(self, kind: str) -> list[Collective]:
        return [collective for collective in self.collectives if collective.kind == kind]

    def named(self, name: str) -> list[Collective]:
        """The collectives that an event means: one by name (with or without the job's), or all of a kind."""
        full = name if name.startswith(f"{self.name}/") else f"{self.name}/{name}"
        return [c for c in self.collectives if c.kind == name or c.name == full]

    def _own(self) -> Iterable[Collective]:
        for name in dict.fromkeys(flow.collective for flow in self.flows):
            flows = tuple(flow for flow in self.flows if flow.collective == name)
            yield Collective(name, "flows", 1, flows)

    def _rings(self) -> Iterable[Collective]:
        if self.flows or self.dp == 1 or not self.bytes:
            return
        steps = 2 * (self.dp - 1)
        for p in range(self.pp):
            for t in range(self.tp):
                ring = [self.host(d, p, t) for d in range(self.dp)]
                pairs = [(ring[d], ring[(d + 1) % self.dp]) for d in range(self.dp)]
                yield self._collective("dp", p * self.tp + t, steps, pairs, Fraction(steps * self.chunk))

    def _pipelines(self) -> Iterable[Collective]:
        if self.flows or self.pp == 1 or not self.pp_bytes:
            return
        for d in range(self.dp):
            for t in range(self.tp):
                stages = [self.host(d, p, t) for p in range(self.pp)]
                pairs = [pair for p in range(self.pp - 1) for pair in (stages[p : p + 2], stages[p : p + 2][::-1])]
                yield self._collective("pp", d * self.tp + t, 1, pairs, self.pp_bytes)

    def _expert_groups(self) -> Iterable[Collective]:
        if self.flows or self.ep == 1 or not self.ep_bytes:
            return
        shards = self.pp * self.tp
        for first in range(0, self.dp, self.ep):
            for shard in range(shards):
                p, t = divmod(shard, self.tp)
                group = [self.host(d, p, t) for d in range(first, first + self.ep)]
                pairs = [(a, b) for a in group for b in group if a != b]
                yield self._collective("ep", first // self.ep * shards + shard, 1, pairs, self.ep_bytes / self.ep)

    def _collective(self, kind: str, number: int, steps: int, pairs: Iterable[Any], weight: Fraction) -> Collective:
        name = f"{self.name}/{kind}{number}"
        flows = tuple(Flow(name, a, b, weight, self.name) for a, b in pairs if a != b)
        return Collective(name, kind, steps, flows)

    # -- checks and JSON -------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise `InputError` unless counts are positive, times and bytes ≥ 0, and hosts serve the ranks evenly."""
        where = f"job {self.name!r}"
        if not self.name or "/" in self.name or "\0" in self.name:
            raise InputError(f"{where}: a job's name has one character or more, and no '/'")
        for key in ("tp", "pp", "dp", "ep", "iterations"):
            if getattr(self, key) < 1:
                raise InputError(f"{where}: {key} is {getattr(self, key)}; use 1 or more")
        for key in ("start_s", "compute_s", "bytes", "pp_bytes", "ep_bytes"):
            if getattr(self, key) < 0:
                raise InputError(f"{where}: {key} is below 0")
        if self.iterations > MOST_ITERATIONS:
            raise InputError(f"{where}: more than {MOST_ITERATIONS} iterations; simulate fewer")
        if self.ranks * self.ep > MOST_FLOWS:
            raise InputError(f"{where}: tp × pp × dp × ep is beyond {MOST_FLOWS}; no cluster has so many GPUs")
        if self.flows:
            return
        if self.dp % self.ep:
            raise InputError(f"{where}: ep {self.ep} does not divide dp {self.dp}; expert groups join ep replicas each")
        if not self.hosts or self.ranks % len(self.hosts):
            raise InputError(
                f"{where}: {len(self.hosts)} hosts for {self.ranks} ranks (tp × pp × dp); give one per rank, or a "
                "number that divides them"
            )
        if len(set(self.hosts)) < len(self.hosts):
            twice = next(host for host in self.hosts if self.hosts.count(host) > 1)
            raise InputError(f"{where}: host {twice} is given twice; give each once")

    def check_fits(self, fabric: Clos) -> None:
        """Raise `InputError` unless the fabric has the job's hosts."""
        named = self.hosts or tuple(host for flow in self.flows for host in (flow.src, flow.dst))
        for host in named:
            if not 0 <= host < fabric.hosts:
                raise InputError(f"job {self.name!r}: no host {host} among 0..{fabric.hosts - 1}")

    @classmethod
    def from_json(cls, value: Any, where: str) -> Job:
        """Build from an item of `jobs`. What a known model says may be left out. Raises `InputError`."""
        require_keys(value, ("job",), where)
        known = {"job", "model", "tp", "pp", "dp", "ep", "hosts", "start_s", "iterations", "compute_s", "bytes"}
        known |= {"pp_bytes", "ep_bytes", "flows"}
        if unknown := sorted(value.keys() - known):
            raise InputError(f"{where}: unknown key {unknown[0]!r}; a job has {', '.join(sorted(known))}")
        name, model = str(value["job"]), value.get("model")
        if model is not None and (not isinstance(model, str) or model not in MODELS):
            raise InputError(f"{where}: unknown model {model!r}; use {', '.join(MODELS)}, or null with 'bytes'")
        profile = MODELS.get(model) if isinstance(model, str) else None
        shape = {"tp": profile.tp if profile else 1, "pp": profile.pp if profile else 1, "dp": 1, "ep": 1}
        shape = {key: whole(value.get(key, due), f"{where}: {key}") for key, due in shape.items()}
        gradients = -(-4 * profile.parameters // max(1, shape["tp"] * shape["pp"])) if profile else 0
        activations = Fraction(profile.activations, max(1, shape["tp"])) if profile else Fraction(0)
        nbytes = exact(value.get("bytes", gradients), f"{where}: bytes")
        for key in ("hosts", "flows"):
            if not isinstance(value.get(key, []), list):
                raise InputError(f"{where}: {key!r} must be a list")
        try:
            return cls(
                name=name,
                model=model,
                hosts=tuple(whole(host, f"{where}: hosts") for host in value.get("hosts", [])),
                **shape,
                start_s=float(exact(value.get("start_s", 0), f"{where}: start_s")),
                iterations=whole(value.get("iterations", 1), f"{where}: iterations"),
                compute_s=float(exact(value.get("compute_s", 0), f"{where}: compute_s")),
                bytes=nbytes,
                pp_bytes=exact(value.get("pp_bytes", plain(activations or nbytes)), f"{where}: pp_bytes"),
                ep_bytes=exact(value.get("ep_bytes", plain(activations or nbytes)), f"{where}: ep_bytes"),
                flows=tuple(
                    _own_flow(item, name, f"{where}: flows[{i}]") for i, item in enumerate(value.get("flows", []))
                ),
            )
        except InputError as error:
            raise InputError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"job": self.name, "model": self.model}
        value |= {key: getattr(self, key) for key in ("tp", "pp", "dp", "ep", "start_s", "iterations", "compute_s")}
        value |= {"hosts": list(self.hosts)}
        value |= {key: plain(getattr(self, key)) for key in ("bytes", "pp_bytes", "ep_bytes")}
        if self.flows:
            value["flows"] = list(flows_to_json(self.flows))
        return value


def _own_flow(value: Any, job: str, where: str) -> Flow:
    flow, _ = flow_from_json(value, where)
    name = flow.collective if flow.collective.startswith(f"{job}/") else f"{job}/{flow.collective or 'flows'}"
    flow = flow._replace(job=job, collective=name)
    if flow.weight <= 0 or flow.src == flow.dst:
        raise InputError(f"{where}: needs a weight of more than 0 and two different hosts")
    return flow


def jobs_from_json(value: Any, where: str) -> tuple[Job, ...]:
    """The list `jobs`, each with a name of its own."""
    if not isinstance(value, list):
        raise InputError(f"{where}: 'jobs' must be a list")
    jobs = tuple(Job.from_json(item, f"{where}: jobs[{i}]") for i, item in enumerate(value))
    seen: set[str] = set()
    for i, job in enumerate(jobs):
        if job.name in seen:
            raise InputError(f"{where}: jobs[{i}]: job {job.name!r} is given twice; give each its own name")
        seen.add(job.name)
    return jobs


def traffic_of(fabric: Clos, collectives: Iterable[Collective]) -> Traffic:
    """All flows of collectives, as if they ran at one time."""
    return Traffic(fabric, tuple(flow for collective in collectives for flow in collective.flows))
