"""Which program serves a call: rank 0 of the group looks into the store or synthesizes, the others take its word."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from ..errors import InputError, Refused
from ..program import xml
from ..program.program import Program
from ..topology.model import Topology
from .plan import Plan, plans_of
from .rounds import Rounds, rounds_of

#: Sizes between which one synthesized program serves, in bytes.
_CLASSES = (1 << 16, 1 << 20, 1 << 24)
#: Seconds that rank 0 may search on a store miss.
SEARCH_SECONDS = 0.3
IN_PLACE = frozenset({"allreduce", "broadcast"})


@dataclass
class Served:
    """A program and the sizes it serves; `plan(slices)` is this rank's, `plans` those of all ranks."""

    program: Program
    min_bytes: int
    max_bytes: int
    source: str
    rank: int

    def __post_init__(self) -> None:
        self.plan = lru_cache(None)(self._plan)

    def _plan(self, slices: int) -> Plan:
        return self.plans(slices)[self.rank]

    def plans(self, slices: int = 1, buffered: bool = False) -> list[Plan]:
        return plans_of(self.program, self.program.collective in IN_PLACE, slices, buffered)

    def rounds(self) -> Rounds:
        """This rank's, for groups whose messages go together."""
        return rounds_of(self.program, self.program.collective in IN_PLACE)[self.rank]


class Programs:
    """A group's programs. `tell` and `ask` exchange texts between its ranks: rank 0 tells, all others ask."""

    def __init__(
        self, rank: int, size: int, world: bool, tell: Callable[[str, bytes], None], ask: Callable[[str], bytes]
    ) -> None:
        self.rank, self.size, self._world = rank, size, world
        self._tell, self._ask = tell, ask
        self._served: dict[tuple[str, int], list[Served | _Unserved]] = {}

    def find(self, collective: str, nbytes: int, root: int) -> Served:
        """The program for a call of `nbytes` (as nccl-tests count). All ranks must ask for the same calls in the same
        order. Raises `Refused` where there is none, which the ranks agree on too."""
        known = self._served.setdefault((collective, root), [])
        for each in known:
            if each.min_bytes <= nbytes < each.max_bytes:
                if isinstance(each, _Unserved):
                    raise Refused(each.reason)
                return each
        key = f"{collective}/{root}/{len(known)}"
        if self.rank == 0:
            said = json.dumps(self._decide(collective, nbytes, root))
            self._tell(key, said.encode())
        else:
            said = self._ask(key).decode()
        value = json.loads(said)
        low, high = value["min_bytes"], value["max_bytes"]
        if value["refused"]:
            known.append(_Unserved(low, high, value["refused"]))
            raise Refused(value["refused"])
        program = xml.parse(value["xml"].encode(), value["source"], "executor")
        known.append(Served(program, low, high, value["source"], self.rank))
        return self.find(collective, nbytes, root)

    # -- rank 0 ---------------------------------------------------------------------------------------------

    def _decide(self, collective: str, nbytes: int, root: int) -> dict[str, Any]:
        edges = (0, *_CLASSES, 1 << 62)
        low, high = next((a, b) for a, b in pairwise(edges) if a <= nbytes < b)
        answer: dict[str, Any] = {"min_bytes": low, "max_bytes": high, "refused": "", "xml": "", "source": ""}
        try:
            topology, misfit = self._topology()
            found = None if misfit else self._from_store(topology, collective, nbytes, root)
            if found is None:
                program = _synthesized(topology, collective, max(nbytes, 1), root)
                source = f"synthesized for {topology.name}"
            else:
                program, source, answer["min_bytes"], answer["max_bytes"] = found
            plans_of(program, collective in IN_PLACE)
            return answer | {"xml": xml.to_text(program), "source": source}
        except (InputError, Refused) as error:
            return answer | {"refused": str(error)}
        except Exception as error:  # the others wait for an answer, whatever happens here
            return answer | {"refused": f"{type(error).__name__}: {error}"}

    def _topology(self) -> tuple[Topology, bool]:
        """$TECCL_TOPOLOGY's, or this machine's where it has as many GPUs as the group; else all joined to all. Whether
        the latter."""
        from ..topology.catalog import load

        named = os.environ.get("TECCL_TOPOLOGY")
        if named and self._world:
            topology = load(named).topology
            if topology.nranks != self.size:
                raise InputError(
                    f"TECCL_TOPOLOGY={named} has {topology.nranks} GPUs, and the job {self.size} ranks; name theirs"
                )
            return topology, False
        if not named and self._world:
            try:
                detected = load("local").topology
                if detected.nranks == self.size:
                    return detected, False
            except (InputError, Refused):
                pass
        return load(f"full-{self.size}").topology, not self._world

    def _from_store(
        self, topology: Topology, collective: str, nbytes: int, root: int
    ) -> tuple[Program, str, int, int] | None:
        """What the store has. A store that is damaged is an error, one that has nothing is a miss."""
        from ..collective.demand import ROOTED
        from ..store.store import Store

        store = Store()
        if not store.folders():
            return None
        try:
            machine = store.find(topology)
        except Refused:
            return None
        entry = machine.select(collective, nbytes, "executor", root if collective in ROOTED else None)
        wanted = "inplace" if collective in IN_PLACE else "outofplace"
        if entry is None or entry.mode not in ("both", wanted):
            return None
        return machine.program(entry), f"{machine.folder / entry.file}", entry.min_bytes, entry.max_bytes


@dataclass
class _Unserved:
    min_bytes: int
    max_bytes: int
    reason: str


def _synthesized(topology: Topology, collective: str, nbytes: int, root: int) -> Program:
    """A program made in seconds. Raises `Refused`."""
    from ..program.check import check
    from ..program.fastest import fastest
    from ..program.lower import lower
    from ..synthesis.portfolio import run
    from ..synthesis.problem import Problem
    from ..synthesis.settings import Settings

    began = time.monotonic()
    settings = Settings(jobs=1, nchunks=1 if collective != "broadcast" else None)
    synthesis = run(
        Problem(topology, collective, float(nbytes), root), settings, method="greedy", time_limit=SEARCH_SECONDS
    )
    build = partial(lower, protocol="Simple", instances=1, spread=1, fuse=False, unroll=False)
    schedule, program = fastest(synthesis.schedules, build, synthesis.seconds_left)
    verdict = check(program, root=schedule.demand.root)
    if not verdict.ok:
        raise Refused(f"the program synthesized in {time.monotonic() - began:.1f} s does not pass the checker")
    return program
