"""Traces, pages, pictures and tables: what they show is what was computed, and a browser shows it without complaint."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import hand_made
import pytest
from lowered import greedy

from teccl_msccl.cli import main
from teccl_msccl.errors import InputError
from teccl_msccl.program.lower import lower
from teccl_msccl.program.program import SENDING, Program
from teccl_msccl.program.simulate import simulate, timeline
from teccl_msccl.report.facts import program_facts, schedule_facts
from teccl_msccl.report.gantt import MOST_BARS, program_gantt, schedule_gantt
from teccl_msccl.report.page import page
from teccl_msccl.report.pictures import pictures
from teccl_msccl.report.sweep import OURS, SizeRow, geometric_sizes, size_label, sweep
from teccl_msccl.report.trace import trace_events
from teccl_msccl.schedule.read import resized
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.model import Topology


def run(*argv: Any) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in argv])
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def machine() -> Topology:
    return load("dgx-a100").topology


@pytest.fixture(scope="module")
def schedule(machine: Topology) -> Schedule:
    return greedy(Problem(machine, "allgather", 8e6), 1)


@pytest.fixture(scope="module")
def program(schedule: Schedule) -> Program:
    return lower(schedule, protocol="Simple", spread=1, instances=1)


# -- timelines -----------------------------------------------------------------------------------------------------


def test_timeline_is_what_the_simulation_saw(program: Program, machine: Topology) -> None:
    timing, seen = simulate(program, machine, 8e6), timeline(program, machine, 8e6)
    assert (seen.iterations, seen.of) == (timing.iterations, timing.iterations)
    assert max(step.end_us for step in seen.steps) == pytest.approx(timing.finish_us)
    taken = {(step.gpu, step.tb, step.step, step.iteration) for step in seen.steps}
    working = [where[:3] for where in program.steps() if where[3].type != "nop"]
    assert taken == {(*where, i) for where in working for i in range(seen.iterations)}
    assert {(s.gpu, s.tb, s.step, s.iteration) for s in timing.critical_path} <= taken
    blocks: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for step in seen.steps:
        blocks[step.gpu, step.tb].append(step)
    for steps in blocks.values():
        assert all(one.end_us <= other.start_us + 1e-9 for one, other in pairwise(steps))


def test_trace(program: Program, machine: Topology, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timing, seen = simulate(program, machine, 8e6), timeline(program, machine, 8e6)
    events = list(trace_events(program, machine, seen, timing))
    slices = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in slices)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in slices} <= named
    sends = sum(program.gpus[s.gpu].threadblocks[s.tb].steps[s.step].type in SENDING for s in seen.steps)
    assert sum(event["pid"] == 0 for event in slices) == 2 * sends  # into the switch and out of it
    assert any(event["cat"] == "critical" for event in slices)
    program.write(tmp_path / "p.xml")
    out = tmp_path / "t.json"
    assert run("simulate", tmp_path / "p.xml", "--topology", "dgx-a100", "--size", "8MB", "--trace", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["trace"] == str(out)
    written = json.loads(out.read_text())
    assert written["traceEvents"] == json.loads(json.dumps(events))
    assert (
        run("simulate", tmp_path / "p.xml", "--topology", "dgx-a100", "--size", "8MB", "--trace", tmp_path / "no" / "t")
        == 2
    )


def test_gantt_of_a_schedule(machine: Topology) -> None:
    """A chunk over a switch: its first link from the start, its second from α later; each for its bytes."""
    schedule = greedy(Problem(machine, "broadcast", 1e6), 1)
    gantt = schedule_gantt(schedule)
    first = min(schedule.sends, key=lambda send: send.start_us)
    up, down = (machine.link_by_id[id] for id in first.path)
    bars = {row.link: row.bars for row in gantt.rows}
    assert bars[up.id][0][:2] == pytest.approx((0.0, up.beta_us(1e6)))
    assert bars[down.id][0][:2] == pytest.approx((up.alpha_us, up.alpha_us + down.beta_us(1e6)))
    assert gantt.finish_us == schedule.finish_us and not gantt.merged and not gantt.left_out
    for row in gantt.rows:
        assert all(one.end_us <= other.start_us + 1e-9 for one, other in pairwise(row.bars))
        assert row.used == pytest.approx(sum(bar.end_us - bar.start_us for bar in row.bars) / gantt.finish_us)


def test_gantt_of_a_program_and_many_bars(program: Program, machine: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, timing = timeline(program, machine, 8e6), simulate(program, machine, 8e6)
    gantt = program_gantt(program, machine, seen)
    assert {row.link for row in gantt.rows} == {use.link for use in timing.links}
    assert all(0 < row.used <= 1 + 1e-9 for row in gantt.rows)
    monkeypatch.setattr("teccl_msccl.report.gantt.MOST_BARS", 10)
    monkeypatch.setattr("teccl_msccl.report.gantt.MOST_ROWS", 3)
    few = program_gantt(program, machine, seen)
    assert few.merged and len(few.rows) == 3 and few.left_out == len(gantt.rows) - 3
    assert MOST_BARS > 10


def test_crowded_rows_are_the_sums_of_their_links(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every slice of the time: its share is what a count at many instants of it finds."""
    plain = schedule_gantt(schedule)
    monkeypatch.setattr("teccl_msccl.report.gantt.MOST_GPUS", 4)
    crowd = schedule_gantt(schedule)
    assert crowd.crowded and crowd.links == plain.links == len(plain.rows) and not crowd.left_out
    sizes = [int(re.search(r"\((\d+) link", row.name)[1]) for row in crowd.rows]  # type: ignore[index]
    assert sum(sizes) == plain.links and len(crowd.rows) < plain.links
    used = sum(row.used * size for row, size in zip(crowd.rows, sizes, strict=True))
    assert used == pytest.approx(sum(row.used for row in plain.rows))
    assert all(one.end_us <= other.start_us + 1e-9 for row in crowd.rows for one, other in pairwise(row.bars))
    instants = [(i + 0.5) * plain.finish_us / 2000 for i in range(2000)]
    busy = [sum(bar.start_us <= t < bar.end_us for row in plain.rows for bar in row.bars) for t in instants]
    shown = [
        sum(
            size * bar.share
            for row, size in zip(crowd.rows, sizes, strict=True)
            for bar in row.bars
            if bar.start_us <= t < bar.end_us
        )
        for t in instants
    ]
    assert sum(busy) == pytest.approx(sum(shown), rel=0.02)
    for slice in range(200):  # ten instants each
        there = [busy[10 * slice + i] for i in range(10)]
        assert min(there) - 0.5 <= shown[10 * slice] <= max(there) + 0.5


