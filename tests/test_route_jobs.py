"""Jobs, their collectives and their simulation: closed forms for jobs alone, by hand where they meet."""

from __future__ import annotations

import json
from fractions import Fraction as F

import pytest

from teccl_msccl.cli import main
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.routing.fabric import Clos
from teccl_msccl.routing.job import MODELS, Job, jobs_from_json
from teccl_msccl.routing.scenario import Scenario
from teccl_msccl.routing.simulate import alone_s, simulate


def job_of(model, k, fabric_hosts=None, **fields):
    """k replicas on hosts 0, 1, 2…, one NIC per GPU."""
    gpus = {"gpt3": 64, "bloom": 48, "llama2-70b": 128}[model]
    value = {"job": "J", "model": model, "dp": k, "hosts": list(range(gpus * k)), "pp_bytes": 0} | fields
    return Job.from_json(value, "jobs[0]")


TIMES = {
    "gpt3": (0.875, 1.3125, 1.53125),
    "bloom": (1.17333, 1.76, 2.05333),
    "llama2-70b": (0.175, 0.2625, 0.30625),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("k", [2, 4, 8])
def test_one_job_alone(model, k):
    job = job_of(model, k)
    assert len(job.of_kind("dp")) == {"gpt3": 64, "bloom": 48, "llama2-70b": 128}[model]
    assert alone_s(Clos(32, 32, 32), job.collectives) == pytest.approx(TIMES[model][(2, 4, 8).index(k)], rel=1e-5)


def test_the_chunk_is_rounded_up_twice():
    gpus, params = 48, 176 * 10**9
    job = job_of("bloom", 8)
    shard = -(-4 * params // gpus)
    assert job.chunk == -(-shard // 8)
    assert {flow.weight for c in job.collectives for flow in c.flows} == {F(2 * 7 * job.chunk)}


def test_parallelism_to_flows():
    job = Job.from_json(
        {"job": "J", "tp": 2, "pp": 3, "dp": 4, "ep": 2, "hosts": list(range(100, 124)), "bytes": 800,
         "pp_bytes": 10, "ep_bytes": 6}, "job",
    )  # fmt: skip
    ends = {c.name: [(f.src, f.dst, f.weight) for f in c.flows] for c in job.collectives}
    ring = [100, 106, 112, 118]  # stage 0, tp 0 of replicas 0..3
    assert ends["J/dp0"] == [(a, b, 2 * 3 * 200) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)]
    assert ends["J/pp1"] == [(101, 103, 10), (103, 101, 10), (103, 105, 10), (105, 103, 10)]
    assert ends["J/ep0"] == [(100, 106, 3), (106, 100, 3)]
    assert ends["J/ep6"] == [(112, 118, 3), (118, 112, 3)]
    assert {kind: len(job.of_kind(kind)) for kind in ("dp", "pp", "ep")} == {"dp": 6, "pp": 8, "ep": 12}
    assert [c.name for c in job.named("dp5")] == [c.name for c in job.named("J/dp5")] == ["J/dp5"]
    assert len(job.named("dp")) == 6


def test_ranks_that_share_a_host_send_nothing_within_it():
    job = Job.from_json({"job": "J", "tp": 4, "dp": 2, "hosts": [5, 9], "bytes": 100}, "job")
    assert [[(f.src, f.dst) for f in c.flows] for c in job.collectives] == [[(5, 9), (9, 5)]] * 4
    assert Job.from_json({"job": "J", "tp": 8, "hosts": [5], "bytes": 100}, "job").collectives == ()


def test_flows_of_its_own():
    job = Job.from_json({"job": "J", "flows": [{"collective": "c", "src": 0, "dst": 9, "weight": 5}]}, "job")
    assert [(c.name, c.kind, c.flows[0].job) for c in job.collectives] == [("J/c", "flows", "J")]
    assert Job.from_json(job.to_json(), "job") == job


@pytest.mark.parametrize("k", [2, 4])
def test_jobs_survive_json(k):
    job = job_of("gpt3", k, start_s=1.5, iterations=3, compute_s=1.0096, ep=2)
    assert Job.from_json(json.loads(json.dumps(job.to_json())), "job") == job


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "gpt5"}, "unknown model 'gpt5'"),
        ({"model": {}}, "unknown model"),
        ({"tp": 10**40}, "no cluster"),
        ({"iterations": 10**9}, "iterations; simulate fewer"),
        ({"dp": 3}, "hosts for 3 ranks"),
        ({"dp": 0}, "dp is 0"),
        ({"ep": 3}, "ep 3 does not divide dp 2"),
        ({"hosts": [4, 4]}, "host 4 is given twice"),
        ({"bytes": -1}, "bytes is below 0"),
        ({"bytes": float("nan")}, "finite"),
        ({"compute_s": "x"}, "number"),
        ({"job": "a/b"}, "no '/'"),
        ({"hots": []}, "unknown key 'hots'"),
        ({"flows": [{"src": 1, "dst": 1}]}, "two different hosts"),
    ],
)
def test_bad_jobs_are_named(change, words):
    with pytest.raises(InputError, match=words):
        Job.from_json({"job": "J", "dp": 2, "hosts": [0, 1], "bytes": 8} | change, "jobs[0]")


