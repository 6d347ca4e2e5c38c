"""`teccl-msccl route metric` and `route optimize`, as a user calls them."""

from __future__ import annotations

import csv
import json

import pytest

from teccl_msccl.cli import main

FABRIC = {"tors": 3, "spines": 2, "hosts_per_tor": 2, "link_gbps": 100}


@pytest.fixture
def route(capsys):
    """Run `route …`: exit code, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["route", *map(str, arguments)])
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


@pytest.fixture
def file(tmp_path):
    def write(flows, fabric=FABRIC, name="traffic.json"):
        listed = [
            {"collective": name, "job": "J", "src": src, "dst": dst, "weight": 1}
            | ({} if spine is None else {"spine": spine})
            for name, src, dst, spine in flows
        ]
        path = tmp_path / name
        path.write_text(json.dumps({"fabric": fabric, "flows": listed}))
        return path

    return write


PACED = [("A", 0, 2, 0), ("A", 4, 3, 1), ("B", 1, 5, 0)]
CROSSED = [("A", 0, 2, None), ("B", 1, 4, None), ("C", 2, 0, None), ("D", 3, 5, None)]


def test_metric_as_json(route, file):
    code, out, err = route("metric", file(PACED), "--mode", "flow", "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert answer["flow_rates"] == ["1/2", "1", "1/2"]
    assert answer["phi"] == ["1/2", "1/2"]
    assert answer["collectives"]["A"]["rate"] == "1/2"
    assert answer["collectives"]["A"]["efficiency"] == 0.5
    assert answer["routes"] == [0, 1, 0]
    assert answer["max_load"] == 2
    assert answer["jobs"]["J"]["rate"] == "1/2"


def test_metric_on_the_terminal(route, file):
    code, out, _ = route("metric", file(PACED))
    assert code == 0
    for words in ("collective", "A", "1/2", "Jain's index 1.000", "largest load between ToRs and spines: 2"):
        assert words in out


def test_metric_needs_live_spines(route, file):
    code, _, err = route("metric", file(CROSSED))
    assert code == 2
    assert "flows[0] (A: 0>2): has no spine" in err
    code, _, err = route("metric", file(PACED, FABRIC | {"dead_spines": [0]}))
    assert code == 2
    assert "spine 0 has a failed hop" in err
    code, _, err = route("metric", file(PACED, FABRIC | {"dead_spines": [0, 1]}))
    assert code == 2
    assert "cannot be reached" in err


@pytest.mark.parametrize(
    ("router", "phi"),
    [("greedy", ["1/2", "1/2", "1", "1"]), ("equitable", ["1"] * 4), ("auto", ["1"] * 4), ("ilp", ["1"] * 4)],
)
def test_optimize_as_json(route, file, router, phi):
    code, out, _ = route("optimize", file(CROSSED), "--router", router, "--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["router"], answer["phi"]) == (router, phi)
    assert answer["seconds"] > 0
    assert len(answer["routes"]) == 4


def test_optimize_gives_null_inside_a_tor_and_lists_under_split(route, file):
    path = file([("A", 0, 1, None), ("A", 1, 2, None)])
    answer = json.loads(route("optimize", path, "--json")[1])
    assert answer["routes"][0] is None
    answer = json.loads(route("optimize", path, "--split", 2, "--json")[1])
    assert answer["routes"][0] == [None, None]
    assert sorted(answer["routes"][1]) == [0, 1]
    assert answer["flow_rates"] == [["1/2", "1/2"]] * 2
    assert route("optimize", path, "--split", 0)[0] == 2


def test_optimize_starts_from_the_spines_given(route, file):
    answer = json.loads(route("optimize", file([("A", 0, 2, 1), ("B", 1, 3, 0), ("C", 4, 5, None)]), "--json")[1])
    assert answer["routes"] == [1, 0, None]


def test_enforcement_is_written(route, file, tmp_path):
    out = tmp_path / "rows.csv"
    code, text, _ = route("optimize", file(CROSSED), "--enforce", out, "--json")
    assert code == 0
    answer = json.loads(text)
    assert (answer["file"], answer["unreachable"]) == (str(out), [])
    rows = list(csv.DictReader(out.open()))
    assert [int(row["spine"]) for row in rows] == answer["routes"]
    assert all(0xC000 <= int(row["udp_sport"]) <= 0xFFFF for row in rows)


def test_what_cannot_be_enforced_is_said(route, file, tmp_path):
    probed, out = tmp_path / "probed.csv", tmp_path / "rows.csv"
    probed.write_text("src,dst,udp_sport,spine\n0,2,50000,1\n")
    code, text, err = route("optimize", file([("A", 0, 2, 0)]), "--enforce", out, "--hash", probed, "--json")
    assert code == 1
    assert "no known UDP source port reaches spine 0 from ToR 0" in err
    assert json.loads(text)["unreachable"]
    assert out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--router", "best"), "unknown router 'best'"),
        (("--mode", "fair"), "unknown mode 'fair'"),
        (("--enforce", "/no/such/place/rows.csv"), "no directory"),
        (("--hash", "/no/such/table.csv"), "cannot read"),
    ],
)
def test_wrong_options_are_one_line(route, file, arguments, words):
    code, _, err = route("optimize", file(CROSSED), *arguments)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "fabric, flows"),
        ('{"fabric": {"tors": 2, "spines": 2}, "flows": []}', "'hosts_per_tor' is missing"),
        ('{"fabric": {"tors": 2, "spines": 2, "hosts_per_tor": 1}, "flows": {}}', "must be a list"),
        (
            '{"fabric": {"tors": 2, "spines": 2, "hosts_per_tor": 1}, "flows": [{"src": 0, "dst": 1, "weight": NaN}]}',
            "flows[0]: weight: must be a finite number",
        ),
    ],
)
def test_wrong_files_are_one_line(route, tmp_path, text, words):
    path = tmp_path / "traffic.json"
    path.write_text(text)
    for command in ("metric", "optimize"):
        code, out, err = route(command, path)
        assert (code, out) == (2, "")
        assert words in err
        assert str(path) in err
        assert err.count("\n") == 1


def test_help_where_no_command(route):
    code, out, _ = route()
    assert code == 0
    assert "optimize" in out