def test_many_hosts_are_one_row_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = load("dgx-a100x2").topology
    many = greedy(Problem(machine, "allgather", 1e6), 1)
    monkeypatch.setattr("teccl_msccl.report.gantt.MOST_GPUS", 4)
    assert {row.name[:6] for row in schedule_gantt(many).rows} == {"host 0", "host 1"}
    monkeypatch.setattr("teccl_msccl.report.gantt.MOST_ROWS", 10)
    assert not any("host" in row.name for row in schedule_gantt(many).rows)
    html = text_of(schedule_facts(many))
    assert "A row is all links of a kind" in html and '"crowded":true' in html


# -- sizes ---------------------------------------------------------------------------------------------------------


def test_sizes() -> None:
    assert geometric_sizes(1024, 2**20, 4) == [1024 * 4**i for i in range(6)]
    assert (size_label(1024), size_label(3 * 2**20), size_label(1e6)) == ("1 KiB", "3 MiB", "1 MB")
    for bad in ((0, 8, 2), (8, 4, 2), (1, 8, 1), (1, 2**70, 1.01)):
        with pytest.raises(InputError):
            geometric_sizes(*bad)


def test_sweep_on_a_ring(capsys: pytest.CaptureFixture[str]) -> None:
    """On a ring that is ring's home, nothing beats it, and the bound bounds all."""
    ring = load("ring-4").topology
    rows = sweep(
        ring, "allgather", [1e3, 1e8], time_limit=5.0, ours=lambda size: greedy(Problem(ring, "allgather", size), 2)
    )
    for row in rows:
        assert {OURS, "ring"} <= row.finish_us.keys() and "tree" not in row.finish_us
        assert all(time >= row.bound_us * (1 - 1e-9) for time in row.finish_us.values())
    assert rows[1].finish_us["ring"] == pytest.approx(min(rows[1].finish_us.values()), rel=1e-2)
    made_up = SizeRow(1e6, 10.0, {OURS: 12.0, "ring": 30.0, "bruck": 24.0})
    assert (made_up.best_baseline, made_up.speedup) == (("bruck", 24.0), 2.0)
    assert made_up.gap == pytest.approx(0.2) and made_up.algbw_GBps("ring") == pytest.approx(1e6 / 30e3)


