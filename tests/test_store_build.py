"""The store: what is built serves every numbering of the machine, survives kills, and is never handed out damaged."""

from __future__ import annotations

import itertools
import json
import random
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from lowered import execute

from teccl_msccl.cli import main
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program import xml
from teccl_msccl.program.check import check
from teccl_msccl.program.rounds import rounds_of
from teccl_msccl.program.simulate import simulate
from teccl_msccl.store import candidate
from teccl_msccl.store.build import BASELINES, Plan, build, sizes_between
from teccl_msccl.store.degraded import single_failures
from teccl_msccl.store.launch import environment, exported, require_launchable
from teccl_msccl.store.store import Lookup, Store
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.symmetry import fingerprint

SIZES = (1_000, 1_000_000)
PLAN = Plan(("allgather", "allreduce"), SIZES, method="greedy", seconds=0.0)


class Here(Executor):
    """Runs jobs when they are submitted."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def quiet(done, total, candidate) -> None:
    pass


def shuffled(topology: Topology, ranks: list[int]) -> Topology:
    """The same machine with rank r called ranks[r]."""
    nodes = tuple(node if node.rank is None else replace(node, rank=ranks[node.rank]) for node in topology.nodes)
    return replace(topology, nodes=nodes, name="renumbered")


def with_other_ids(topology: Topology, seed: int) -> Topology:
    """The same machine with the ids of its nodes, and the order of nodes and links, drawn anew."""
    draw = random.Random(seed)
    ids = [node.id for node in topology.nodes]
    new = dict(zip(ids, draw.sample(ids, len(ids)), strict=True))
    nodes = tuple(replace(node, id=new[node.id]) for node in draw.sample(topology.nodes, len(ids)))
    links = [replace(link, src=new[link.src], dst=new[link.dst]) for link in topology.links]
    return replace(topology, nodes=nodes, links=tuple(draw.sample(links, len(links))))


@pytest.fixture(scope="module")
def machine_and_store(tmp_path_factory):
    topology = Topology.load("mesh-2x3")
    store = Store(tmp_path_factory.mktemp("store"))
    build(store, topology, PLAN, Here(), quiet)
    return topology, store


@pytest.fixture
def copied(machine_and_store, tmp_path):
    import shutil

    topology, store = machine_and_store
    shutil.copytree(store.root, tmp_path / "store")
    return topology, Store(tmp_path / "store")


def test_fingerprints_are_those_of_machines_not_of_numberings() -> None:
    topology = Topology.load("dgx1")
    again = shuffled(topology, [3, 1, 0, 2, 7, 5, 4, 6])
    assert fingerprint(topology) == fingerprint(again)
    for seed in range(3):
        assert fingerprint(with_other_ids(topology, seed)) == fingerprint(topology)
    links = (replace(topology.links[0], bandwidth_GBps=1.0), *topology.links[1:])
    assert fingerprint(topology) != fingerprint(replace(topology, links=links))
    assert len({fingerprint(Topology.load(name)) for name in ("dgx1", "ring-6", "mesh-2x3", "line-6")}) == 4


def test_ranges_cover_the_sizes_and_name_the_fastest(machine_and_store) -> None:
    topology, store = machine_and_store
    machine = store.find(topology)
    for collective in PLAN.collectives:
        entries = [entry for entry in machine.manifest.entries if entry.collective == collective]
        assert entries[0].min_bytes == 0 and entries[-1].max_bytes == SIZES[-1] + 1
        assert all(a.max_bytes == b.min_bytes for a, b in itertools.pairwise(entries))
        for size in SIZES:
            entry = machine.select(collective, size)
            assert entry is not None and entry.min_bytes <= size < entry.max_bytes
            timing = simulate(machine.program(entry), machine.topology, size)
            (row,) = (row for row in entry.predicted if row["size_bytes"] == size)
            assert row["program_us"] == pytest.approx(timing.finish_us + timing.launch_us, abs=1e-3)
            assert row["bound_us"] * (1 - 1e-9) <= timing.finish_us
            assert row["program_us"] <= row["baseline_us"] and row["baseline"] in BASELINES
        assert machine.select(collective, SIZES[-1] + 1) is None
    assert machine.select("alltoall", 1000) is None


def test_another_numbering_gets_programs_for_its_ranks(machine_and_store) -> None:
    topology, store = machine_and_store
    machine = store.find(shuffled(topology, [4, 2, 0, 5, 3, 1]))
    assert machine.permutation != tuple(range(6))
    for collective in PLAN.collectives:
        program = machine.program(machine.select(collective, 1_000_000))
        assert check(program).ok
        assert sum(row.wrong for row in execute(program, None)) == 0
        theirs = store.find(topology)
        original = theirs.program(theirs.select(collective, 1_000_000))
        assert simulate(program, shuffled(topology, [4, 2, 0, 5, 3, 1]), 1e6).finish_us == pytest.approx(
            simulate(original, topology, 1e6).finish_us
        )


def test_a_machine_that_is_not_there_is_told_the_nearest(machine_and_store) -> None:
    _, store = machine_and_store
    with pytest.raises(Refused, match=r"nearest is mesh-2x3: .* links of .*; run store build"):
        store.find(Topology.load("ring-6"))
    with pytest.raises(Refused, match="the store is empty"):
        Store(store.root / "none").find(Topology.load("ring-6"))


def test_built_again_nothing_is_made_twice_and_damage_is_mended(copied, monkeypatch) -> None:
    topology, store = copied
    made = []
    monkeypatch.setattr(candidate, "_make", lambda job, make=candidate._make: (made.append(job), make(job))[1])
    folder = store.find(topology).folder
    before = (folder / "manifest.json").read_bytes()
    build(store, topology, PLAN, Here(), quiet)
    assert made == [] and (folder / "manifest.json").read_bytes() == before
    kept = sorted((folder / "candidates").glob("*.json"))
    kept[0].write_text(kept[0].read_text()[:-100])  # as if killed on a system that renames too early
    kept[1].unlink()
    build(store, topology, PLAN, Here(), quiet)
    assert len(made) == 2 and (folder / "manifest.json").read_bytes() == before


def test_two_builders_at_once_share_the_work(tmp_path, monkeypatch) -> None:
    made = []
    monkeypatch.setattr(candidate, "_make", lambda job, make=candidate._make: (made.append(job), make(job))[1])
    store, topology = Store(tmp_path), Topology.load("ring-3")
    plan = Plan(("allgather",), (1000,), method="greedy", seconds=0.0)
    with ThreadPoolExecutor(2) as builders:
        done = [builders.submit(build, store, topology, plan, Here(), quiet) for _ in range(2)]
    assert done[0].result() == done[1].result()
    assert len(made) == len({job.name for job in made}) == 3  # greedy, ring and direct
    assert store.problems(store.find(topology).folder) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda folder, file: file.write_bytes(file.read_bytes().replace(b'cnt="1"', b'cnt="2"', 1)),
            "its hash differs",
        ),
        (lambda folder, file: file.unlink(), "cannot read a program"),
        (lambda folder, file: (folder / "topology.json").write_text("{}"), "is not the topology"),
        (lambda folder, file: (folder / "stray.xml").write_text("<algo/>"), "is in no manifest"),
        (lambda folder, file: edit(folder, lambda m: m.update(format=99)), "upgrade teccl-msccl"),
        (lambda folder, file: edit(folder, lambda m: m["entries"][0].update(file="../x")), "outside the store"),
        (lambda folder, file: edit(folder, lambda m: m["entries"][0].update(nranks=5)), "another program"),
        (lambda folder, file: (folder / "manifest.json").write_text("{"), "not JSON"),
    ],
)
def test_damage_is_found_and_never_handed_out(copied, damage, said) -> None:
    topology, store = copied
    machine = store.find(topology)
    file = machine.folder / machine.manifest.entries[0].file
    damage(machine.folder, file)
    problems = store.problems(machine.folder)
    assert any(said in problem for problem in problems), problems
    if "stray" not in said and "no manifest" not in said:
        with pytest.raises((InputError, Refused)):
            again = store.find(topology)
            for entry in again.manifest.entries:
                again.program(entry)


def edit(folder, change) -> None:
    value = json.loads((folder / "manifest.json").read_text())
    change(value)
    (folder / "manifest.json").write_text(json.dumps(value))


def test_a_lookup_costs_microseconds(machine_and_store) -> None:
    """Against a measure of this machine's Python: far below a thousand dictionary lookups."""
    topology, store = machine_and_store
    lookup = Lookup(store.find(topology))
    lookup.find("allreduce", 1000)
    table = {number: number for number in range(1000)}

    def best(action) -> float:
        times = []
        for _ in range(50):
            begin = time.perf_counter()
            action()
            times.append(time.perf_counter() - begin)
        return min(times)

    assert best(lambda: lookup.find("allreduce", 1000)) < best(lambda: [table[number] for number in range(1000)])


