"""`synth`, `bounds` and `lower`, as a user calls them."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from strategies import machine

from teccl_msccl.collective.demand import COLLECTIVES, Chunk, Demand
from teccl_msccl.program import xml
from teccl_msccl.program.check import check
from teccl_msccl.schedule.schedule import Schedule, Send
from teccl_msccl.topology.model import Topology

SYNTH_KEYS = {
    "topology", "collective", "size_bytes", "method", "solver", "finish_us", "program_finish_us", "launch_us",
    "algbw_GBps", "bound_us", "gap", "synthesis_s", "peak_rss_mb", "nchunks", "threadblocks_max", "steps_max",
    "channels", "file",
}  # fmt: skip


QUICK = ("--method", "greedy", "--time-limit", 0)


# -- synth ---------------------------------------------------------------------------------------------------------


def test_an_interruption_with_nothing_to_show_is_told(call, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("teccl_msccl.synthesis.portfolio.run", interrupt)
    code, out, err = call("synth", "ring-4", "allgather", "--size", "1MB", "--json")
    assert (code, err) == (130, "error: interrupted\n")
    assert json.loads(out) == {"error": "interrupted", "exit_code": 130}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_synth_writes_a_proved_file_and_one_json_object(call, tmp_path, collective):
    code, out, err = call("synth", "ring-4", collective, "--size", "1MB", "--root", 1, *QUICK, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer.keys() >= SYNTH_KEYS
    assert out.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [f"{collective}.xml"] == [answer["file"]]
    assert (answer["topology"], answer["collective"], answer["size_bytes"]) == ("ring-4", collective, 1e6)
    assert answer["finish_us"] >= answer["bound_us"] * (1 - 1e-9)
    assert answer["gap"] == pytest.approx(answer["finish_us"] / answer["bound_us"] - 1, abs=1e-9)
    assert answer["algbw_GBps"] == pytest.approx(1e3 / answer["finish_us"])
    assert answer["program_finish_us"] >= answer["bound_us"] * (1 - 1e-9)
    assert answer["synthesis_s"] >= 0
    assert answer["peak_rss_mb"] > 1
    assert (answer["method"], answer["solver"]) == ("greedy", None)
    program = xml.read(tmp_path / answer["file"])
    assert check(program, root=1 if collective in ("broadcast", "reduce", "gather", "scatter") else None).ok
    root = ElementTree.parse(tmp_path / answer["file"]).getroot()
    assert int(root.get("nchunksperloop")) == answer["nchunks"]
    assert int(root.get("nchannels")) == answer["channels"]
    blocks = [gpu.findall("tb") for gpu in root.findall("gpu")]
    assert max(map(len, blocks)) == answer["threadblocks_max"]
    assert max(len(tb.findall("step")) for gpu in blocks for tb in gpu) == answer["steps_max"]


@pytest.mark.parametrize("position", range(7))
def test_json_stands_anywhere(call, position):
    line = ["synth", "star-3", "allgather", "--size", "1KB", "--time-limit", "0"]
    line.insert(position, "--json")
    code, out, _ = call(*line)
    assert code == 0
    assert json.loads(out)["topology"] == "star-3"


def test_the_milp_reports_itself_and_prints_nothing_of_its_own(call):
    code, out, _ = call("synth", "teccl-dgx1", "allgather", "--size", "1MB", "--chunks", 2, "--json")
    answer = json.loads(out)
    assert (code, answer["method"], answer["solver"]) == (0, "milp", "cbc")
    assert answer["finish_us"] == pytest.approx(6.95)
    (best,) = (report for report in answer["milp"] if report["finish_us"] == answer["finish_us"])
    assert (best["status"], best["epochs"], best["epochs_bound"]) == ("optimal", 6, 6)


def test_the_report_is_printed_and_written(call, tmp_path):
    code, out, err = call(
        "synth", "ring-4", "reducescatter", "--size", "1MiB", "-o", "rs.xml", "--report", "rs.txt", *QUICK
    )
    assert (code, err) == (0, "")
    assert (tmp_path / "rs.txt").read_text() == out
    for said in ("reduce_scatter of 1.049 MB on ring-4", "bound ", "gap", "proved", "written     rs.xml"):
        assert said in out


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "gather"])
@pytest.mark.parametrize("mode", ["both", "inplace", "outofplace"])
def test_lower_makes_the_same_program_of_the_schedule(call, tmp_path, collective, mode):
    more = ("--mode", mode)
    call("synth", "star-4", collective, "--size", "64KB", "-o", "one.xml", "--schedule", "plan.json", *QUICK, *more)
    Schedule.read(tmp_path / "plan.json").validate()
    code, out, err = call("lower", "plan.json", "-o", "two.xml", *more, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert (tmp_path / "one.xml").read_bytes() == (tmp_path / "two.xml").read_bytes()
    assert answer["schedule"] == "plan.json"
    assert answer["file"] == "two.xml"
    assert answer.keys() >= {"finish_us", "program_finish_us", "nchunks", "channels", "threadblocks_max", "steps_max"}
    code, out, _ = call("lower", "plan.json", "-o", "two.xml", *more)
    assert (code, "written     two.xml" in out) == (0, True)


def test_a_start_is_taken_up(call, tmp_path):
    call("synth", "star-4", "alltoall", "--size", "1MB", "--schedule", "plan.json", *QUICK)
    first = Schedule.read(tmp_path / "plan.json").finish_us
    code, out, _ = call("synth", "star-4", "alltoall", "--size", "1MB", "--start", "plan.json", *QUICK, "--json")
    assert code == 0
    assert json.loads(out)["finish_us"] <= first
    for change in (("--size", "2MB"), ("--size", "1MB", "--hosts", 0)):
        code, _, err = call("synth", "star-4", "alltoall", "--start", "plan.json", *QUICK, *change)
        assert (code, err.count("\n")) == (2, 1)


def test_a_topology_file_and_hosts(call, tmp_path):
    Topology.load("line-3").write(tmp_path / "line.json")
    assert call("synth", "line.json", "broadcast", "--size", "1", *QUICK)[0] == 0
    code, out, _ = call("synth", "teccl-ndv2", "broadcast", "--size", "1MB", "--hosts", 2, *QUICK, "--json")
    assert (code, json.loads(out)["collective"]) == (0, "broadcast")


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_bounds_names_every_term(call, tmp_path):
    code, out, err = call("bounds", "teccl-dgx1", "allgather", "--size", "1MB", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["bound_us"] == pytest.approx(6 + 8 / 15)
    assert answer["bound_us"] == max(term["bound_us"] for term in answer["terms"].values())
    assert {"alpha", "ingress", "egress", "cut"} <= answer["terms"].keys()
    assert all(term["certificate"] for term in answer["terms"].values())
    assert answer["algbw_bound_GBps"] == pytest.approx(1e3 / answer["bound_us"])
    code, out, err = call("bounds", "star-8", "allreduce", "--size", "1MB")
    assert (code, err) == (0, "")
    assert "traffic" in out
    assert not list(tmp_path.iterdir())


def test_bounds_of_nothing_over_no_latency(call, tmp_path):
    machine("gg", [(0, 1, 50, 0)]).write(tmp_path / "pair.json")
    code, out, _ = call("bounds", "pair.json", "alltoall", "--size", 0, "--json")
    answer = json.loads(out)
    assert (code, answer["bound_us"], answer["algbw_bound_GBps"]) == (0, 0, None)


# -- bad input -------------------------------------------------------------------------------------------------------


def refused(call, tmp_path, code, *arguments):
    """One line on stderr, no answer, no file; with --json one object with the same words."""
    before = sorted(tmp_path.rglob("*"))
    got, out, err = call(*arguments)
    assert (got, out) == (code, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    got, out, again = call(*arguments, "--json")
    assert (got, again) == (code, err)
    assert json.loads(out) == {"error": err.removeprefix("error: ").rstrip("\n"), "exit_code": code}
    assert sorted(tmp_path.rglob("*")) == before
    return err


@pytest.mark.parametrize("command", ["synth", "bounds"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ring-4", "gossip", "--size", "1MB"), "unknown collective 'gossip'"),
        (("ring-four", "allgather", "--size", "1MB"), "ring-four"),
        (("no/such.json", "allgather", "--size", "1MB"), "no/such.json"),
        (("ring-4", "allgather", "--size", "1XB"), "1XB"),
        (("ring-4", "allgather", "--size", "-1MB"), "-1MB"),
        (("ring-4", "allgather", "--size", ""), "size ''"),
        (("ring-4", "allgather"), "--size"),
        (("ring-4",), "COLLECTIVE"),
        (("ring-4", "broadcast", "--size", "1MB", "--root", "4"), "root 4"),
        (("ring-4", "broadcast", "--size", "1MB", "--root", "-1"), "root -1"),
        (("ring-4", "broadcast", "--size", "1MB", "--root", "one"), "--root"),
        (("ring-4", "allgather", "--size", "1MB", "--hosts", "0"), "hosts"),
        (("ring-4", "allgather", "--size", "1MB", "--nonsense"), "--nonsense"),
        (("one.json", "allgather", "--size", "1MB"), "at least two"),
        (("line.json", "allgather", "--size", "1MB"), "line.json"),
        (("text.json", "allgather", "--size", "1MB"), "text.json"),
    ],
)
def test_bad_questions(call, tmp_path, command, arguments, said):
    (tmp_path / "one.json").write_text(json.dumps(machine("g", []).to_json()))
    (tmp_path / "line.json").write_text(json.dumps({**Topology.load("line-3").to_json(), "links": 1}))
    (tmp_path / "text.json").write_text("{")
    assert said in refused(call, tmp_path, 2, command, *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--time-limit", "-1"), "--time-limit"),
        (("--time-limit", "nan"), "--time-limit"),
        (("--time-limit", "soon"), "--time-limit"),
        (("--chunks", "0"), "0 chunks"),
        (("--chunks", "-4"), "-4 chunks"),
        (("--chunks", "1000000000"), "too many"),
        (("--method", "magic"), "auto, trees, greedy, bfb, lp, milp"),
        (("--solver", "gurobi"), "cbc, highs"),
        (("--jobs", "0"), "--jobs"),
        (("--seed", "-1"), "--seed"),
        (("--seed", "99999999999999999999"), "seed"),
        (("--target", "abacus"), "abacus"),
        (("--mode", "sideways"), "sideways"),
        (("--protocol", "TCP"), "TCP"),
        (("--start", "nowhere.json"), "nowhere.json"),
        (("--start", "here"), "here"),
        (("-o", "here"), "is a directory"),
        (("-o", "nowhere/x.xml"), "no directory nowhere"),
        (("-o", "/proc/x.xml"), "/proc/x.xml"),
        (("--schedule", "here"), "is a directory"),
        (("--schedule", "nowhere/x.json"), "no directory nowhere"),
        (("--report", "here"), "is a directory"),
        (("-o", "x", "--schedule", "./x"), "written twice"),
    ],
)
def test_bad_options_of_synth(call, tmp_path, arguments, said):
    (tmp_path / "here").mkdir()
    line = ["synth", "ring-4", "allgather", "--size", "1MB", *arguments]
    if "--time-limit" not in arguments:
        line += ["--time-limit", "0"]
    assert said in refused(call, tmp_path, 2, *line)


def send(link: int, start_us: float, **more) -> dict:
    return {"chunk": 0, "path": [link], "start_us": start_us, **more}


def plan(tmp_path) -> dict:
    """A schedule's JSON: a broadcast down a line of three."""
    line = Topology.load("line-3")
    hops = (Send(0, (0,), 0.0), Send(0, (2,), 1.5))
    demand = Demand("broadcast", 3, (Chunk(0, (0,), (0, 1, 2), 5e4),), 1, 5e4, 0)
    Schedule(line, demand, hops, 3.0).write(tmp_path / "plan.json")
    return json.loads((tmp_path / "plan.json").read_text())


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"sends": []}, 1, "never gets"),
        ({"finish_us": 2.0}, 1, "after the finish"),
        ({"sends": [send(0, 0), send(2, 0)]}, 1, "does not hold"),
        ({"sends": [send(0, 0), send(0, 0.1)]}, 1, "at once"),
        ({"sends": [send(0, -5)]}, 1, "starts at -5"),
        ({"sends": [send(0, 0, reduce=True)]}, 1, "to be copied"),
        ({"sends": [send(0, 0, chunk=7)]}, 2, "no chunk 7"),
        ({"sends": [send(0, 0, path=[0, 1])]}, 2, "crosses GPU 1"),
        ({"collective": "allgather"}, 2, "allgather among 3 GPUs"),
        ({"collective": None}, 2, "collective"),
        ({"nchunks": 10**12}, 2, "too many"),
        ({"size_bytes": 10**400}, 2, "size_bytes"),
        ({"root": 3}, 2, "root 3"),
        ({"topology": {}}, 2, "'nodes'"),
    ],
)  # fmt: skip
def test_schedules_that_cheat_or_contradict_themselves(call, tmp_path, change, code, said):
    (tmp_path / "plan.json").write_text(json.dumps({**plan(tmp_path), **change}))
    assert said in refused(call, tmp_path, code, "lower", "plan.json", "-o", "out.xml")


