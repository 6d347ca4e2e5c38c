"""Schedule files of other tools: written here in their form, read back, proved, timed and executed."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered import greedy, require_right
from strategies_lower import problems

from teccl_msccl.cli import main
from teccl_msccl.collective.demand import COLLECTIVES, demand_for
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program import xml
from teccl_msccl.program.lower import lower
from teccl_msccl.schedule.foreign import Pattern, named
from teccl_msccl.schedule.read import read_schedule
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.model import Topology

unhurried = settings(deadline=None, max_examples=12)


def save(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def deliveries(schedule: Schedule) -> Counter[tuple[int, int, int, bool]]:
    return Counter((send.chunk, *schedule.ends(send), send.reduce) for send in schedule.sends)


# -- our own -------------------------------------------------------------------------------------------------------


def test_ours_as_it_is_and_at_another_size(tmp_path: Path) -> None:
    topology = load("ring-4").topology
    schedule = greedy(Problem(topology, "allgather", 1e6), 2)
    schedule.write(tmp_path / "ours.json")
    assert read_schedule(tmp_path / "ours.json") == schedule
    larger = read_schedule(tmp_path / "ours.json", size_bytes=4e6)
    assert larger.demand == demand_for("allgather", 4, 4e6, 2)
    larger.validate()
    alpha = min(link.alpha_us for link in topology.links)
    assert schedule.finish_us < larger.finish_us <= 4 * schedule.finish_us - 3 * alpha + 1e-6
    with pytest.raises(InputError, match="leave --topology out"):
        read_schedule(tmp_path / "ours.json", topology)


# -- TE-CCL --------------------------------------------------------------------------------------------------------


def teccl_ids(topology: Topology) -> dict[int, int]:
    """Node ids as TE-CCL numbers them, switches first, so that ranks are not ids."""
    others = [node.id for node in topology.nodes if node.rank is None]
    return {node: i for i, node in enumerate([*others, *topology.gpus])}


def teccl(schedule: Schedule, epoch_us: float = 0.5) -> dict[str, Any]:
    """An allgather, or an alltoall whose shares of a pair are fractions of one chunk, in TE-CCL's words."""
    topology, demand = schedule.topology, schedule.demand
    id = teccl_ids(topology)
    k, whole = demand.nchunks, demand.collective == "allgather"
    flows = []
    for send in schedule.sends:
        src, dst = (id[topology.gpus[rank]] for rank in schedule.ends(send))
        source = id[topology.gpus[demand.chunks[send.chunk].origin[0]]]
        chunk = send.chunk % k if whole else send.chunk // k % demand.nranks
        volume = "" if whole else f" with volume {round(1 / k, 9)}"
        via = [str(id[topology.link_by_id[link].src]) for link in send.path[1:]]
        switches = f" via switches {','.join(via)}" if via else ""
        # An epoch for every position in time: what follows starts in a later one.
        epoch = round(send.start_us / epoch_us * 1000)
        flows.append(f"Chunk {chunk} from {source} traveled over {src}->{dst}{volume} in epoch {epoch}{switches}")
    Random(7).shuffle(flows)
    head = {"1-Epoch_Duration": epoch_us / 1e9, "3-Epochs_Required": 9}
    met = {"6-Demand_Met": {f"GPU {id[gpu]}": {} for gpu in topology.gpus}} if whole else {}
    return {**head, **met, "7-Flows": flows, "Solver_Time": 1.0}


@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
@pytest.mark.parametrize("nchunks", [1, 2, 3])
@pytest.mark.parametrize("preset", ["teccl-dgx1", "star-5", "dgx-a100"])
def test_teccl(preset: str, collective: str, nchunks: int, tmp_path: Path) -> None:
    topology = load(preset).topology
    schedule = greedy(Problem(topology, collective, 1e6), nchunks)
    path = save(tmp_path / "teccl.json", teccl(schedule))
    read = read_schedule(path, topology, 1e6)
    assert (read.demand.collective, read.demand.nchunks) == (collective, nchunks)
    read.validate()
    assert read.finish_us <= schedule.finish_us * (1 + 1e-9) or preset == "dgx-a100"  # there, other paths tie
    if preset == "star-5":
        program = lower(read)
        require_right(program, read, slots=(1, 2))
    # Without a topology the file's own links, as fast as its epochs say: still a schedule that is right.
    read_schedule(path).validate()