def test_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "b.png"
    argv = ("bench", "full-4", "allreduce", "-b", "64K", "-e", "1M", "-f", "16", "--time-limit", "0")
    assert run(*argv, "--methods", "ring,direct", "-o", picture, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["size_bytes"] for row in answer["rows"]] == [65536, 2**20]
    for row in answer["rows"]:
        assert set(row["finish_us"]) == {"ours", "ring", "direct"}
        best = min(row["finish_us"]["ring"], row["finish_us"]["direct"])
        assert row["speedup"] == pytest.approx(best / row["finish_us"]["ours"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(*argv) == 0
    shown = capsys.readouterr().out
    assert "speed-up" in shown and "ring µs" in shown
    assert run(*argv, "--methods", "rings") == 2
    assert run(*argv, "-o", tmp_path / "b.gif") == 2
    assert run("bench", "full-4", "allreduce", "-b", "1M", "-e", "1K") == 2


# -- the page ------------------------------------------------------------------------------------------------------


def text_of(facts: Any) -> str:
    return page(facts, pictures(facts, "svg", lambda text: pytest.fail(text)))


def require_self_contained(html: str) -> None:
    """Nothing is fetched: the policy forbids it, and no address is there to be."""
    assert "default-src 'none'" in html
    assert not re.search(r"(?:src|href)=[\"'](?!#|data:)", html.split("<script id=")[0].replace("xlink:href", "href"))
    assert html.count("<script") == html.count("</script>") == 2 and html.count("<h1>") == 1
    assert "@" not in re.sub(
        r"@media", "", re.sub(r"<style.*?</style>", "", html.split("<script id=")[0], flags=re.DOTALL)
    )


def test_page_of_a_schedule(schedule: Schedule) -> None:
    facts = schedule_facts(schedule, [2**20, 2**26])
    html = text_of(facts)
    require_self_contained(html)
    assert f"{schedule.finish_us:.2f} µs" in html and "recursive-doubling" in html and "Lower bounds" in html
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]
    assert sum(len(row["bars"]) for row in data["gantt"]["rows"]) == sum(len(send.path) for send in schedule.sends)
    assert facts.sweep[0].finish_us[OURS] == resized(schedule, 2**20).finish_us


def test_page_of_a_program(program: Program, machine: Topology) -> None:
    html = text_of(program_facts(program, machine, 8e6))
    require_self_contained(html)
    for words in ("Threadblock utilisation", "Critical path", "races in place", "proved", "Deadlock free with 1"):
        assert words in html
    broken = hand_made.both_receive_first()
    assert "NOT OK" in text_of(replace(program_facts(program, machine, 8e6), verdict=__import__(
        "teccl_msccl.program.check", fromlist=["check"]).check(broken)))  # fmt: skip


def test_hostile_names(schedule: Schedule) -> None:
    evil = '</script><script>alert("1")</script><img src=x onerror=alert(1)>@data@'
    topology = replace(schedule.topology, name=evil, nodes=tuple(
        replace(node, name=evil) if node.rank is None else node for node in schedule.topology.nodes))  # fmt: skip
    html = text_of(schedule_facts(replace(schedule, topology=topology)))
    assert html.count("</script>") == 2 and "<img" not in html


def test_report_command(
    schedule: Schedule,
    program: Program,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    schedule.write("s.json")
    program.write("p.xml")
    assert run("report", "s.json", "-o", "s.html", "--quick", "--format", "png,pdf", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["written"] == [
        "s.html",
        *(f"s-{n}.{e}" for e in ("png", "pdf") for n in ("topology", "gantt", "links")),
    ]
    assert all(Path(file).stat().st_size > 1000 for file in answer["written"])
    assert run("report", "p.xml", "--topology", "dgx-a100", "--size", "8MB", "--quick") == 0
    assert Path("report.html").exists()
    assert run("report", "p.xml") == 2
    assert "name its --topology" in capsys.readouterr().err
    assert run("report", "s.json", "--format", "gif") == 2
    assert run("report", "none.json") == 2


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs a browser: chromium")
def test_in_a_browser(schedule: Schedule, tmp_path: Path) -> None:
    """No complaint in its console, the script ends, and bars of the links' colour are on the picture."""
    from PIL import Image

    file, shot = tmp_path / "r.html", tmp_path / "r.png"
    file.write_text(text_of(schedule_facts(schedule)))
    base = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr", "--window-size=1200,2400"]  # fmt: skip
    done = subprocess.run([*base, "--dump-dom", f"file://{file}"], capture_output=True, text=True, timeout=120)
    assert 'data-ready="yes"' in done.stdout
    assert "CONSOLE" not in done.stderr, done.stderr
    subprocess.run([*base, f"--screenshot={shot}", f"file://{file}"], capture_output=True, timeout=120, check=True)
    image = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB")
    colours = {colour: count for count, colour in image.getcolors(maxcolors=2**24) or []}
    assert colours.get((0x3F, 0x7D, 0x00), 0) > 5000


# -- doctor --------------------------------------------------------------------------------------------------------


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("doctor", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    by_name = {finding["name"]: finding for finding in answer["findings"]}
    assert answer["ok"] and by_name["python"]["found"] and by_name["CBC"]["found"]
    assert set(answer["libraries"]) == {"nccl_interposer", "nccl_tuner"}
    assert all(finding["found"] or finding["advice"] for finding in answer["findings"])
    assert answer["next"].startswith("teccl-msccl synth")
    assert run("doctor") == 0
    assert "next: " in capsys.readouterr().out
    monkeypatch.setattr("teccl_msccl.runtime.doctor._importable", lambda module: module != "mip")
    assert run("doctor", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["ok"] and answer["next"] == "pip install mip"
