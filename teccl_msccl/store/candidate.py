"""A candidate: one program for one size, synthesized, proved and executed; kept, so that no builder makes it twice."""

from __future__ import annotations

import fcntl
import hashlib
import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import InputError, Refused
from ..files import write_text
from ..program.program import Program
from ..topology.model import Topology

#: Elements of a chunk when a candidate is executed.
_ELEMENTS = 3


@dataclass(frozen=True)
class Job:
    """What to make. `seconds` limits the search; baselines need none."""

    topology: str
    collective: str
    root: int | None
    size_bytes: int
    target: str
    method: str
    seconds: float

    @property
    def name(self) -> str:
        """The same for the same work, on the same version."""
        import teccl_msccl

        said = json.dumps([asdict(self), teccl_msccl.__version__], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    def __str__(self) -> str:
        return f"{self.collective} {self.size_bytes} bytes {self.target} {self.method}"


@dataclass(frozen=True)
class Candidate:
    """What came of a job: the program's text, or why there is none (`refused`)."""

    job: Job
    xml: str
    method: str
    bound_us: float
    refused: str

    def program(self) -> Program:
        from ..program import xml

        return xml.parse(self.xml.encode(), str(self.job), self.job.target)


def made(job: Job, folder: str) -> Candidate:
    """The candidate of `job` from `folder`, made first if it is not there (by one builder at a time)."""
    path = Path(folder) / f"{job.name}.json"
    if (done := _kept(path, job)) is not None:
        return done
    try:
        lock = open(Path(folder) / f"{job.name}.lock", "a", encoding="ascii")  # noqa: SIM115 (held below)
    except OSError as error:
        raise InputError(f"{folder}: cannot write the store: {error.strerror}; choose another --store") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (done := _kept(path, job)) is not None:
            return done
        candidate = _make(job)
        body = json.dumps(asdict(candidate), sort_keys=True)
        write_text(path, json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "candidate": body}))
        return candidate


def _kept(path: Path, job: Job) -> Candidate | None:
    """What an earlier builder left, unless it is damaged or of another job."""
    try:
        value: Any = json.loads(path.read_bytes())
        body = value["candidate"]
        if hashlib.sha256(body.encode()).hexdigest() != value["sha256"]:
            return None
        fields = json.loads(body)
        candidate = Candidate(**fields | {"job": Job(**fields["job"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return candidate if candidate.job == job else None


def _make(job: Job) -> Candidate:
    from ..files import parse_json
    from ..program import xml
    from ..program.fastest import fastest
    from ..program.lower import lower
    from ..synthesis.portfolio import run
    from ..synthesis.problem import Problem
    from ..synthesis.settings import Settings

    topology = Topology.from_json(parse_json(job.topology.encode(), "topology", "the topology"))
    try:
        problem = Problem(topology, job.collective, float(job.size_bytes), job.root or 0)
        synthesis = run(problem, Settings(jobs=1), method=job.method, time_limit=job.seconds)
        _, program = fastest(synthesis.schedules, partial(lower, target=job.target), synthesis.seconds_left)
        _prove(program, job)
    except Refused as refusal:
        return Candidate(job, "", job.method, 0.0, str(refusal))
    return Candidate(job, xml.to_text(program), synthesis.method, synthesis.bound_us, "")


def _prove(program: Program, job: Job) -> None:
    """Check the program and execute it over threads. Raises `Refused` if it is wrong."""
    from ..program.check import check
    from ..runtime.elements import DTYPES
    from ..runtime.sweep import Sweep, measure
    from ..runtime.threads import ThreadWorld
    from ..runtime.world import Settings

    verdict = check(program, root=job.root)
    if not verdict.ok:
        first = next(finding for finding in verdict.findings if finding.level == "error")
        raise Refused(f"{job}: {first.code}: {first.text}")
    sweep = Sweep((_ELEMENTS * 4 * program.chunks_per_size,), (DTYPES["int32"],), ("sum",), iterations=1, warmup=0)
    for case in sweep.cases(program, verdict.root, str(job)):
        row = measure(ThreadWorld(program.nranks), case, sweep, Settings(workers=1, timeout=60))
        if row.wrong or row.out_of_bounds:
            raise Refused(f"{job}: computes wrong elements: {row.first_wrong}")
