"""Calibration: figures fitted from times, and the files that times come in."""

import json
import random

import pytest

from teccl_msccl.cli import main
from teccl_msccl.errors import InputError
from teccl_msccl.topology.calibrate import Measurement, calibrate, pairs_by_path
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.measured import read_measurements
from teccl_msccl.topology.model import Topology
from teccl_msccl.topology.paths import direct_paths

SIZES = (1e3, 1e5, 1e6, 1e8)


def times(alpha_us, GBps, pairs, noise=0.0, sizes=SIZES, seed=1):
    rng = random.Random(seed)
    return [
        Measurement(src, dst, n, (alpha_us + n / GBps / 1e3) * (1 + noise * rng.uniform(-1, 1)), "row")
        for src, dst in pairs
        for n in sizes
    ]


def figures(topology, pair):
    (path, *_) = direct_paths(topology, frozenset({pair}))
    return pytest.approx((path.alpha_us, path.bandwidth_GBps), rel=1e-4)


def test_exact_times_give_their_figures_back():
    found = calibrate(load("ring-4").topology, times(1.5, 37.0, [(0, 1), (1, 2)]))
    assert {(x.alpha_us, x.bandwidth_GBps) for x in found.topology.links} == {(1.5, 37.0)}
    (fit,) = found.fits
    assert (fit.pairs, fit.measurements) == (2, 8)
    assert fit.residual < 1e-9
    assert (fit.was_alpha_us, fit.was_bandwidth_GBps) == (0.5, 50.0)
    assert "calibrated from 8 measurements" in found.topology.source
    assert not found.warnings


def test_the_switch_is_crossed_at_the_measured_figures():
    machine = load("dgx-a100").topology
    found = calibrate(machine, times(0.9, 210.0, [(0, 1), (3, 7)]))
    assert figures(found.topology, (5, 2)) == (0.9, 210.0)
    assert any("pcie" in warning for warning in found.warnings)  # not measured, and said so
    assert [x for x in found.topology.links if x.kind == "pcie"] == [x for x in machine.links if x.kind == "pcie"]


def test_kinds_of_path_are_told_apart():
    machine = load("dgx1x2").topology
    near, double, far = (0, 1), (0, 3), (0, 8)
    found = calibrate(machine, times(0.7, 21, [near]) + times(0.8, 43, [double]) + times(4.0, 11, [far]))
    assert figures(found.topology, near) == (0.7, 21)
    assert figures(found.topology, double) == (0.8, 43)
    assert figures(found.topology, far) == (4.0, 11)


def test_a_link_in_two_kinds_of_path_keeps_the_shorter_ones_figures():
    machine = load("pcie-gen3").topology
    found = calibrate(machine, times(1.4, 10, [(0, 1)]) + times(2.0, 8, [(0, 4)]))
    assert figures(found.topology, (2, 3)) == (1.4, 10)
    (path, *_) = direct_paths(found.topology, frozenset({(0, 4)}))
    assert path.bandwidth_GBps == pytest.approx(8)
    assert path.alpha_us == pytest.approx(2.0)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    machine = load("full-3").topology
    inside = 0
    for seed in range(60):
        (fit,) = calibrate(machine, times(2.0, 30.0, [(0, 1), (1, 2), (0, 2)], noise=0.05, seed=seed)).fits
        assert 0 < fit.residual < 0.06
        inside += abs(fit.bandwidth_GBps - 30.0) <= fit.bandwidth_interval_GBps
    assert inside >= 50


def test_a_negative_latency_is_taken_as_none():
    found = calibrate(load("ring-4").topology, [Measurement(0, 1, 1e6, 19, "a"), Measurement(0, 1, 2e6, 40, "b")])
    assert found.fits[0].alpha_us == 0
    assert "smaller sizes" in found.warnings[0]


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ([], "no measurements"),
        ([Measurement(0, 9, 1, 1, "row 2")], "row 2"),
        ([Measurement(1, 1, 1, 1, "row 2")], "different ranks"),
        ([Measurement(0, 1, -1, 1, "row 2")], "zero or more"),
        ([Measurement(0, 1, 1, 0, "row 2")], "positive"),
        ([Measurement(0, 1, 1, float("nan"), "row 2")], "positive"),
        ([Measurement(0, 1, 1e6, 5, "row 2")] * 3, "one size only"),
        ([Measurement(0, 1, 1e3, 50, "row 2"), Measurement(0, 1, 1e6, 5, "r")], "do not grow"),
        ([Measurement(0, 2, 1e3, 50, "row 2")], "no direct path"),
    ],
)
def test_measurements_that_cannot_be_used(measured, said):
    with pytest.raises(InputError) as refusal:
        calibrate(load("ring-4").topology, measured)
    assert said in str(refusal.value)


