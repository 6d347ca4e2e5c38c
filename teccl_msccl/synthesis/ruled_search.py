"""The search under rules: schedules made without them are made to keep them, and improved on by the MILP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..errors import InputError, Refused
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from ..topology.paths import direct_paths
from .epochs import EpochGrid, epochs_of
from .exact import COLUMN_S, MAX_COLUMNS, MilpReport, improve, search_exactly
from .greedy import search_greedily
from .incumbent import Incumbent
from .milp import Milp
from .problem import Problem
from .ruled import paced
from .rules import NO_RULES, Rules
from .settings import Settings

#: The share of the time for schedules without rules, and how many chunk counts are tried.
STARTS_SHARE = 0.1
FEW_COUNTS = 4
#: So many models, of the starts that are best under the rules.
MOST_MODELS = 8
#: Epochs of links that sends occupy, many each where a link's share is small, beyond which a model would not fit.
MAX_CELLS = 30_000_000
#: What a link has at least in a search for ways round it, so that there is one in any case.
LEAST_SHARE = 1e-3
#: Times that a reduction is searched on links with what they have had on the average up to its end.
ROUNDS = 3

Told = Callable[[MilpReport], None]


def check_ruled(problem: Problem, method: str, rules: Rules) -> None:
    """Raise `InputError` where rules cannot be heeded, or the MILP was not asked for."""
    if method != "milp":
        raise InputError(f"method {method} heeds no relay_chunks and no shares of links; use --method milp")
    if problem.demand(1).reducing and rules.relay_chunks is not None and _may_pass_on(problem):
        raise InputError(
            f"{problem.collective} reduces, and GPUs that have no part in it may pass sums on, of which relay_chunks "
            "says nothing; leave it out, or ask for a collective of all GPUs"
        )
    for link in rules.shares:
        if link not in problem.topology.link_by_id:
            raise InputError(f"shares of link {link}: {problem.topology.name} has no such link")


def _may_pass_on(problem: Problem) -> bool:
    """Whether some GPU neither has nor wants a chunk that may come to it."""
    everyone = problem.topology.nranks
    confined = bool(problem.groups) and all(group.confined for group in problem.groups)
    return not confined and any(len({*chunk.origin, *chunk.want}) < everyone for chunk in problem.demand(1).chunks)


def search_under_rules(incumbent: Incumbent, settings: Settings, start: Schedule | None, solved: Told) -> None:
    """The best schedules that keep the settings' rules, from `start` on; every solve of the MILP is told. Raises
    `Refused` where none can."""
    incumbent.phase = "milp"
    if incumbent.problem.demand(1).reducing:
        _search_reductions(incumbent, settings, start, solved)
    else:
        _search_copies(incumbent, settings, _starts(incumbent, settings, start), solved)


# -- what reduces ----------------------------------------------------------------------------------------------


def _search_reductions(incumbent: Incumbent, settings: Settings, start: Schedule | None, solved: Told) -> None:
    """The MILP's schedules for links with the bandwidth that they have on the average up to the end of the last
    round's, made to keep their shares.

    A reduction is searched as a copy that runs backwards, from an end in time that is not known: so the MILP is not
    told when shares change. Where they never do, the average is exact. Sums wait in GPUs' own shares, so that no GPU
    with a part in the collective is a relay.
    """
    problem, rules = incumbent.problem, settings.rules
    plain = replace(settings, rules=NO_RULES)
    if start is not None:
        free = _searching(incumbent, problem.topology, 0.0)
        free.offer_start(start)
        _offer_paced(incumbent, free, rules)
    topology, seconds = problem.topology, STARTS_SHARE * incumbent.seconds_left
    tried: list[Topology] = []
    while topology not in tried and len(tried) < ROUNDS and (incumbent.best is None or incumbent.seconds_left):
        tried.append(topology)
        search = _searching(incumbent, topology, seconds)
        search_greedily(search, replace(plain, rounds=1))
        search_exactly(search, replace(plain, thorough=True), solved)
        _offer_paced(incumbent, search, rules)
        assert incumbent.best is not None, "without rules paths are the usual ones"
        topology = _slowed(problem.topology, rules, incumbent.best.finish_us)
        seconds = incumbent.seconds_left / max(1, ROUNDS - len(tried))


def _offer_paced(incumbent: Incumbent, search: Incumbent, rules: Rules) -> None:
    """What was found without rules, as they let it be."""
    for schedule in _on_usual_paths([found for _, found in search.whole.values()], incumbent.problem.topology):
        incumbent.offer_whole(paced(schedule, rules))


def _searching(incumbent: Incumbent, topology: Topology, seconds: float) -> Incumbent:
    """An incumbent of its own for the same problem on another topology."""
    return Incumbent(replace(incumbent.problem, topology=topology), seconds, lambda progress: None)


# -- what copies -----------------------------------------------------------------------------------------------


def _search_copies(incumbent: Incumbent, settings: Settings, starts: Sequence[Schedule], solved: Told) -> None:
    """Make every start keep the settings' rules, then have the MILP improve on it until the time is up.

    The starts are schedules of the whole problem that need not keep the rules. Raises `Refused` where none can.
    """
    models, refused = [], None
    for start in sorted(starts, key=lambda start: start.finish_us):
        for name, tau in epochs_of(start.topology, start.demand, settings.epochs).items():
            try:
                model = Milp(EpochGrid(start.topology, start.demand, tau), start, settings.solver, settings.rules)
            except Refused as no:
                refused = refused or no
                continue
            started = model.started()
            incumbent.offer(0, started)
            columns = model.columns(MAX_COLUMNS + 1)
            if columns <= MAX_COLUMNS and columns * model.longest <= MAX_CELLS:
                models.append((started.finish_us, name, model, columns))
            if incumbent.seconds_left <= 0:
                return
    if refused is not None and incumbent.best is None:
        raise refused
    models = sorted(models, key=lambda entry: entry[0])[:MOST_MODELS]
    for i, (before, name, model, columns) in enumerate(models):
        seconds = incumbent.seconds_left / (len(models) - i)
        if seconds <= columns * COLUMN_S:
            continue
        solved(improve(incumbent, settings, 0, model, name, before, seconds))


def _starts(incumbent: Incumbent, settings: Settings, start: Schedule | None) -> list[Schedule]:
    """Schedules that rules are then put on: the one given, and greedy ones with few chunks, also those that avoid the
    links of which there are but shares while these last."""
    topology, seconds = incumbent.problem.topology, STARTS_SHARE * incumbent.seconds_left
    free = _searching(incumbent, topology, seconds)
    if start is not None:
        free.offer_start(start)
    starts = _few_greedy(free, settings)
    slowed = _slowed(topology, settings.rules, max(start.finish_us for start in starts))
    if slowed != topology:
        starts += _on_usual_paths(_few_greedy(_searching(incumbent, slowed, seconds), settings), topology)
    return starts


def _few_greedy(search: Incumbent, settings: Settings) -> list[Schedule]:
    """The best with few chunks."""
    search_greedily(search, replace(settings, rounds=1))
    return [search.parts[0][count] for count in sorted(search.parts[0])[:FEW_COUNTS]]


def _on_usual_paths(schedules: Sequence[Schedule], topology: Topology) -> list[Schedule]:
    """Those whose sends are on direct paths of `topology`, on it: where links have other bandwidths, others may be."""
    usual = {path.links for path in direct_paths(topology)}
    usual |= {path.links[::-1] for path in direct_paths(topology.reversed())}
    return [
        replace(schedule, topology=topology)
        for schedule in schedules
        if all(send.path in usual for send in schedule.sends)
    ]


def _slowed(topology: Topology, rules: Rules, until_us: float) -> Topology:
    """The links with what they have of their bandwidth up to then, on the average."""
    links = [
        replace(link, bandwidth_GBps=link.bandwidth_GBps * max(LEAST_SHARE, rules.mean_share(link.id, until_us)))
        for link in topology.links
    ]
    return replace(topology, links=tuple(links))
