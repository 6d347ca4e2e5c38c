"""`teccl-msccl route serve` as a process: over a pipe and a socket, killed and started again."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from teccl_msccl.cli import main
from teccl_msccl.routing.controller import Controller, Policy
from teccl_msccl.routing.fabric import Clos
from teccl_msccl.routing.hash_model import CrcHash
from teccl_msccl.routing.serve import Service, serve_stream
from teccl_msccl.routing.state import StateDirectory

FABRIC = {"fabric": {"tors": 2, "spines": 4, "hosts_per_tor": 4}}
ARRIVE = {"t": 0, "event": "job_arrive", "job": {"job": "J", "tp": 4, "dp": 2, "hosts": list(range(8)), "bytes": 1000}}
FAIL = {"t": 1, "event": "spine", "spine": 1, "alive": False}


def start(state, *arguments):
    command = [
        sys.executable,
        "-c",
        "from teccl_msccl.cli import main; main()",
        "route",
        "serve",
        "--state",
        str(state),
    ]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def fabric(tmp_path):
    path = tmp_path / "fabric.json"
    path.write_text(json.dumps(FABRIC))
    return path


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


def lines(*events):
    return "".join((event if isinstance(event, str) else json.dumps(event)) + "\n" for event in events)


@pytest.fixture
def run(capfd, monkeypatch, tmp_path):
    """Serve `text` to its end within this process: exit code, answers and stderr."""

    def serve(state, text, *arguments):
        events = tmp_path / "events"
        events.write_text(text)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with events.open() as stream, monkeypatch.context() as patch, pytest.raises(SystemExit) as stop:
                patch.setattr(sys, "stdin", stream)
                main(["route", "serve", "--state", str(state), *map(str, arguments)])
        finally:
            signal.signal(signal.SIGTERM, handler)
        out, err = capfd.readouterr()
        return stop.value.code, [json.loads(line) for line in out.splitlines()], err

    return serve


def spines(table):
    with open(table) as stream:
        return [int(row["spine"]) for row in csv.DictReader(stream)]


def test_events_in_tables_out(run, state, fabric):
    code, answers, _ = run(state, lines(ARRIVE, FAIL), "--fabric", fabric)
    assert code == 0
    assert [answer["version"] for answer in answers] == [1, 2]
    assert (answers[0]["moved"], answers[1]["moved"]) == (0, 2)
    assert set(spines(answers[0]["table"])) == {0, 1, 2, 3}
    assert set(spines(answers[1]["table"])) == {0, 2, 3}
    assert len(answers[0]["phi"]) == 4


def test_bad_lines_are_said_and_the_tables_stay(run, state, fabric):
    bad = ["{", "[]", {"t": 2, "event": "job_leave", "job": "X"}, {"t": 0, "event": "timer"}, json.dumps(ARRIVE)[:40]]
    text = lines(
        ARRIVE, FAIL, *bad, {"t": 3, "event": "job_arrive", "job": {"job": "K", "dp": 2, "hosts": [0, 4], "bytes": -5}}
    )
    code, answers, err = run(state, text, "--fabric", fabric)
    assert code == 2
    assert [answer["version"] for answer in answers] == [1, 2]
    errors = [line for line in err.splitlines() if line.startswith("error")]
    assert [line.split(":")[1].strip() for line in errors] == [f"line {n}" for n in range(3, 9)]
    assert all("the tables in force stay" in line for line in errors)
    saved = json.loads((state / "state.json").read_text())
    assert saved["table"] == os.path.basename(answers[1]["table"])
    assert "Traceback" not in err


def test_killed_and_started_again(run, state, fabric):
    process = start(state, "--fabric", fabric)
    process.stdin.write(lines(ARRIVE, FAIL))
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    in_force = spines(answers[1]["table"])
    code, more, err = run(state, lines({"t": 5, "event": "spine", "spine": 2, "alive": False}))
    assert code == 0
    assert "version 2, 8 flows, as they were" in err
    assert more[0]["version"] == 3
    after = spines(more[0]["table"])
    assert [b for a, b in zip(in_force, after, strict=True) if a != 2] == [a for a in in_force if a != 2]
    assert set(after) == {0, 3}
    code, _, err = run(state, lines({"t": 2, "event": "timer"}))  # before what it had heard when it was killed
    assert code == 2
    assert "after an event at 5" in err


def test_what_changes_no_route_keeps_the_table(run, state, fabric):
    table = run(state, lines(ARRIVE), "--fabric", fabric)[1][0]["table"]
    for t in (3, 4):
        assert run(state, lines({"t": t, "event": "timer"}))[:2] == (0, [])
        assert json.loads((state / "state.json").read_text())["table"] == Path(table).name


def test_a_truncated_state_is_refused_and_left_alone(run, state, fabric):
    _, answers, _ = run(state, lines(ARRIVE), "--fabric", fabric)
    file = state / "state.json"
    whole = file.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 3):
        file.write_bytes(whole[:cut])
        code, more, err = run(state, lines(FAIL))
        assert (code, more) == (2, [])
        assert str(file) in err
        assert "restore" in err
        assert err.count("\n") == 1
        assert file.read_bytes() == whole[:cut]
        assert os.path.exists(answers[0]["table"])
    file.unlink()
    assert "is missing" in run(state, lines(FAIL))[2]
    file.write_bytes(whole)
    table = answers[0]["table"]
    text = Path(table).read_text()
    Path(table).write_text(text[:-5])
    assert "missing or truncated" in run(state, lines(FAIL))[2]
    Path(table).write_text(text)
    assert run(state, lines(FAIL))[1][0]["version"] == 2


def test_over_a_socket(run, state, fabric):
    process = start(state, "--fabric", fabric, "--listen", "127.0.0.1:0")
    try:
        for line in process.stderr:
            if "listening on" in line:
                port = int(line.rsplit(":", 1)[1])
                break
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as one,
            socket.create_connection(("127.0.0.1", port), timeout=30) as two,
        ):
            talk, hear = one.makefile("rw"), two.makefile("r")
            two.sendall(b'{"t": 0, "event": "job_leave", "job": "X"}\n')
            assert "no job 'X'" in json.loads(hear.readline())["error"]
            text = lines(ARRIVE)
            talk.write(text[:30])
            talk.flush()
            talk.write(text[30:])
            talk.flush()
            assert json.loads(talk.readline())["version"] == json.loads(hear.readline())["version"] == 1
        with socket.create_connection(("127.0.0.1", port), timeout=30) as three:
            three.sendall(lines(FAIL).encode())
            assert json.loads(three.makefile("r").readline())["version"] == 2
        assert "another `route serve`" in run(state, "")[2]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_background_work_waits_for_events_and_comes_back(state):
    """Periods pass between two events of a pipe; each event is answered, and the work between them is done."""
    controller = Controller(Clos(2, 4, 4), Policy(most_moved=1.0))
    come, go = os.pipe()
    said, asked = [], []
    improve = controller.background
    controller.background = lambda: (asked.append(len(said)), improve())[1]
    with StateDirectory(state) as directory:
        service = Service(controller, directory, CrcHash(), said.append, period_s=0.01)
        os.write(go, lines(ARRIVE, FAIL).encode())

        def say(value):
            said.append(value)
            if value["version"] == 2:
                os.write(go, lines({"t": 2, "event": "spine", "spine": 1, "alive": True}).encode())
            if value["version"] == 3:
                os.close(go)

        serve_stream(service, come, say, pytest.fail)
    os.close(come)
    assert [value["version"] for value in said] == [1, 2, 3]
    assert asked[-1] == 2  # the spine that is back is used by the background work
    assert said[2]["phi"] == said[0]["phi"]


def test_wrong_options(run, state, tmp_path):
    for arguments, words in [
        (("--listen", "nowhere"), "give HOST:PORT"),
        (("--mode", "x"), "unknown mode"),
        (("--most-moved", "2"), "--most-moved"),
        (("--period", "0"), "--period"),
        (("--fabric", tmp_path / "none.json"), "cannot read"),
        (("--hash", tmp_path / "none.csv"), "cannot read"),
    ]:
        code, _, err = run(state, "", *arguments)
        assert code == 2
        assert words in err
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "cannot keep state" in run(blocked, "")[2]


def test_the_papers_fabric_is_the_default(run, state):
    code, answers, err = run(state, lines(ARRIVE | {"job": ARRIVE["job"] | {"hosts": [32 * i for i in range(8)]}}))
    assert code == 0
    assert "64 ToRs × 32 spines" in err
    assert answers[0]["version"] == 1
