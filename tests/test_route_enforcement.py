"""RoCEv2 arithmetic, hash models and the rows that hosts are given."""

from __future__ import annotations

import csv
import io
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teccl_msccl.errors import InputError
from teccl_msccl.routing.enforcement import HEADER, enforce
from teccl_msccl.routing.fabric import Clos, Link
from teccl_msccl.routing.hash_model import CrcHash, Ends, ProbedTable, hash_model
from teccl_msccl.routing.rocev2 import derived_flow_label, derived_udp_sport, flow_label, udp_sport
from teccl_msccl.routing.routers import optimize
from teccl_msccl.routing.traffic import Flow, Traffic


@pytest.mark.parametrize(
    ("local", "remote", "label", "sport"), [(0x11, 0x12, 0x132, 49458), (0x1A2B, 0x3C4D, 0x9F28D, 62122)]
)
def test_worked_examples_of_derived_labels(local, remote, label, sport):
    assert derived_flow_label(local, remote) == label
    assert derived_udp_sport(local, remote) == udp_sport(label) == sport


def test_labels_that_share_a_port():
    assert udp_sport(1) == udp_sport(0x4000) == 49153


def test_every_port_has_a_label_that_asks_for_it():
    for port in range(0xC000, 0x10000):
        assert 0 < flow_label(port) <= 0xFFFFF
        assert udp_sport(flow_label(port)) == port
    assert flow_label(0xC000) == 0x4001


@given(st.integers(1, 0xFFFFFF), st.integers(1, 0xFFFFFF))
def test_derived_labels_do_not_depend_on_the_side(local, remote):
    assert derived_flow_label(local, remote) == derived_flow_label(remote, local) <= 0xFFFFF
    assert 0xC000 <= derived_udp_sport(local, remote) <= 0xFFFF


@pytest.mark.parametrize("call", [lambda: udp_sport(0), lambda: udp_sport(1 << 20), lambda: flow_label(4791)])
def test_arithmetic_refuses_what_is_out_of_range(call):
    with pytest.raises(ValueError, match="not in"):
        call()


def crc32_bit_by_bit(data, seed=0):
    crc = seed ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("seed", [0, 7])
def test_the_crc_is_over_the_five_tuple(seed):
    ends, live = Ends(0, 9, "10.0.0.1", "10.1.2.3"), [0, 2, 3, 5, 7]
    for sport in (0xC000, 50000, 0xFFFF):
        data = bytes([10, 0, 0, 1, 10, 1, 2, 3, 17]) + struct.pack(">HH", sport, 4791)
        assert CrcHash(seed).spine(ends, sport, live) == live[crc32_bit_by_bit(data, seed) % 5]
    for spine in live:
        port = CrcHash(seed).port_to(ends, spine, live, 65000)
        assert CrcHash(seed).spine(ends, port, live) == spine
    assert CrcHash(seed).port_to(ends, 4, live, 65000) is None


def rows_of(table):
    return list(csv.DictReader(io.StringIO(table.csv())))


def test_rows_lead_over_the_chosen_spines():
    fabric = Clos(4, 8, 4, dead_spines=frozenset({2}))
    flows = Traffic(fabric, tuple(Flow("ring", i, (i + 4) % 16, job="J") for i in range(16)))
    routes = optimize(flows, "auto").routes
    table = enforce(flows, routes, CrcHash(), version=3)
    assert table.unreachable == ()
    rows = rows_of(table)
    assert tuple(rows[0]) == HEADER
    live = [s for s in range(8) if s != 2]
    for row, flow, spine in zip(rows, flows.flows, routes, strict=True):
        assert int(row["spine"]) == spine
        assert (row["job"], row["communicator"], row["version"], row["qp"]) == ("J", "ring", "3", "0")
        assert (int(row["rank"]), int(row["peer"])) == (flow.src, flow.dst)
        assert row["src_ip"] == f"10.0.0.{flow.src + 1}"
        port = udp_sport(int(row["flow_label"]))
        assert port == int(row["udp_sport"])
        assert CrcHash().spine(Ends(flow.src, flow.dst, row["src_ip"], row["dst_ip"]), port, live) == spine


