"""Groups at once, traffic matrices and custom demands: found, bounded, proved, and back from their files."""

from __future__ import annotations

import json
import math
import random

import pytest
from exhaustive import CopySearch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import machine, machines, seeded_machine

from teccl_msccl import Demand, InputError, Refused, Schedule, Topology, lower, synthesize
from teccl_msccl.collective.custom import custom, read_demand
from teccl_msccl.collective.demand import COLLECTIVES, Chunk, Group, demand_for
from teccl_msccl.collective.groups import parse_group
from teccl_msccl.collective.matrix import alltoallv, read_matrix
from teccl_msccl.schedule.group import group_finish_us, of_group
from teccl_msccl.synthesis.ask import ask
from teccl_msccl.synthesis.bounds import lower_bound_us, lower_bounds
from teccl_msccl.synthesis.greedy import GreedySearch, in_few_sizes
from teccl_msccl.synthesis.portfolio import run


def quick(topology: Topology, collective: str, size=None, **asked) -> Schedule:
    schedule = run(ask(topology, collective, size, **asked), method="greedy", time_limit=0).schedule
    schedule.validate()
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule
    assert schedule.finish_us >= lower_bound_us(topology, schedule.demand) * (1 - 1e-9)
    return schedule


# -- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ranks", "weight"),
    [("0-3", (0, 1, 2, 3), 1), ("4,0, 2", (4, 0, 2), 1), ("0-12/4:2", (0, 4, 8, 12), 2), ("1,5-6:0.5", (1, 5, 6), 0.5)],
)
def test_groups_as_people_write_them(text, ranks, weight):
    assert parse_group(text) == Group(ranks, weight)


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("0,0", "names rank 0 twice"),
        ("0-4", "no rank 4 among 0..3"),
        ("2", "at least two"),
        ("", "no rank or range"),
        ("a-b", "no rank or range"),
        ("3-0", "no range"),
        ("0-3/0", "no range"),
        ("0,1:heavy", "no number"),
        ("0,1:-1", "weight -1"),
        ("0,1:nan", "weight nan"),
        ("0-999999999", "no range"),
    ],
)
def test_bad_groups(group, said):
    with pytest.raises(InputError, match=said):
        run(ask(Topology.load("full-4"), "allgather", "1MB", groups=[group]), method="greedy", time_limit=0)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_groups_that_share_no_link_are_as_quick_as_each_alone(collective):
    full = Topology.load("full-6")
    together = quick(full, collective, 1e6, groups=["0-2", "5,3,4"], root=1)
    alone = quick(Topology.load("full-3"), collective, 1e6, root=1)
    assert together.finish_us == pytest.approx(alone.finish_us)
    assert {group.confined for group in together.demand.groups} == {True}
    for number in (0, 1):
        part = of_group(together, number)
        part.validate()
        assert part.demand == demand_for(collective, 3, 1e6, together.demand.nchunks, 1)
        assert part.finish_us == group_finish_us(together, number)