@unhurried
@given(problem=problems(("allgather", "alltoall"), sizes=(1e6,)), nchunks=st.integers(1, 4), seed=st.integers(0, 9))
def test_teccl_anywhere(problem: Problem, nchunks: int, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    schedule = greedy(problem, nchunks, seed)
    path = save(tmp_path_factory.mktemp("t") / "teccl.json", teccl(schedule))
    read = read_schedule(path, problem.topology, 1e6)
    read.validate()
    assert read.demand.nchunks == nchunks
    if problem.collective == "allgather":
        assert deliveries(read) == deliveries(schedule)


def flows(*lines: str, met: bool = True) -> dict[str, Any]:
    return {"1-Epoch_Duration": 1e-6, "7-Flows": list(lines)} | ({"6-Demand_Met": {}} if met else {})


def test_teccl_fractions_by_several_ways(tmp_path: Path) -> None:
    """A third of GPU 1's chunk for GPU 3 goes through GPU 2, the rest straight: three shares."""
    lines = [
        f"Chunk {dst - 1} from {src} traveled over {src}->{dst} with volume 1.0 in epoch 0"
        for src in (1, 2, 3)
        for dst in (1, 2, 3)
        if src != dst and (src, dst) != (1, 3)
    ]
    lines += [
        "Chunk 2 from 1 traveled over 1->3 with volume 0.6666667 in epoch 1",
        "Chunk 2 from 1 traveled over 1->2 with volume 0.3333333 in epoch 1",
        "Chunk 2 from 1 traveled over 2->3 with volume 0.3333333 in epoch 4",
    ]
    schedule = read_schedule(save(tmp_path / "t.json", flows(*lines, met=False)), load("full-3").topology, 9e6)
    assert schedule.demand.nchunks == 3
    mine = [chunk.id for chunk in schedule.demand.chunks if (chunk.origin, chunk.want) == ((0,), (2,))]
    moved = sorted(schedule.ends(send) for send in schedule.sends if send.chunk in mine)
    assert moved == [(0, 1), (0, 2), (0, 2), (1, 2)]
    # 0.37 of it has no small denominator: the nearest of the rough shares.
    rough = [line.replace("0.3333333", "0.3707").replace("0.6666667", "0.6293") for line in lines]
    schedule = read_schedule(save(tmp_path / "t.json", flows(*rough, met=False)), load("full-3").topology, 9e6)
    mine = [chunk.id for chunk in schedule.demand.chunks if (chunk.origin, chunk.want) == ((0,), (2,))]
    assert Counter(schedule.ends(send) for send in schedule.sends if send.chunk in mine)[0, 2] == 5
    schedule.validate()


PAIR = ("Chunk 0 from 1 traveled over 1->2 in epoch 0", "Chunk 0 from 2 traveled over 2->1 in epoch 0")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (flows(), "no flows"),
        (flows("Chunk 0 goes 1->2"), r"7-Flows\[0\]: not understood"),
        (flows(*PAIR, 3), r"7-Flows\[2\]: not understood"),  # type: ignore[arg-type]
        (flows("Chunk 0 from 1 traveled over 1->2 with volume nan. in epoch 0"), "not understood"),
        (flows("Chunk 0 from 1 traveled over 1->2 with volume 1e in epoch 0"), "is no number"),
        (flows(*PAIR, "Chunk 0 from 1 traveled over 1->3 in epoch 1"), "node 3 takes part"),
        (flows(*PAIR, "Chunk 0 from 1 traveled over 1->2 in epoch 0 via switches 2"), "node 2 is a switch and has"),
        (flows(*PAIR, "Chunk 1 from 1 traveled over 2->1 in epoch 3"), "last round only"),
        (flows(*PAIR[:1], "Chunk 0 from 2 traveled over 2->1 with volume 0.5 in epoch 0"), "cannot be copied on"),
        (flows(PAIR[0].replace("Chunk 0", "Chunk 999999999"), PAIR[1]), "a number too high"),
        (flows(*PAIR) | {"1-Epoch_Duration": -1}, "1-Epoch_Duration is -1"),
        (flows(*PAIR) | {"1-Epoch_Duration": True}, "1-Epoch_Duration is True"),
        ({"7-Flows": {}}, "must be a list"),
        (flows("Chunk 1 from 1 traveled over 1->2 with volume 0.5 in epoch 0",
               "Chunk 0 from 2 traveled over 2->1 with volume 1.0 in epoch 0", met=False), "0.5 of a chunk arrives"),
    ],
)  # fmt: skip
def test_teccl_faults(content: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_schedule(save(tmp_path / "bad.json", content))
    assert str(tmp_path / "bad.json") in str(caught.value)


def test_teccl_unmet_demand_is_refused(tmp_path: Path) -> None:
    lines = (*PAIR, "Chunk 1 from 1 traveled over 1->2 in epoch 1")  # GPU 2 has a chunk 1 too, and keeps it
    with pytest.raises(Refused, match="GPU 0 never gets chunk 3"):
        read_schedule(save(tmp_path / "bad.json", flows(*lines)))


def test_the_wrong_topology(tmp_path: Path) -> None:
    path = save(tmp_path / "t.json", flows(*PAIR))
    with pytest.raises(InputError, match="is for 2 GPUs, but ring-8 has 8"):
        read_schedule(path, load("ring-8").topology)
    round_trip = ("Chunk 0 from 1 traveled over 1->3 in epoch 0", "Chunk 0 from 2 traveled over 2->3 in epoch 0")
    line = flows(*PAIR, *round_trip, "Chunk 0 from 3 traveled over 3->2 in epoch 0")
    with pytest.raises(InputError, match="GPU 1 sends to GPU 3"):
        read_schedule(save(tmp_path / "t.json", line), load("line-3").topology)


# -- SCCL and TACCL ------------------------------------------------------------------------------------------------


def sccl(schedule: Schedule, *, tacclish: bool = False) -> dict[str, Any]:
    """The schedule as SCCL or TACCL would write it; a step for every moment in which something starts."""
    demand, n = schedule.demand, schedule.demand.nranks
    kind = "sccl_type" if tacclish else "msccl_type"
    chunks = [
        {kind: "chunk", "pre": [rank], "post": list(chunk.want), "addr": chunk.id}
        for chunk in demand.chunks
        for rank in chunk.origin
    ]
    steps: list[dict[str, Any]] = []
    for time in sorted({send.start_us for send in schedule.sends}):
        sends = [
            [send.chunk, *schedule.ends(send), *([round(time * 1e4), 0] if tacclish else [])]
            for send in schedule.sends
            if send.start_us == time
        ]
        steps.append({kind: "step", "rounds": 1, "sends": sends})
    links = [[0] * n for _ in range(n)]
    for src, dst in map(schedule.ends, schedule.sends):
        links[dst][src] = links[src][dst] = 1
    machine: dict[str, Any] = {kind: "topology", "name": "made", "links": links, "switches": []}
    if tacclish:
        machine |= {"copies": 1, "ngpus_per_node": n, "node_links": links, "node_invbws": links, "remote_invbw": 0}
    return {
        kind: "algorithm",
        "name": "made",
        "instance": {kind: "instance", "chunks": demand.nchunks},
        "collective": {kind: "collective", "name": "made", "nodes": n, "chunks": chunks, "triggers": {}},
        "topology": machine,
        "steps": steps,
    }


@pytest.mark.parametrize("tacclish", [False, True])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_sccl_and_taccl(collective: str, tacclish: bool, tmp_path: Path) -> None:
    topology = load("ring-4").topology
    schedule = greedy(Problem(topology, collective, 1e6, 1), 2)
    # One GPU's sends at one moment are one step; what starts later may need what came before.
    path = save(tmp_path / "sccl.json", sccl(schedule, tacclish=tacclish))
    read = read_schedule(path, topology, 1e6)
    assert read.demand == schedule.demand
    assert deliveries(read) == deliveries(schedule)
    assert read.extra["imported_from"] == ("TACCL" if tacclish else "SCCL")
    require_right(lower(read), read, slots=(2,))
    own = read_schedule(path)  # on the file's own links
    assert own.topology.nranks == 4 and own.finish_us > 0


def test_taccl_machines(tmp_path: Path) -> None:
    """Copies of a node take µs per chunk as the file says, within and between them."""
    schedule = greedy(Problem(load("full-4").topology, "allgather", 4.0), 1)
    content = sccl(schedule, tacclish=True)
    content["topology"] |= {"copies": 2, "ngpus_per_node": 2, "node_invbws": [[0, 3.0], [3.0, 0]], "remote_invbw": 8.0}
    read = read_schedule(save(tmp_path / "t.json", content))
    assert read.finish_us == pytest.approx(8.0)
    content["topology"]["remote_invbw"] = 0
    with pytest.raises(InputError, match="remote_invbw is 0"):
        read_schedule(save(tmp_path / "t.json", content))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("msccl_type", "step", "is an SCCL step"),
        ("steps", None, "steps: must be a list"),
        ("steps.0.sends", 7, "sends: must be a list"),
        ("steps.0.sends.0", [0], r"must be \[address"),
        ("steps.0.sends.0", [0, 0, 9], "rank: must be a whole number from 0 to 2"),
        ("steps.0.sends.0", [77, 0, 1], "no chunk has address 77"),
        ("steps.0.sends.0", [0, 1, 2], "rank 1 has nothing of address 0"),
        ("collective.nodes", 0, "nodes: must be a whole number from 1"),
        ("collective.nodes", 10**9, "nodes: must be a whole number from 1"),
        ("collective.chunks.0.pre", [], "needs one rank in pre"),
        ("collective.chunks.0.post", [0], "those of no collective"),
        ("topology.links", [[0]], "must be 3 rows of 3 numbers"),
        ("topology", {}, "'links' is missing"),
    ],
)
def test_sccl_faults(path: str, value: Any, words: str, tmp_path: Path) -> None:
    content: Any = sccl(greedy(Problem(load("full-3").topology, "allgather", 3.0), 1))
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = content
    for key in way:
        place = place[key]
    place[last] = value
    with pytest.raises(InputError, match=words):
        read_schedule(save(tmp_path / "bad.json", content))