def test_what_flows_say_is_kept_and_queue_pairs_are_numbered():
    extra = (
        ("rank", 3),
        ("peer", 5),
        ("channel", 2),
        ("communicator", "c"),
        ("src_ip", "192.168.0.9"),
        ("dst_qpn", 77),
    )
    flows = Traffic(Clos(2, 2, 4), (Flow("a", 0, 4, extra=extra), Flow("b", 1, 2), Flow("a", 0, 4))).split(2)
    rows = rows_of(enforce(flows, optimize(flows, "auto").routes, CrcHash()))
    assert [row["qp"] for row in rows] == ["0", "1"] * 3
    first = rows[0]
    assert [first[key] for key in ("rank", "peer", "channel", "communicator", "src_ip", "dst_qpn")] == [
        "3", "5", "2", "c", "192.168.0.9", "77",
    ]  # fmt: skip
    assert {first["spine"], rows[1]["spine"]} == {"0", "1"}
    inside = rows[2]
    assert inside["spine"] == inside["udp_sport"] == inside["flow_label"] == ""
    assert [row["channel"] for row in rows[4:]] == ["1", "1"]


def test_a_spine_that_no_port_reaches_is_said():
    flows = Traffic(Clos(2, 2, 2), (Flow("A", 0, 2), Flow("B", 1, 3)))
    probed = ProbedTable([(0, 2, 50000, 1), (0, 2, 50001, 0), (1, 3, 50000, 0)])
    table = enforce(flows, (1, 1), probed)
    assert table.unreachable == ("flows[1] (B: 1>3): no known UDP source port reaches spine 1 from ToR 0",)
    rows = rows_of(table)
    assert (rows[0]["udp_sport"], rows[0]["flow_label"]) == ("50000", str(50000 & 0x3FFF))
    assert rows[1]["udp_sport"] == ""
    assert probed.spine(Ends(0, 2, "", ""), 50001, [0, 1]) == 0
    assert probed.spine(Ends(3, 2, "", ""), 50001, [0, 1]) is None


def test_probed_tables_are_read_and_bad_ones_named(tmp_path):
    path = tmp_path / "probed.csv"
    path.write_text("src,dst,udp_sport,spine\n0,2,49152,1\n")
    assert hash_model(str(path)).port_to(Ends(0, 2, "", ""), 1, [0, 1], 60000) == 49152
    for text, words in [
        ("src,dst,spine\n", "no column 'udp_sport'"),
        ("src,dst,udp_sport,spine\n0,2,x,1\n", "line 2: four whole numbers"),
        ("src,dst,udp_sport,spine\n0,2,80,1\n", "line 2: port 80"),
    ]:
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            hash_model(str(path))
    with pytest.raises(InputError, match="cannot read"):
        hash_model(str(tmp_path / "missing.csv"))


def test_ecmp_follows_the_queue_pair_numbers_that_flows_give():
    fabric = Clos(2, 4, 64, exceptions={Link("up", 0, 3): 0})
    flows = tuple(Flow("A", i, 64 + i, extra=(("src_qpn", 17 + i), ("dst_qpn", 99))) for i in range(64))
    traffic = Traffic(fabric, flows)
    routes = optimize(traffic, "ecmp").routes
    for flow, route in zip(flows, routes, strict=True):
        ends = Ends(flow.src, flow.dst, f"10.0.0.{flow.src + 1}", f"10.0.0.{flow.dst + 1}")
        assert route == CrcHash().spine(ends, derived_udp_sport(17 + flow.src, 99), [0, 1, 2])
    assert set(routes) == {0, 1, 2}
    unlike = Traffic(fabric, tuple(flow._replace(extra=()) for flow in flows))
    assert replace(unlike).flows != flows
    assert optimize(unlike, "ecmp").routes == optimize(unlike, "ecmp").routes