def test_a_collective_that_no_runtime_knows_is_refused(call, tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps({**plan(tmp_path), "collective": "gossip"}))
    err = refused(call, tmp_path, 1, "lower", "plan.json", "-o", "out.xml")
    assert "gossip" in err


@pytest.mark.parametrize("keep", [0, 1, 40, -60, -3])
def test_truncated_schedules(call, tmp_path, keep):
    plan(tmp_path)
    path = tmp_path / "plan.json"
    path.write_text(path.read_text()[:keep])
    assert "plan.json" in refused(call, tmp_path, 2, "lower", "plan.json", "-o", "out.xml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.json", "-o", "out.xml"), "nowhere.json"),
        (("plan.json",), "-o"),
        (("plan.json", "-o", "."), "is a directory"),
        (("plan.json", "-o", "nowhere/out.xml"), "no directory"),
        (("plan.json", "-o", "out.xml", "--target", "abacus"), "abacus"),
        (("plan.json", "-o", "out.xml", "--mode", "sideways"), "sideways"),
    ],
)
def test_bad_options_of_lower(call, tmp_path, arguments, said):
    plan(tmp_path)
    assert said in refused(call, tmp_path, 2, "lower", *arguments)


def test_a_start_that_cheats_is_refused(call, tmp_path):
    value = plan(tmp_path)
    line = Topology.load("line-3")
    Schedule.from_json({**value, "sends": value["sends"][:1]}).write(tmp_path / "half.json")
    topology = replace(line, name="line-3")
    assert topology == line
    size = ("--size", "50KB", "--time-limit", "0")
    assert call("synth", "line-3", "broadcast", "--start", "plan.json", *size, "-o", "good.xml")[0] == 0
    assert "never gets" in refused(call, tmp_path, 1, "synth", "line-3", "broadcast", "--start", "half.json", *size)
    assert "another root" in refused(
        call, tmp_path, 2, "synth", "line-3", "broadcast", "--start", "plan.json", *size, "--root", "1"
    )