def test_groups_share_a_link():
    """Four pairs across one wire of 25 GB/s: each direction carries all four shares of 1 MB."""
    hosts = machine("ggggggggss", [(i, 8 + i // 4, 100, 0.1) for i in range(8)] + [(8, 9, 25, 0.5)])
    schedule = quick(hosts, "alltoall", 2e6, groups=[f"{i},{i + 4}" for i in range(4)])
    assert schedule.finish_us == pytest.approx(0.7 + 4 * 1e6 / 25e3, rel=1e-3)
    assert lower_bound_us(hosts, schedule.demand) == pytest.approx(0.7 + 4 * 1e6 / 25e3, rel=1e-2)


def test_tp_and_dp_groups_at_once():
    schedule = quick(
        Topology.load("teccl-dgx1"), "allreduce", 1e6, groups=["0-3", "4-7", *(f"{i},{i + 4}" for i in range(4))]
    )
    assert max(group_finish_us(schedule, i) for i in range(6)) == schedule.finish_us
    assert schedule.demand.nchunks == 4


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("method", ["ring", "tree", "recursive-doubling", "bruck", "direct"])
def test_baselines_in_groups(method, collective):
    problem = ask(Topology.load("teccl-dgx1"), collective, 1e6, groups=["0-3", "7,6,4"], root=2)
    try:
        schedule = run(problem, method=method, time_limit=0).schedule
    except InputError as error:
        assert "does not do" in str(error)
        return
    schedule.validate()
    for number in (0, 1):
        of_group(schedule, number).validate()


def test_a_group_that_others_must_relay_for_has_a_schedule_and_no_program():
    schedule = quick(Topology.load("line-4"), "allgather", 1e6, groups=["0,3"])
    assert not schedule.demand.groups[0].confined
    with pytest.raises(Refused, match=r"GPU [12] relays data of group 0"):
        of_group(schedule, 0)


def test_a_confined_group_keeps_to_itself():
    """In a ring of 4 the GPUs 0, 1, 2 could reach each other quicker past 3."""
    schedule = quick(Topology.load("ring-4"), "allgather", 1e6, groups=["0-2"])
    assert all(3 not in schedule.ends(send) for send in schedule.sends)
    around = schedule.sends[0]._replace(path=(6,))  # 3 → 0
    with pytest.raises(Refused, match="to stay in its group, and GPU 3 is not in it"):
        Schedule(schedule.topology, schedule.demand, (*schedule.sends, around), schedule.finish_us).validate()


@pytest.mark.parametrize("method", ["auto", "lp", "milp", "trees"])
def test_every_search_keeps_groups_to_themselves(method):
    problem = ask(Topology.load("ring-4"), "alltoall", 1e6, groups=["0-2", "1-3"])
    schedule = run(problem, method=method, time_limit=1).schedule
    schedule.validate()
    for number in (0, 1):
        of_group(schedule, number).validate()


def test_priorities():
    """Two tenants on one wire: the heavier one is done when it would be alone."""
    wire = Topology.load("line-2")
    for weights, first in (((1, 100), 1), ((100, 1), 0)):
        demand = Demand(
            "custom", 2, tuple(Chunk(i, (0,), (1,), 1e6, group=i % 2) for i in range(8)), 1, 8e6,
            groups=tuple(Group((0, 1), weight) for weight in weights),
        )  # fmt: skip
        schedule = GreedySearch(wire).trial(demand, 0)
        assert group_finish_us(schedule, first) == pytest.approx(0.5 + 4 * 20)
        assert group_finish_us(schedule, 1 - first) == pytest.approx(0.5 + 8 * 20)


@settings(max_examples=15, deadline=None)
@given(machines(least=3, most=6), st.sampled_from(list(COLLECTIVES)), st.data())
def test_any_groups_on_any_machine(topology, collective, data):
    ranks = st.lists(st.integers(0, topology.nranks - 1), min_size=2, max_size=topology.nranks, unique=True)
    groups = data.draw(st.lists(ranks, min_size=1, max_size=3))
    schedule = quick(topology, collective, 1e6, groups=groups, root=data.draw(st.integers(0, 1)))
    for number, group in enumerate(schedule.demand.groups):
        if group.confined:
            of_group(schedule, number).validate()


# -- alltoallv -------------------------------------------------------------------------------------------------------


def test_a_matrix_from_a_csv(tmp_path):
    path = tmp_path / "moe.csv"
    path.write_text("# tokens of four experts\n0, 1KB, 5,0\n1,0,0x,0\n")
    with pytest.raises(InputError, match=r"moe.csv: line 3 column 3: '0x' is no number of bytes"):
        read_matrix(path)
    path.write_text("# of three experts\r\n0, 1KB, 5\r\n\r\n1,0,0\r\n2.5,0,1MiB\r\n")
    assert read_matrix(path) == [[0, 1000, 5], [1, 0, 0], [2.5, 0, 2**20]]


@pytest.mark.parametrize("text", ["1,2\n3,-4\n", "1,2\n3,\n", "1,2\n3,inf\n", "1,2\n3,nan\n", "a\n"])
def test_bad_cells(tmp_path, text):
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"m.csv: line \d column \d: .* is no number of bytes"):
        read_matrix(path)


@pytest.mark.parametrize(
    ("matrix", "size", "said"),
    [
        ([[0, 1]], None, "1 rows for 2 GPUs"),
        ([[0, 1], [1]], None, "row 1 has 1 columns"),
        ([[0, 1], [math.inf, 0]], None, "row 1 column 0"),
        ([[0, 1], [-1, 0]], None, "row 1 column 0"),
        ([[0, 0], [0, 0]], 8, "leave --size out"),
    ],
)
def test_bad_matrices(matrix, size, said):
    with pytest.raises(InputError, match=said):
        alltoallv(matrix, 2, size)


def test_a_matrix_moves_what_it_says():
    demand = alltoallv([[7, 1e6, 0], [0, 0, 3e6], [2e6, 2e6, 0]], 3)
    assert demand.size_bytes == 4e6
    assert [(c.origin, c.want, c.bytes) for c in demand.chunks] == [
        ((0,), (0,), 7), ((0,), (1,), 1e6), ((1,), (2,), 3e6), ((2,), (0,), 2e6), ((2,), (1,), 2e6)
    ]  # fmt: skip
    full = Topology.load("full-3")
    schedule = quick(full, "alltoallv", matrix=[[7, 1e6, 0], [0, 0, 3e6], [2e6, 2e6, 0]])
    assert schedule.demand.collective == "alltoallv"
    assert schedule.finish_us >= 0.5 + 3e6 / 2 / 50e3
    scaled = alltoallv([[7, 1e6, 0], [0, 0, 3e6], [2e6, 2e6, 0]], 3, 4e3)
    assert [c.bytes for c in scaled.chunks] == pytest.approx([0.007, 1e3, 3e3, 2e3, 2e3])


def test_an_even_matrix_is_an_alltoall():
    star = Topology.load("star-5")
    even = quick(star, "alltoallv", matrix=[[2e5] * 5] * 5)
    assert even.finish_us == pytest.approx(quick(star, "alltoall", 1e6).finish_us)
    assert lower_bound_us(star, even.demand) == pytest.approx(lower_bound_us(star, demand_for("alltoall", 5, 1e6)))
    assert {b.term for b in lower_bounds(star, even.demand)} >= {"flow", "ingress", "egress"}


@settings(max_examples=40, deadline=None)
@given(machines(most=5), st.randoms(use_true_random=False), st.sampled_from(["greedy", "direct", "bruck"]))
def test_any_matrix_on_any_machine(topology, rng, method):
    n = topology.nranks
    matrix = [[rng.choice([0, 0, 1, 5e4, 1e6]) for _ in range(n)] for _ in range(n)]
    problem = ask(topology, "alltoallv", matrix=matrix)
    result = run(problem, method=method, time_limit=0)
    result.schedule.validate()
    assert result.gap >= 0
    moved = [[0.0] * n for _ in range(n)]
    for chunk in result.schedule.demand.chunks:
        moved[chunk.origin[0]][chunk.want[0]] += chunk.bytes
    assert moved == [pytest.approx(row) for row in matrix]


def test_many_sizes_are_searched_as_few_and_timed_as_they_are():
    rng = random.Random(3)
    star = Topology.load("star-8")
    demand = alltoallv([[rng.randint(1, 10**6) for _ in range(8)] for _ in range(8)], 8)
    few = in_few_sizes(demand)
    assert len({chunk.bytes for chunk in demand.chunks}) == 64 > len({chunk.bytes for chunk in few.chunks})
    assert all(0.95 < a.bytes / b.bytes < 1.05 for a, b in zip(demand.chunks, few.chunks, strict=True))
    schedule = GreedySearch(star).trial(demand, 0)
    schedule.validate()
    assert schedule.demand is demand
    assert schedule.finish_us < 2 * lower_bound_us(star, demand)
    even = demand_for("alltoall", 8, 1e6)
    assert in_few_sizes(even) is even


def test_pieces_are_no_larger_than_the_largest_ones():
    demand = alltoallv([[0, 8e6, 1e6], [3e6, 0, 0], [0, 0, 0]], 3).split(4)
    assert [chunk.bytes for chunk in demand.chunks] == [2e6] * 4 + [1e6] + [1.5e6] * 2
    assert [chunk.id for chunk in demand.chunks] == list(range(7))
    assert demand_for("allgather", 3, 12).split(4) == demand_for("allgather", 3, 12, 4)


# -- custom ----------------------------------------------------------------------------------------------------------

MIXED = {
    "chunks": [
        {"origin": [0], "want": [1, 2, 3]},
        {"origin": [1, 2, 3], "want": [0], "reduce": True},
        {"origin": [1, 2], "want": [1, 2, 3], "reduce": True},
        {"origin": [3], "want": []},
    ]
}


@pytest.mark.parametrize("name", ["line-4", "star-4", "torus-2x2"])
@pytest.mark.parametrize("method", ["greedy", "direct"])
def test_copies_and_reductions_in_one_demand(name, method):
    problem = ask(Topology.load(name), "custom", 4e6, demand=MIXED)
    result = run(problem, method=method, time_limit=0)
    result.schedule.validate()
    assert result.gap >= 0
    assert Schedule.from_json(result.schedule.to_json()) == result.schedule
    with pytest.raises(Refused, match="custom"):
        lower(result.schedule)


def test_the_milp_takes_a_custom_demand():
    demand = {"chunks": [{"origin": [0], "want": [1, 2]}, {"origin": [1], "want": [2]}]}
    result = run(ask(Topology.load("line-3"), "custom", 2e6, demand=demand), method="milp", time_limit=5)
    result.schedule.validate()
    assert result.schedule.finish_us >= result.bound_us * (1 - 1e-9)


def test_no_schedule_beats_the_bound_of_a_custom_demand():
    decided = 0
    for seed in range(120):
        rng = random.Random(seed)
        topology = seeded_machine(seed, most=4)
        n = topology.nranks
        wants = [(rng.randrange(n), rng.sample(range(n), rng.randint(1, n))) for _ in range(rng.randint(1, 3))]
        demand = Demand("custom", n, tuple(Chunk(i, (o,), tuple(w), 1e5) for i, (o, w) in enumerate(wants)), 1, 1e5)
        bound = lower_bound_us(topology, demand)
        if bound == 0:  # nothing moves
            continue
        beaten = CopySearch(topology, demand).beats(bound * (1 - 1e-9), steps=250)
        assert not beaten, f"seed {seed}"
        decided += beaten is not None
    assert decided > 80


@pytest.mark.parametrize(
    ("value", "size", "said"),
    [
        ([], 1.0, "a demand is an object"),
        ({"chunks": {}}, 1.0, "a demand is an object"),
        ({"chunks": [3]}, 1.0, r"chunks\[0\]: must be an object"),
        ({"chunks": [{"origin": [0]}]}, 1.0, r"chunks\[0\]: 'want' is missing"),
        ({"chunks": [{"origin": 0, "want": [1]}]}, 1.0, r"chunks\[0\]: origin: must be a list"),
        ({"chunks": [{"origin": [0], "want": [9]}]}, 1.0, "no rank 9 among 0..3"),
        ({"chunks": [{"origin": [0], "want": [1, 1]}]}, 1.0, "names a rank twice"),
        ({"chunks": [{"origin": [0], "want": [1], "id": 4}]}, 1.0, "number chunks 0, 1, 2"),
        ({"chunks": [{"origin": [0, 1], "want": [2]}]}, 1.0, "has one origin"),
        ({"chunks": [{"origin": [0], "want": [1]}]}, None, "give a --size"),
        ({"chunks": [{"origin": [0], "want": [1], "bytes": 1}, {"origin": [0], "want": [1]}]}, None, "'bytes' is miss"),
        ({"chunks": [{"origin": [0], "want": [1], "bytes": -1}]}, None, "-1.0; it must be"),
        ({"chunks": [{"origin": [0], "want": [1], "group": 1}]}, 1.0, "there is no group 1"),
        ({"chunks": [{"origin": [0], "want": [1]}], "groups": [{"ranks": [1, 2]}]}, 1.0, "rank 0 is not in its group"),
        ({"chunks": [{"origin": [0], "want": [1]}], "groups": 3}, 1.0, "'groups' must be a list"),
    ],
)
def test_bad_demands(value, size, said):
    with pytest.raises(InputError, match=said) as refused:
        custom(value, 4, size)
    assert "\n" not in str(refused.value)


def test_bytes_and_sizes(tmp_path):
    path = tmp_path / "demand.json"
    path.write_text(json.dumps({"chunks": [{"origin": [0], "want": [1], "bytes": n} for n in (1, 3)]}))
    assert [chunk.bytes for chunk in read_demand(path, 2).chunks] == [1, 3]
    assert [chunk.bytes for chunk in read_demand(path, 2, 8e6).chunks] == [2e6, 6e6]
    assert read_demand(path, 2, 8e6).size_bytes == 8e6


@pytest.mark.parametrize("method", ["greedy", "direct"])
def test_an_unreachable_gpu_and_chunk_are_named(method):
    """A confined tenant whose GPUs have no way among themselves."""
    demand = {"chunks": [{"origin": [0], "want": [2]}], "groups": [{"ranks": [0, 2], "confined": True}]}
    problem = ask(Topology.load("line-3"), "custom", 1.0, demand=demand)
    with pytest.raises(Refused, match="GPU 2 cannot be reached by chunk 0"):
        run(problem, method=method, time_limit=0)


# -- what goes together ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "asked", "said"),
    [
        ("allgather", {}, "of what size"),
        ("alltoallv", {"size": 8}, "--matrix"),
        ("custom", {"size": 8}, "--demand"),
        ("allgather", {"size": 8, "matrix": [[0]]}, "alltoallv and a matrix go together"),
        ("allgather", {"size": 8, "demand": {}}, "custom and a demand go together"),
        ("alltoallv", {"matrix": [[0, 1], [1, 0]], "groups": ["0,1"]}, "takes no groups"),
        ("algather", {"size": 8}, "did you mean allgather"),
    ],
)
def test_what_does_not_go_together(collective, asked, said):
    with pytest.raises(InputError, match=said):
        ask(Topology.load("line-2"), collective, **asked)


@pytest.mark.parametrize("size", [0, 1, 1e15])
def test_absurd_sizes(size):
    topology = Topology.load("star-4")
    for schedule in (
        quick(topology, "allreduce", size, groups=["0-2", "1-3"]),
        quick(topology, "custom", size, demand=MIXED),
        quick(topology, "alltoallv", matrix=[[size] * 4] * 4),
    ):
        assert math.isfinite(schedule.finish_us)


def test_from_python():
    wire = Topology.load("line-2")
    assert synthesize(wire, "alltoall", matrix=[[0, 1e6], [0, 0]], time_limit=0).finish_us == pytest.approx(20.5)
    assert synthesize(wire, "broadcast", "1MB", groups=[(0, 1)], time_limit=0).demand.groups[0].ranks == (0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"root": "1"}, {"root": 1.5}, {"groups": [0, 1]}, {"groups": [(0.5, 1)]}, {"method": None}, {"solver": None},
        {"epochs": 3}, {"time_limit": "5"}, {"time_limit": None}, {"time_limit": math.nan}, {"nchunks": 2.5},
        {"nchunks": "2"}, {"seed": "a"}, {"jobs": 1.5}, {"jobs": None}, {"start": "nowhere.json"},
    ],
)  # fmt: skip
def test_bad_arguments_from_python_are_named(wrong):
    """As the docstring says, whatever their type."""
    with pytest.raises(InputError, match=r"whole number|unknown|number of seconds|several ranks|cannot read"):
        synthesize(Topology.load("ring-4"), "broadcast", "1MB", **{"time_limit": 0, **wrong})


@pytest.mark.parametrize("matrix", [3, [1, 2], [["1MB", 0], [0, 0]], [[None, 0], [0, 0]]])
def test_a_matrix_of_no_numbers(matrix):
    with pytest.raises(InputError, match=r"matrix: .*rows of bytes"):
        synthesize(Topology.load("line-2"), "alltoallv", matrix=matrix, time_limit=0)


def test_what_a_command_line_would_say_is_understood(tmp_path):
    """One group, one lost part, a start's file, a topology's path."""
    ring = Topology.load("ring-4")
    assert synthesize(ring, "allgather", "1MB", groups="0-1", time_limit=0).demand.groups[0].ranks == (0, 1)
    healthy = synthesize(ring, "allgather", "1MB", time_limit=0)
    healthy.write(tmp_path / "healthy.json")
    repaired = synthesize(ring, "allgather", "1MB", without="link:0-1", start=tmp_path / "healthy.json", time_limit=0)
    assert len(repaired.topology.links) == len(ring.links) - 2
    ring.write(tmp_path / "ring.json")
    assert Topology.load(tmp_path / "ring.json") == ring