def test_sizes() -> None:
    assert sizes_between(1000, 1_000_000, 4) == (1000, 10_000, 100_000, 1_000_000)
    assert sizes_between(5, 5, 8) == (5,)
    with pytest.raises(InputError):
        sizes_between(10, 1, 3)


def test_degraded_machines_are_those_that_differ() -> None:
    failures = list(single_failures(Topology.load("ring-6")))
    assert [left.name for left in failures] == ["ring-6 without links 0-1"]  # the others are the same machine
    assert {left.nranks for left in failures} == {6}
    assert list(single_failures(Topology.load("line-3"))) == []  # nothing can be spared
    machine = Topology.load("dgx-a100", hosts=2)
    names = [left.name for left in single_failures(machine)]
    assert any("NIC" in name for name in names) and any("links" in name for name in names)


def test_a_degraded_machine_is_found_by_what_is_left(tmp_path, capsys) -> None:
    words = ("store", "build", "ring-4", "--collectives", "allgather", "--sizes", "1KB", "--method", "greedy")
    code, answer = told(capsys, *words, "--time-limit", 0, "--degraded", "--jobs", 1, "--store", tmp_path)
    assert code == 0 and answer["degraded"] == ["ring-4 without links 0-1"]
    (left,) = single_failures(Topology.load("ring-4"))
    machine = Store(tmp_path).find(left)
    program = machine.program(machine.select("allgather", 1000))
    assert check(program).ok and simulate(program, left, 1000).finish_us > 0