def test_two_jobs_of_one_name():
    with pytest.raises(InputError, match=r"jobs\[1\]: job 'J' is given twice"):
        jobs_from_json([{"job": "J", "hosts": [0]}] * 2, "jobs.json")


# -- simulation ----------------------------------------------------------------------------------------------

SECOND = 12.5e9  # bytes that 100 Gb/s carry in a second


def scenario(jobs, events=(), **fabric):
    shape = {"tors": 2, "spines": 1, "hosts_per_tor": 2} | fabric
    return Scenario.from_json({"fabric": shape, "jobs": jobs, "events": list(events)}, "jobs.json")


def sender(name, src, dst, seconds, **fields):
    return {"job": name, "flows": [{"src": src, "dst": dst, "weight": seconds * SECOND}], **fields}


def spans(result, job):
    """Starts and ends of a job's communications, one after the other."""
    return [t for c in result.communications if c.job == job for t in (c.start_s, c.end_s)]


@pytest.mark.parametrize("router", ["auto", "greedy", "edge-colour"])
def test_a_job_alone_takes_its_own_time(router):
    job = {"job": "J", "dp": 4, "hosts": [0, 2, 1, 3], "bytes": SECOND, "iterations": 3, "compute_s": 0.5}
    result = simulate(scenario([job], spines=2), router)
    alone = 2 * 3 * 0.25
    assert spans(result, "J") == pytest.approx([t for i in range(3) for t in (0.5 + i * 2, 0.5 + i * 2 + alone)])
    assert result.slowdown("J") == pytest.approx(1)
    assert result.carried_bytes == pytest.approx(3 * 4 * 2 * 3 * SECOND / 4)
    assert len(result.flow_times_s) == 3 * 4


def test_pipelines_run_while_the_job_computes():
    job = {
        "job": "J",
        "pp": 2,
        "dp": 2,
        "hosts": [0, 2, 1, 3],
        "bytes": SECOND,
        "pp_bytes": SECOND / 4,
        "iterations": 2,
    }
    for compute_s, begins in ((1, [1, 3]), (0.1, [0.25, 1.5])):
        result = simulate(scenario([job | {"compute_s": compute_s}], spines=2))
        found = {(c.kind, c.iteration): (c.start_s, c.end_s) for c in result.communications}
        assert [found["dp", i][0] for i in range(2)] == pytest.approx(begins)
        assert [found["pp", i][0] for i in range(2)] == pytest.approx([0, begins[0] + 1])
        assert found["pp", 0][1] == pytest.approx(0.25)


def test_two_flows_share_a_link_while_both_run():
    result = simulate(scenario([sender("A", 0, 2, 1), sender("B", 1, 3, 1, start_s=0.5)]), mode="flow")
    assert spans(result, "A") == pytest.approx([0, 1.5])
    assert spans(result, "B") == pytest.approx([0.5, 2])
    assert result.slowdown("A", "flows") == pytest.approx(1.5)


def test_collectives_share_by_pace_and_flows_by_rate():
    jobs = [sender("A", 0, 2, 3), sender("B", 1, 3, 1)]
    # by pace both end together after 4 s; by rate B ends after 2 s, A after 4
    assert spans(simulate(scenario(jobs), mode="coll"), "B") == pytest.approx([0, 4])
    assert spans(simulate(scenario(jobs), mode="flow"), "B") == pytest.approx([0, 2])
    assert spans(simulate(scenario(jobs), mode="flow"), "A") == pytest.approx([0, 4])


@pytest.mark.parametrize("router", ["auto", "greedy"])
def test_a_spine_that_fails_and_comes_back(router):
    events = [
        {"t": 1, "event": "spine", "spine": 0, "alive": False},
        {"t": 2, "event": "spine", "spine": 0, "alive": True},
    ]
    jobs = [sender("A", 0, 2, 3), sender("B", 1, 3, 3)]
    result = simulate(scenario(jobs, events, spines=2), router)
    # 1 s apart, 1 s shared; the change back waits for the end of a step, which for a flow is its end
    assert spans(result, "A") + spans(result, "B") == pytest.approx([0, 5, 0, 5])
    assert result.moved >= 1


