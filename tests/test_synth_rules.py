"""`synth` under rules: --relay-chunks and --shares, from the command line and from Python."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from strategies import machine

from teccl_msccl import Topology, synthesize
from teccl_msccl.errors import InputError
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.ask import ask
from teccl_msccl.synthesis.epochs import epochs_of
from teccl_msccl.synthesis.portfolio import run
from teccl_msccl.synthesis.rules import Rules
from teccl_msccl.synthesis.settings import Settings
from teccl_msccl.synthesis.shares import read_shares

MILP = ("--method", "milp", "--chunks", 1, "--time-limit", 5)


def one_way(topology: Topology, src: int, dst: int) -> int:
    return next(link.id for link in topology.links if (link.src, link.dst) == (src, dst))


def test_half_a_link_takes_twice_the_time(call, tmp_path):
    """A scatter over a line of two: one chunk of 10 µs at 50 GB/s; from 4 µs on at half that, and α after it."""
    line = Topology.load("line-2")
    alpha, beta = line.links[0].alpha_us, line.links[0].beta_us(5e5)
    (tmp_path / "shares.csv").write_text(f"# busy from then on\n0-1, {0.4 * beta}, 0.5\n")
    code, out, err = call(
        "synth", "line-2", "scatter", "--size", "1MB", *MILP, "--shares", "shares.csv", "--schedule", "s.json", "--json"
    )
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["finish_us"] == pytest.approx(alpha + 0.4 * beta + 2 * 0.6 * beta)
    assert answer["rules"] == {"relay_chunks": None, "shares": {"0": [[0.4 * beta, 0.5]], "1": [[0.4 * beta, 0.5]]}}
    Schedule.read(tmp_path / "s.json").validate()


def test_a_share_of_one_direction_leaves_the_other(tmp_path):
    line = Topology.load("line-3")
    file = tmp_path / "shares.csv"
    file.write_text("0>1,0,0.25\n0>1,10,1\n1-2,5,0.5\n")
    assert read_shares(file, line) == {
        one_way(line, 0, 1): ((0.0, 0.25), (10.0, 1.0)),
        one_way(line, 1, 2): ((5.0, 0.5),),
        one_way(line, 2, 1): ((5.0, 0.5),),
    }


def test_room_for_one_is_told_and_kept(call, tmp_path):
    """An alltoall on a line of 3: GPU 1 passes on two chunks, one each way."""
    code, out, err = call(
        "synth", "line-3", "alltoall", "--size", "1MB", *MILP, "--relay-chunks", 1, "--schedule", "s.json"
    )
    assert (code, err) == (0, "")
    assert "under       1 chunk(s) at most on a relay" in out
    schedule = Schedule.read(tmp_path / "s.json")
    schedule.validate()
    held = []
    for chunk in schedule.demand.chunks:
        if chunk.origin != chunk.want and 1 not in (*chunk.origin, *chunk.want):
            comes, goes = sorted((s for s in schedule.sends if s.chunk == chunk.id), key=lambda send: send.start_us)
            held.append((schedule.arrival_us(comes), goes.start_us))
    (_, first_goes), (second_comes, _) = sorted(held)
    assert first_goes < second_comes


def test_no_room_and_no_way_is_refused_by_chunk_and_gpu(call):
    code, out, err = call("synth", "line-3", "alltoall", "--size", "1MB", *MILP, "--relay-chunks", 0)
    assert (code, out) == (1, "")
    assert err.startswith("error: chunk 2 has no way from GPU 0 to GPU 2")
    assert err.count("\n") == 1


def test_a_link_that_is_gone_for_a_second_is_gone_round(call, tmp_path):
    """A ring of 4 without one link, both ways, for long: half a second of epochs is not followed, a line of 4 is taken,
    in three steps of 250 kB at 50 GB/s for each of its ends."""
    (tmp_path / "gone.csv").write_text("0-1,0,0\n0-1,1e9,1\n")
    code, out, err = call("synth", "ring-4", "allgather", "--size", "1MB", *MILP, "--shares", "gone.csv", "--json")
    assert (code, err) == (0, "")
    alpha, beta = Topology.load("line-4").links[0].alpha_us, Topology.load("line-4").links[0].beta_us(2.5e5)
    assert 3 * beta + alpha <= json.loads(out)["finish_us"] <= 5 * (alpha + beta)


@pytest.mark.parametrize("share", ["1e-320", "1e-9"])
def test_a_share_of_next_to_nothing_is_refused_at_once(call, tmp_path, share):
    (tmp_path / "none.csv").write_text(f"0>1,0,{share}\n")
    code, out, err = call("synth", "line-2", "allgather", "--size", "1MB", *MILP, "--shares", "none.csv")
    assert (code, out) == (1, "")
    assert "is on its way from GPU 0 to GPU 1 for more than" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('0-1,0,"' + "1" * 200_000, "not a CSV (field larger than field limit"),
        ("0-1,0\n", "line 1: 2 cells; write link,from µs,share"),
        ("\n0-3,0,0.5\n", "line 2: line-4 has no link between GPU 0 and GPU 3; GPU 0 has links to GPU 1"),
        ("0-9,0,0.5\n", "line 1: line-4 has no such two ends; write 3-5 (GPUs)"),
        ("0-1,soon,0.5\n", "line 1: 'soon' is no time in µs"),
        ("0-1,0,1.5\n", "line 1: a share of 1.5; it must be 0 to 1"),
        ("0-1,0,0.5\n1>0,0,0.25\n", "line 2: link 1>0 has a share from 0 µs on already"),
        ("0>1,0,0.5\n0>1,5,0\n", "the link from node 0 to node 1 has nothing from 5 µs on"),
    ],
)
def test_shares_that_cannot_be_meant(call, tmp_path, text, said):
    (tmp_path / "shares.csv").write_text(text)
    code, out, err = call("synth", "line-4", "allgather", "--size", "1MB", *MILP, "--shares", "shares.csv")
    assert (code, out) == (2, "")
    assert err.startswith("error: shares.csv: ")
    assert said in err
    assert err.count("\n") == 1


def test_what_heeds_no_rules():
    ring = Topology.load("ring-4")
    rules = Rules(relay_chunks=1)
    with pytest.raises(InputError, match=r"method auto heeds no relay_chunks .* use --method milp"):
        synthesize(ring, "allgather", "1MB", rules=rules)
    with pytest.raises(InputError, match="reduce_scatter reduces, and GPUs that have no part in it may pass sums on"):
        synthesize(Topology.load("line-3"), "reduce_scatter", "1MB", groups=["0,2"], method="milp", rules=rules)
    with pytest.raises(InputError, match="shares of link 99: ring-4 has no such link"):
        synthesize(ring, "allgather", "1MB", method="milp", rules=Rules(shares={99: ((0.0, 0.5),)}))


def test_in_no_time_there_is_a_schedule_that_keeps_the_rules_and_a_start_may_be_given():
    ring = Topology.load("ring-4")
    rules = Rules(shares={one_way(ring, 0, 1): ((0.0, 0.25),)})
    start = synthesize(ring, "allgather", "1MB", method="ring", nchunks=1)
    quick = synthesize(ring, "allgather", "1MB", method="milp", rules=rules, nchunks=1, time_limit=0, start=start)
    found = synthesize(ring, "allgather", "1MB", method="milp", rules=rules, nchunks=1, time_limit=5, start=start)
    # three shares over half-used links on one side: those of the ring in one direction alone would take four times
    assert found.finish_us <= quick.finish_us
    assert found.finish_us > synthesize(ring, "allgather", "1MB", method="milp", nchunks=1, time_limit=2).finish_us


@pytest.mark.parametrize(("steps", "slower"), [(((0.0, 0.5),), 2), (((15.0, 0.5),), 2), (((0.0, 0.5), (5.0, 1.0)), 1)])
def test_a_sum_takes_as_long_as_its_slowest_link_lets_it(steps, slower):
    """Reduce of one chunk of 20 µs at 50 GB/s over a line of 3: from GPU 2 to 1, and from about 20 µs on to GPU 0."""
    line = Topology.load("line-3")
    rules = Rules(shares={one_way(line, 1, 0): steps})
    found = synthesize(line, "reduce", "1MB", method="milp", rules=rules, nchunks=1, time_limit=2)
    alpha, beta = line.links[0].alpha_us, line.links[0].beta_us(1e6)
    assert found.finish_us == pytest.approx(2 * alpha + beta + slower * beta)


def test_a_reduce_scatter_under_shares_is_an_allgather_backwards():
    """Shares that do not change are the same backwards; the MILP goes round them for both, what goes over the slow link
    takes its time, and an allreduce as long as both at the most."""
    ring = Topology.load("ring-4")
    took = {}
    for collective, link in (("allgather", (0, 1)), ("reduce_scatter", (1, 0)), ("allreduce", (1, 0))):
        slow = one_way(ring, *link)
        rules = Rules(shares={slow: ((0.0, 0.25),)})
        found = synthesize(ring, collective, "1MB", method="milp", rules=rules, nchunks=1, time_limit=3)
        found.validate()
        took[collective] = found.finish_us
        starts = sorted(send.start_us for send in found.sends if slow in send.path)
        nbytes = found.demand.chunks[0].bytes
        assert all(b - a >= 4 * ring.link_by_id[slow].beta_us(nbytes) - 1e-9 for a, b in pairwise(starts))
    plain = synthesize(ring, "allgather", "1MB", method="milp", nchunks=1, time_limit=1)
    assert took["reduce_scatter"] == pytest.approx(took["allgather"])
    assert plain.finish_us < took["allgather"] < 4 * plain.finish_us
    assert took["allreduce"] <= took["allgather"] + took["reduce_scatter"] + 1e-9


def test_gpus_that_add_up_are_no_relays():
    ring = Topology.load("ring-4")
    for collective in ("reduce_scatter", "allreduce", "reduce"):
        ruled, free = (
            synthesize(ring, collective, "1MB", method="milp", nchunks=1, time_limit=1, rules=rules)
            for rules in (Rules(relay_chunks=0), Rules())
        )
        assert ruled.finish_us == pytest.approx(free.finish_us)


@pytest.mark.parametrize("epochs", ["fast", "slow"])
def test_room_on_relays_is_counted_in_the_epochs_asked_for(epochs):
    """A line of 3, whose second wire has half the bandwidth of its first."""
    topology = machine("ggg", [(0, 1, 50, 0.5), (1, 2, 25, 0.5)])
    problem = ask(topology, "alltoall", 3e5)
    found = run(
        problem,
        Settings(nchunks=1, epochs=epochs, rules=Rules(relay_chunks=1)),
        method="milp",
        time_limit=3,
    )
    ((name, tau),) = epochs_of(topology, found.schedule.demand, epochs).items()
    assert {report.grid for report in found.milp} == {name} == {epochs}
    for send in found.schedule.sends:
        assert send.start_us / tau == pytest.approx(round(send.start_us / tau))