@given(
    nranks=st.integers(2, 5), nchunks=st.integers(1, 3), collective=st.sampled_from(list(COLLECTIVES)), data=st.data()
)
def test_collectives_are_recognised(nranks: int, nchunks: int, collective: str, data: st.DataObject) -> None:
    demand = demand_for(collective, nranks, 1.0, nchunks, nranks - 1)
    order = data.draw(st.permutations(range(len(demand.chunks))))
    patterns = [
        Pattern(*(demand.chunks[i].origin, demand.chunks[i].want[::-1], demand.chunks[i].reduce)) for i in order
    ]
    name, root, chunks, ids = named(patterns, nranks, "here")
    found = demand_for(name, nranks, 1.0, chunks, root)
    assert sorted(ids) == list(range(len(demand.chunks)))
    for pattern, id in zip(patterns, ids, strict=True):
        chunk = found.chunks[id]
        assert (set(chunk.origin), set(chunk.want), chunk.reduce) == (
            set(pattern.origin),
            set(pattern.want),
            pattern.reduce,
        )
    assert found == demand


# -- ForestColl ----------------------------------------------------------------------------------------------------


def forestcoll(hosts: int, gpus: int) -> str:
    """Every GPU's two trees: to its own host's GPUs, and through the switch named 'IB' to its likes and theirs."""
    lines = []
    for h in range(hosts):
        for g in range(gpus):
            root = (h, "GPU", g)
            for index in range(2):
                sends = []
                for other in range(hosts):
                    head = (other, "GPU", g)
                    if other != h:
                        sends.append((root, head, f"{root},{(-1, 'IB', 0)},{head}"))
                    ring = [(other, "GPU", (g + (1, -1)[index] * i) % gpus) for i in range(gpus)]
                    sends += [(a, b, f"{a},{b}") for a, b in pairwise(ring)]
                body = "\n".join(f'    <send src="{a}" dst="{b}" path="{path}"/>' for a, b, path in sends)
                lines.append(f'  <tree root="{root}" index="{index}" nchunks="1" height="9">\n{body}\n  </tree>')
    return '<Algo nchunkspernode="2">\n' + "\n".join(lines) + "\n</Algo>\n"


