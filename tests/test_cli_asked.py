"""Groups, matrices, custom demands and lost parts on the command line."""

from __future__ import annotations

import json

import pytest

from teccl_msccl.program import xml
from teccl_msccl.program.check import check
from teccl_msccl.schedule.schedule import Schedule

QUICK = ("--method", "greedy", "--time-limit", 0)


def test_each_group_gets_a_program_that_runs(call, tmp_path):
    line = ("synth", "teccl-dgx1", "allreduce", "--size", "1MB", "--group", "0-3", "--group", "7,6,4:2", *QUICK)
    code, out, err = call(*line, "--schedule", "plan.json", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert [program["file"] for program in answer["programs"]] == ["allreduce.group0.xml", "allreduce.group1.xml"]
    assert [group["ranks"] for group in answer["groups"]] == [[0, 1, 2, 3], [7, 6, 4]]
    assert max(group["finish_us"] for group in answer["groups"]) == answer["finish_us"]
    for name, ranks in (("allreduce.group0.xml", 4), ("allreduce.group1.xml", 3)):
        program = xml.read(tmp_path / name)
        assert program.nranks == ranks
        assert check(program).ok
        code, out, _ = call("run", name, "--size", "48KB", "--iters", 1, "--warmup", 0, "--json")
        assert (code, sum(row["wrong"] for row in json.loads(out)["rows"])) == (0, 0)
    code, out, err = call("lower", "plan.json", "-o", "again.xml", "--json")
    assert (code, err) == (0, "")
    assert (tmp_path / "again.group1.xml").read_bytes() == (tmp_path / "allreduce.group1.xml").read_bytes()
    code, out, _ = call(*line)
    assert "group 1     ranks 7,6,4: " in out


def test_a_group_without_a_program_is_said(call, tmp_path):
    code, out, err = call("synth", "line-3", "allgather", "--size", "1KB", "--group", "0,2", *QUICK, "--schedule", "s")
    assert code == 0
    assert "GPU 1 relays data of group 0" in err
    assert "no program  GPU 1 relays" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


def test_a_matrix_is_a_schedule_and_no_program(call, tmp_path):
    (tmp_path / "moe.csv").write_text("0,1MB,2MB\n1MB,0,0\n0,0,0\n")
    code, out, err = call("synth", "full-3", "alltoallv", "--matrix", "moe.csv", *QUICK, "--json")
    answer = json.loads(out)
    assert (code, answer["file"], answer["schedule"]) == (0, None, "alltoallv.json")
    assert "cannot say an alltoallv's matrix" in err
    assert Schedule.read(tmp_path / "alltoallv.json").demand.size_bytes == answer["size_bytes"] == 3e6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alltoallv.json", "moe.csv"]
    code, out, _ = call("bounds", "full-3", "alltoallv", "--matrix", "moe.csv", "--json")
    bounds = json.loads(out)
    assert bounds["bound_us"] == pytest.approx(answer["bound_us"])
    assert bounds["terms"].keys() >= {"flow", "ingress", "egress", "alpha"}
    code, _, err = call("lower", "alltoallv.json", "-o", "no.xml")
    assert (code, "cannot say" in err) == (1, True)


def test_a_custom_demand(call, tmp_path):
    (tmp_path / "d.json").write_text('{"chunks": [{"origin": [0], "want": [1, 2]}, {"origin": [2], "want": [0]}]}')
    code, out, err = call("synth", "line-3", "custom", "--demand", "d.json", "--size", "1MB", *QUICK, "--json")
    assert (code, json.loads(out)["schedule"]) == (0, "custom.json")
    assert "cannot say a custom demand" in err
    Schedule.read(tmp_path / "custom.json").validate()
    assert call("bounds", "line-3", "custom", "--demand", "d.json", "--size", "1MB")[0] == 0


def test_a_lost_link_and_a_repaired_start(call, tmp_path):
    ask = ("synth", "teccl-dgx1", "allgather", "--size", "1MB", *QUICK)
    assert call(*ask, "--schedule", "healthy.json")[0] == 0
    code, out, err = call(*ask, "--without", "link:0-3", "--start", "healthy.json", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["topology"] == "teccl-dgx1 without link:0-3"
    code, out, err = call(*ask, "--without", "gpu:4", "--start", "healthy.json")
    assert code == 0
    assert "warning: 7 of 8 GPUs are left, as ranks 0 to 6: rank 5 is now 4" in err
    assert xml.read(tmp_path / "allgather.xml").nranks == 7
    code, out, _ = call("bounds", "ring-4", "allgather", "--size", "1MB", "--without", "link:0-1", "--json")
    assert json.loads(out)["bound_us"] == pytest.approx(15.5)
    code, out, _ = call("topo", "show", "ring-4", "--without", "gpu:2", "--json")
    shown = json.loads(out)
    assert (shown["nranks"], shown["findings"][-1]["level"]) == (3, "warning")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("synth", "line-4", "allgather", "--size", "1", "--without", "link:1-2"), "GPU 0 cannot reach GPU 2"),
        (("synth", "line-4", "allgather"), "of what size? give --size"),
        (("synth", "line-4", "allgater", "--size", "1"), "did you mean allgather?"),
        (("synth", "line-4", "allgather", "--size", "1", "--method", "ringg"), "did you mean ring?"),
        (("synth", "line-4", "alltoall", "--size", "1", "--method", "ring"), "ring does not do alltoall; it does"),
        (("synth", "line-4", "alltoallv", "--size", "1"), "alltoallv and a matrix go together"),
        (("synth", "line-4", "alltoallv", "--matrix", "none.csv"), "none.csv: cannot read a matrix"),
        (("synth", "line-4", "custom", "--demand", "none.json"), "none.json: cannot read a demand"),
        (("synth", "line-4", "allgather", "--size", "1", "--group", "0,0"), "group 0: names rank 0 twice"),
        (("synth", "line-4", "allgather", "--size", "1", "--instances", "0"), "use auto or a number"),
        (("bounds", "line-4", "allgather", "--size", "1", "--group", "0-9"), "no rank 4 among 0..3"),
    ],
)
def test_bad_input_is_one_line(call, tmp_path, line, said):
    code, out, err = call(*line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_parts_as_asked(call, tmp_path):
    for parts, times in (("1", 1), ("2", 2)):
        call("synth", "line-2", "allgather", "--size", "1MB", "--chunks", 1, *QUICK, "--instances", parts)
        assert xml.read(tmp_path / "allgather.xml").nchunks == 2 * times
