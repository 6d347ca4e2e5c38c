"""The experiment's draws, table, figures and command; the paper's claims on a small fabric."""

from __future__ import annotations

import builtins
import csv
import json

import pytest

from teccl_msccl.cli import main
from teccl_msccl.errors import InputError
from teccl_msccl.routing import experiment
from teccl_msccl.routing.experiment import Cell, Run, as_csv, draw_jobs, numbers, table
from teccl_msccl.routing.fabric import Clos
from teccl_msccl.routing.job import MODELS

FABRIC = Clos(24, 8, 32)


@pytest.mark.parametrize("seed", ["a", "b", "c"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_jobs_are_drawn_on_whole_tors_of_their_own(seed, count):
    fabric = experiment.FABRIC
    jobs = draw_jobs(fabric, count, seed)
    assert jobs == draw_jobs(fabric, count, seed)
    assert len(jobs) == count
    homes = [{fabric.tor_of(host) for host in job.hosts} for job in jobs]
    assert sum(map(len, homes)) == len(set().union(*homes))
    for job, home in zip(jobs, homes, strict=True):
        assert job.dp in (2, 4, 8)
        assert len(job.hosts) == MODELS[job.model].tp * MODELS[job.model].pp * job.dp
        assert len(home) == -(-len(job.hosts) // 32)
        ring = job.of_kind("dp")[0].flows
        assert [flow.src for flow in ring[1:]] == [flow.dst for flow in ring[:-1]]


def test_too_many_jobs_are_refused():
    with pytest.raises(InputError, match="do not fit"):
        draw_jobs(Clos(8, 8, 32), 5, "a")


def test_all_routers_without_failures_and_with():
    fabric = Clos(16, 32, 32)
    runs = experiment.experiment([2], [0, 4], draws=1, fabric=fabric)
    assert len(runs) == 2 * len(experiment.ROUTERS)
    by = {(run.dead_spines, run.router): run.slowdowns for run in runs}
    for router in ("edge-colour", "equitable", "auto"):
        assert by[0, router] == pytest.approx((1, 1))
    assert min(by[0, "ecmp"]) >= 2
    for router in ("equitable", "auto", "greedy"):  # 32 flows of a ToR on 28 spines
        assert max(by[4, router]) == pytest.approx(2)
    for dead in (0, 4):
        assert all(a <= g + 1e-9 for a, g in zip(by[dead, "auto"], by[dead, "greedy"], strict=True))
    assert len({run.flows for run in runs}) == 1


def test_the_table_is_of_means_over_jobs_and_draws():
    runs = [Run(2, 0, 0, "ecmp", (1.0, 2.0), 0.01, 8), Run(2, 0, 1, "ecmp", (3.0, 6.0), 0.03, 8)]
    (cell,) = table(runs)
    assert cell == Cell(2, 0, "ecmp", 3.0, 1.0, 6.0, pytest.approx(20.0))
    assert as_csv([cell]).splitlines()[1] == "2,0,ecmp,3.0,1.0,6.0,20.0"


def test_numbers():
    assert numbers("1-5", "--jobs") == [1, 2, 3, 4, 5]
    assert numbers("0,1,4,8", "--dead-spines") == [0, 1, 4, 8]
    for text in ("", "x", "3-1", "1-", "-1"):
        with pytest.raises(InputError, match="--jobs"):
            numbers(text, "--jobs")


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    """Run `route experiment` on a small fabric: exit code, stdout and stderr."""
    monkeypatch.setattr(experiment, "FABRIC", FABRIC)
    monkeypatch.setattr(experiment.experiment, "__defaults__", (3, 0, ("ecmp", "auto"), FABRIC, lambda run: None))

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["route", "experiment", "-o", str(tmp_path / "out"), *arguments])
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


def test_the_command(command, tmp_path):
    code, out, err = command("--jobs", "1", "--dead-spines", "0,1", "--draws", "1", "--json")
    answer = json.loads(out)
    assert code == 0
    assert [(cell["dead_spines"], cell["router"]) for cell in answer["table"]] == [
        (0, "ecmp"), (0, "auto"), (1, "ecmp"), (1, "auto"),
    ]  # fmt: skip
    assert len(list(csv.DictReader((tmp_path / "out" / "table.csv").open()))) == 4
    assert len(json.loads((tmp_path / "out" / "runs.json").read_text())) == 4
    for name in ("slowdown.svg", "routing-time.svg"):
        assert b"<svg" in (tmp_path / "out" / name).read_bytes()
    assert "draw 1 of 1" in err


def test_without_matplotlib_the_table_is_there_and_a_line_says_why_no_figures(command, monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    code, out, err = command("--jobs", "1", "--dead-spines", "0", "--draws", "1")
    assert code == 0
    assert "pip install 'teccl-msccl[report]'" in err
    assert "auto" in out
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["runs.json", "table.csv"]


@pytest.mark.parametrize(
    "arguments", [("--jobs", "x"), ("--jobs", "0"), ("--draws", "0"), ("--dead-spines", "8"), ("--jobs", "40")]
)
def test_wrong_options(command, arguments):
    code, _, err = command("--dead-spines", "0", *arguments)
    assert code == 2
    assert err.splitlines()[-1].startswith("error")