# -- launching ------------------------------------------------------------------------------------------------------


def test_exported_files_are_for_the_users_ranks(machine_and_store, tmp_path) -> None:
    topology, store = machine_and_store
    machine = store.find(shuffled(topology, [4, 2, 0, 5, 3, 1]))
    files = exported(machine, "executor", tmp_path / "out")
    assert {check(xml.read(path)).ok for path in files} == {True}
    (tmp_path / "out" / "notes.txt").write_text("")
    with pytest.raises(InputError, match="other files"):
        exported(machine, "executor", tmp_path / "out")
    with pytest.raises(Refused, match="--targets rccl"):
        exported(machine, "rccl", tmp_path / "other")


def test_environments(copied) -> None:
    topology, store = copied
    machine = store.find(topology)
    variables = environment(machine, "executor", store.root)
    assert variables["NCCL_MSCCL_ENABLE"] == "1"
    assert {path.name for path in machine.folder.glob("exports/*/*.xml")} == {e.file for e in machine.manifest.entries}
    assert environment(machine, "torch", store.root)["TECCL_STORE"] == str(store.root)
    with pytest.raises(Refused, match=r"teccl_msccl\.runtime\.mscclpp\.register on it"):
        environment(machine, "mscclpp", store.root)


@pytest.mark.parametrize(
    ("runtime", "command", "rocm", "said"),
    [
        ("executor", "mpirun -np 4 job", "", "starts 4 ranks, and the files are for 6"),
        ("executor", "mpirun -np 6 all_reduce_perf -g 2", "", "one process with several GPUs"),
        ("torch", "torchrun --nproc-per-node=2 --nnodes 2 job.py", "", "starts 4 ranks"),
        ("rccl", "srun -n 6 job", "7.13.0", "no MSCCL any more"),
        ("rccl", "srun -n 6 job", "7.2.1", ""),
        ("torch", "torchrun --nproc-per-node=6 job.py", "", ""),
    ],
)
def test_what_cannot_take_the_files_is_refused(machine_and_store, runtime, command, rocm, said) -> None:
    topology, store = machine_and_store
    machine = store.find(topology)
    if not said:
        require_launchable(machine, runtime, command.split(), rocm)
        return
    with pytest.raises(Refused, match=said):
        require_launchable(machine, runtime, command.split(), rocm)