def machine(hosts: int, gpus: int) -> Topology:
    nodes = [
        {"id": h * gpus + g, "kind": "gpu", "rank": h * gpus + g, "host": h} for h in range(hosts) for g in range(gpus)
    ]
    nodes.append({"id": 99, "kind": "switch", "name": "(-1, 'IB', 0)"})
    pairs = [
        (h * gpus + g, h * gpus + (g + step) % gpus, 50.0)
        for h in range(hosts)
        for g in range(gpus)
        for step in (1, -1)
    ]
    pairs += [pair for gpu in range(hosts * gpus) for pair in ((gpu, 99, 12.5), (99, gpu, 12.5))]
    links = [{"src": a, "dst": b, "bandwidth_GBps": width, "alpha_us": 1.0} for a, b, width in pairs]
    return Topology.from_json({"name": "pods", "nodes": nodes, "links": links})


def test_forestcoll(tmp_path: Path) -> None:
    path = save(tmp_path / "trees.xml", forestcoll(2, 12))  # GPU 10 comes after GPU 9, not after GPU 1
    schedule = read_schedule(path, machine(2, 12), 48e6)
    assert schedule.demand == demand_for("allgather", 24, 48e6, 2)
    crossing = [send for send in schedule.sends if schedule.ends(send)[0] // 12 != schedule.ends(send)[1] // 12]
    assert {len(send.path) for send in crossing} == {2} and len(crossing) == 48
    assert all(abs(a - b) == 12 for a, b in map(schedule.ends, crossing))
    # Each ring link passes 22 of the 24 trees' MBs on: 440 µs. The other host's need not hold the own host's up.
    assert 440.0 <= schedule.finish_us < 530.0
    small = read_schedule(save(tmp_path / "small.xml", forestcoll(2, 3)), machine(2, 3), 6e3)
    require_right(lower(small), small, slots=(2,))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("</Algo>", "", "not well-formed"),
        ("<Algo", "<!DOCTYPE Algo><Algo", "DOCTYPE"),
        ("Algo", "algo", "<algo> lacks ngpus"),
        ("Algo", "forest", "no schedule|bandwidths"),
        ('nchunks="1"', 'nchunks="0"', "nchunks='0' must be"),
        ('nchunks="1"', 'nchunks="99999999999999"', "must be a whole number"),
        ('nchunks="1"', 'nchunks="999999999"', "more than"),
        ("dst=", "to=", "lacks dst"),
        ("<tree", "<bush", "no <tree>|not well-formed"),
        ("path=\"(0, 'GPU', 0)", "path=\"(0, 'GPU', 1)", "does not go from"),
    ],
)
def test_forestcoll_faults(old: str, new: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        read_schedule(save(tmp_path / "bad.xml", forestcoll(1, 3).replace(old, new)))


def test_forestcoll_is_a_forest(tmp_path: Path) -> None:
    tree = '<Algo><tree root="a">{}</tree><tree root="b"><send src="b" dst="a"/></tree></Algo>'
    send = '<send src="{}" dst="{}"/>'
    twice = send.format("a", "b") * 2
    loose = send.format("a", "b") + send.format("c", "d")
    for body, words in ((twice, "b is reached twice"), (loose, "c sends, but the tree of a does not reach it")):
        with pytest.raises(InputError, match=words):
            read_schedule(save(tmp_path / "bad.xml", tree.format(body)))
    good = save(tmp_path / "good.xml", tree.format(send.format("a", "b")))
    with pytest.raises(InputError, match="tells no bandwidths; name the --topology"):
        read_schedule(good)
    assert read_schedule(good, load("full-2").topology, 2e6).demand.size_bytes == 2e6


# -- the command ---------------------------------------------------------------------------------------------------


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(argv))
    return int(stop.value.code or 0)


def test_lower_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(save(tmp_path / "t.json", flows(*PAIR)))
    out = str(tmp_path / "out.xml")
    assert run("lower", path, "-o", out, "--size", "2MB", "--topology", "full-2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["finish_us"] == pytest.approx(1e6 / 50e3, rel=0.2) and Path(out).exists()
    assert run("check", out) == 0
    assert run("lower", path, "-o", out, "--size", "2 dogs") == 2
    assert run("lower", path, "-o", out, "--topology", "ring-8") == 2
    bad = str(save(tmp_path / "plan.json", {"name": "x", "gpus": []}))
    assert run("lower", bad, "-o", out) == 2
    assert "execution plan" in capsys.readouterr().err


def test_a_program_is_read_as_check_reads_it(tmp_path: Path) -> None:
    """As UTF-8, whatever encoding it declares, known or not."""
    text = xml.to_text(lower(greedy(Problem(load("full-2").topology, "allgather", 1e6))))
    path = save(tmp_path / "program.xml", '<?xml version="1.0" encoding="latin-1"?>\n' + text)
    assert xml.read(path).nranks == read_schedule(path, load("full-2").topology).demand.nranks == 2