# -- files ---------------------------------------------------------------------------------------------------


def test_csv_by_pair_and_by_kind(tmp_path):
    machine = load("dgx-a100x2").topology
    path = tmp_path / "times.csv"
    path.write_text("# ours\nsrc, dst, bytes, time_us\n0,1,1000,0.7\n0,1,1e6,5\n")
    assert [(m.src, m.dst, m.nbytes, m.time_us) for m in read_measurements(path, machine)] == [
        (0, 1, 1e3, 0.7),
        (0, 1, 1e6, 5.0),
    ]
    path.write_text("kind,bytes,time_us\nnetwork,1000,3\nnvlink,1000,1\n")
    across, inside = read_measurements(path, machine)
    assert across.dst >= 8 > inside.dst


SENDRECV = """# nThread 1 nGpus 4 minBytes 1048576 maxBytes 8388608 step: 2(factor) warmup iters: 5 iters: 20
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float    none      -1    22.00   47.66   47.66      0    30.00   34.95   34.95    N/A
     4194304       1048576     float    none      -1    84.91   49.40   49.40      0    99.00   42.37   42.37    N/A
# Avg bus bandwidth    : 43.1
"""


def test_sendrecv_perf(tmp_path):
    path = tmp_path / "out"
    path.write_text(SENDRECV)
    found = calibrate(load("ring-4").topology, read_measurements(path, load("ring-4").topology))
    assert found.fits[0].bandwidth_GBps == pytest.approx(50, rel=1e-3)
    path.write_text(SENDRECV.replace("none      -1", "sum      -1"))
    with pytest.raises(InputError, match=r"line 4.*sendrecv_perf"):
        read_measurements(path, load("ring-4").topology)


CUDA = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA A100
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 1290.0  15.0
     1  15.0 1290.0
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 1290.0  80.0
     1  80.0 1290.0
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 1290.0  150.0
     1  150.0 1290.0
P2P=Disabled Latency Matrix (us)
   GPU     0      1
     0   2.10  20.00
     1  20.00   2.10
   CPU     0      1
     0   2.10  9.00
     1   9.00  2.10
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   2.10   2.50
     1   2.50   2.10
   CPU     0      1
     0   2.10  1.00
     1   1.00  2.10
"""


def test_p2p_bandwidth_latency_test(tmp_path):
    path = tmp_path / "out"
    path.write_text(CUDA)
    (fit,) = calibrate(load("full-2").topology, read_measurements(path, load("full-2").topology)).fits
    assert fit.bandwidth_GBps == pytest.approx(80)
    assert fit.alpha_us == pytest.approx(2.5, rel=1e-3)
    path.write_text(CUDA.replace("P2P=Enabled", "P2P=Disabled"))
    with pytest.raises(InputError, match="P2P=Enabled"):
        read_measurements(path, load("full-2").topology)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "columns"),
        ("a,b\n1,2\n", "columns"),
        ("src,dst,bytes,time_us\n0,x,1,1\n", "row 2: dst"),
        ("src,dst,bytes,time_us\n0,1,many,1\n", "row 2: bytes"),
        ("src,dst,bytes,time_us\n0,1\n", "row 2: bytes"),
        ("kind,bytes,time_us\npigeon,1,1\n", "pigeon"),
        ("\x00\x01", "columns"),
    ],
)
def test_files_that_hold_no_times(tmp_path, text, said):
    path = tmp_path / "times"
    path.write_text(text)
    with pytest.raises(InputError) as refusal:
        read_measurements(path, load("ring-4").topology)
    assert said in str(refusal.value)


# -- the command ---------------------------------------------------------------------------------------------


def test_the_command_writes_the_calibrated_topology(tmp_path, capsys):
    path, out = tmp_path / "times.csv", tmp_path / "ring.json"
    rows = [f"{m.src},{m.dst},{m.nbytes},{m.time_us}" for m in times(1.5, 37.0, [(0, 1)])]
    path.write_text("\n".join(["src,dst,bytes,time_us", *rows]))
    with pytest.raises(SystemExit) as stop:
        main(["topo", "calibrate", "ring-4", "--from", str(path), "-o", str(out), "--json"])
    assert stop.value.code == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["fits"][0]["bandwidth_GBps"] == pytest.approx(37)
    assert {x.alpha_us for x in Topology.read(out).links} == {1.5}
    with pytest.raises(SystemExit) as stop:
        main(["topo", "calibrate", "ring-4"])
    assert stop.value.code == 2
    assert "mpirun -np 4" in capsys.readouterr().err


def test_pairs_are_grouped_by_what_they_cross():
    kinds = pairs_by_path(load("dgx-a100x2").topology)
    assert sorted(map(len, kinds)) == [32, 32, 64, 112]