# -- the command line -------------------------------------------------------------------------------------------------


def told(capsys, *words: object) -> tuple[int, dict]:
    with pytest.raises(SystemExit) as stop:
        main([*map(str, words), "--json"])
    return int(stop.value.code or 0), json.loads(capsys.readouterr().out)


def test_commands(copied, capsys, tmp_path) -> None:
    _, store = copied
    where = ("--store", store.root)
    code, answer = told(capsys, "store", "list", *where)
    assert code == 0 and answer["machines"][0]["collectives"] == ["allgather", "allreduce"]
    code, answer = told(capsys, "store", "show", "mesh-2x3", *where)
    assert code == 0 and len(answer["entries"]) >= 2
    code, answer = told(
        capsys, "store", "select", "mesh-2x3", "allgather", "--size", "1KB", "-o", tmp_path / "a.xml", *where
    )
    assert code == 0 and check(xml.read(tmp_path / "a.xml")).ok
    assert told(capsys, "store", "select", "mesh-2x3", "alltoall", "--size", "1KB", *where)[0] == 1
    for root in (-1, 6):
        assert told(capsys, "store", "select", "mesh-2x3", "reduce", "--size", "1", "--root", root, *where)[0] == 2
    assert told(capsys, "store", "verify", *where) == (0, {"store": str(store.root), "ok": True, "problems": {
        store.folders()[0].name: []}})  # fmt: skip
    assert told(capsys, "store", "diff", store.root, *where)[0] == 0
    assert told(capsys, "store", "diff", tmp_path / "empty", *where)[0] == 1
    code, answer = told(capsys, "store", "env", "--runtime", "executor", "--topology", "mesh-2x3", *where)
    assert code == 0 and set(answer) == {"NCCL_MSCCL_ENABLE", "MSCCL_ALGO_DIR"}
    code, answer = told(capsys, "store", "export", "mesh-2x3", "--nccl", "-o", tmp_path / "nccl", *where)
    assert code == 0 and answer["left_out"] == [] and (tmp_path / "nccl").read_bytes().startswith(b"TECCLNC1")
    assert told(capsys, "store", "export", "mesh-2x3", "--nccl", "-o", tmp_path, *where)[0] == 2


def test_env_asks_for_the_runtime_before_the_machine_and_says_what_it_leaves_out(copied, capsys, monkeypatch) -> None:
    _, store = copied
    nowhere = ("--topology", "ring-7", "--store", str(store.root))
    for command in (("env", "--runtime", "nope", *nowhere), ("launch", "--runtime", "nope", *nowhere, "--", "true")):
        with pytest.raises(SystemExit) as stop:
            main(["store", *command])
        assert (stop.value.code, "unknown runtime 'nope'" in capsys.readouterr().err) == (2, True)

    def only_allreduce(program):
        if program.collective != "allreduce":
            raise Refused(f"{program.name}: has no rounds")
        return rounds_of(program)

    monkeypatch.setattr("teccl_msccl.store.rounds_file.rounds_of", only_allreduce)
    monkeypatch.setattr("teccl_msccl.runtime.doctor.libraries", lambda: {"nccl_interposer": "ours.so"})
    monkeypatch.setattr("teccl_msccl.store.launch.tuned", lambda machine: {})
    with pytest.raises(SystemExit) as stop:
        main(["store", "env", "--runtime", "nccl", "--topology", "mesh-2x3", "--store", str(store.root)])
    said = capsys.readouterr()
    assert not stop.value.code and "export TECCL_NCCL_PROGRAMS=" in said.out
    assert "left out, and left to NCCL: " in said.err and "has no rounds" in said.err


def test_a_store_that_lost_its_folder_is_one_line(tmp_path) -> None:
    (job, *_) = PLAN.jobs(Store(tmp_path).open(Topology.load("ring-3")))
    with pytest.raises(InputError, match="cannot write the store: No such file"):
        candidate.made(job, str(tmp_path / "gone"))


def test_a_store_that_cannot_be_written_is_one_line(capsys, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    words = (
        "store",
        "build",
        "ring-3",
        "--collectives",
        "allgather",
        "--sizes",
        "1KB",
        "--store",
        tmp_path / "file" / "x",
    )
    code, answer = told(capsys, *words)
    assert code == 2 and "cannot write the store" in answer["error"]