def test_a_new_route_is_taken_at_a_step_boundary():
    """Ring of 2, 2 steps of 1 s. Both rings share spine 0 once spine 1 has failed (at 0.2 s) until it is back (0.4 s).
    Each has gone 0.3 s by then, so the first boundary is at 0.4 + 2 × 0.7 s."""
    ring = {"dp": 2, "bytes": 2 * SECOND}
    jobs = [{"job": "A", "hosts": [0, 2], **ring}, {"job": "B", "hosts": [1, 3], **ring}]
    events = [
        {"t": 0.2, "event": "spine", "spine": 1, "alive": False},
        {"t": 0.4, "event": "spine", "spine": 1, "alive": True},
    ]
    result = simulate(scenario(jobs, events, spines=2), "greedy")
    assert spans(result, "A") + spans(result, "B") == pytest.approx([0, 1.8 + 1, 0, 1.8 + 1])


def test_links_of_less_capacity_slow_down():
    events = [{"t": 0.5, "event": "link", "kind": "up", "tor": 0, "spine": 0, "capacity": 0.5}]
    assert spans(simulate(scenario([sender("A", 0, 2, 1)], events)), "A") == pytest.approx([0, 1.5])


def test_spans_that_are_short_against_the_clock_end_too():
    job = {"job": "J", "dp": 2, "hosts": [0, 2], "bytes": 3, "start_s": 1e6, "iterations": 5, "compute_s": 0.1}
    result = simulate(scenario([job]))
    assert len(result.communications) == 5
    assert result.carried_bytes == pytest.approx(5 * 2 * 4)


def test_a_job_that_can_never_end_is_refused():
    events = [{"t": 0.5, "event": "spine", "spine": 0, "alive": False}]
    with pytest.raises(Refused, match="job A can never end"):
        simulate(scenario([sender("A", 0, 2, 1)], events), period_s=0.1)


def test_simulated_time_is_the_same_for_a_seed():
    jobs = [{"job": n, "dp": 4, "hosts": hosts, "bytes": 1e9, "iterations": 2} for n, hosts in
            (("A", [0, 3, 6, 9]), ("B", [1, 4, 7, 10]), ("C", [2, 5, 8, 11]))]  # fmt: skip
    case = scenario(jobs, tors=4, spines=2, hosts_per_tor=3)
    one, two = (simulate(case, "ecmp", seed=5) for _ in range(2))
    assert one.communications == two.communications


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"jobs": [sender("A", 0, 9, 1)]}, "no host 9"),
        ({"jobs": {}}, "must be a list"),
        ({"events": [{"t": 0, "event": "job_leave", "job": "A"}]}, r"events\[0\]: job_leave"),
        ({"events": None}, "'events' must be a list"),
        ({"events": [{"t": 0, "event": "flood"}]}, "unknown event 'flood'"),
        ({"fabric": {"tors": 2, "spines": 1, "hosts_per_tor": 2, "dead_spines": [0]}}, "cannot be reached"),
    ],
)
def test_bad_scenarios_are_named(change, words):
    value = {"fabric": {"tors": 2, "spines": 1, "hosts_per_tor": 2}, "jobs": [sender("A", 0, 2, 1)]} | change
    with pytest.raises(InputError, match=words):
        Scenario.from_json(value, "jobs.json")


def test_the_command(tmp_path, capsys):
    path = tmp_path / "jobs.json"
    job = {"job": "J", "dp": 2, "hosts": [0, 2], "bytes": SECOND, "compute_s": 1, "iterations": 2}
    path.write_text(json.dumps({"fabric": {"tors": 2, "spines": 1, "hosts_per_tor": 2}, "jobs": [job]}))
    with pytest.raises(SystemExit) as stop:
        main(["route", "simulate", str(path), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert stop.value.code == 0
    reduce = answer["jobs"]["J"]["all_reduce"]
    assert (reduce["mean_s"], reduce["slowdown"], len(reduce["iterations"])) == (pytest.approx(1), pytest.approx(1), 2)
    assert answer["flow_completion_s"]["p99"] == pytest.approx(1)
    assert answer["controller"]["runs"] > 0
    for wrong in (["--router", "x"], ["--mode", "x"], ["--period", "-1"]):
        with pytest.raises(SystemExit) as stop:
            main(["route", "simulate", str(path), *wrong])
        assert stop.value.code == 2
    with pytest.raises(SystemExit) as stop:
        main(["route", "simulate", str(path)])
    assert stop.value.code == 0
    assert "all_reduce" in capsys.readouterr().out
