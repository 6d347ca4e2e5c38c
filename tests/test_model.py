"""Topology: what it refuses, and its JSON."""

import json
import pickle

import pytest

from teccl_msccl.errors import InputError
from teccl_msccl.topology.model import Topology


def two_gpus(**changes):
    value = {
        "name": "pair",
        "nodes": [{"id": 4, "kind": "gpu", "rank": 1}, {"id": 9, "kind": "gpu", "rank": 0, "name": "first"}],
        "links": [
            {"src": 4, "dst": 9, "bandwidth_GBps": 50, "alpha_us": 0.5, "kind": "nvlink"},
            {"src": 9, "dst": 4, "bandwidth_GBps": 25, "alpha_us": 0},
        ],
    }
    return {**value, **changes}


def test_gpus_are_ordered_by_rank_and_links_numbered_by_position():
    topology = Topology.from_json(two_gpus())
    assert topology.gpus == (9, 4)
    assert topology.rank_of == {9: 0, 4: 1}
    assert [link.id for link in topology.links] == [0, 1]
    assert topology.link_by_id[0].beta_us(1e6) == pytest.approx(20.0)


def test_json_round_trip_keeps_everything_unknown_keys_included(tmp_path):
    value = two_gpus(source="data sheet", threadblock_GBps=20.0, rack="A7")
    value["nodes"][0]["serial"] = 17
    value["links"][1]["lanes"] = [1, 2]
    topology = Topology.from_json(value)
    path = tmp_path / "pair.json"
    topology.write(path)
    again = Topology.read(path)
    assert again == topology
    written = json.loads(path.read_text())
    assert written["rack"] == "A7"
    assert written["nodes"][0]["serial"] == 17
    assert written["links"][1]["lanes"] == [1, 2]
    assert again.to_json() == topology.to_json()


def test_parallel_links_are_allowed_and_reversal_turns_each():
    value = two_gpus()
    value["links"].append(value["links"][0])
    topology = Topology.from_json(value)
    assert [(link.src, link.dst) for link in topology.reversed().links] == [(9, 4), (4, 9), (9, 4)]
    assert topology.graph().number_of_edges(4, 9) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes": 3}, "nodes"),
        ({"nodes": []}, "no gpu"),
        ({"nodes": [{"id": 0, "kind": "gpu"}], "links": []}, "rank"),
        ({"nodes": [{"id": 0, "kind": "gpu", "rank": 1}], "links": []}, "0..0"),
        ({"nodes": [{"id": 0, "kind": "tpu", "rank": 0}], "links": []}, "'tpu'"),
        ({"nodes": [{"id": "0", "kind": "gpu", "rank": 0}], "links": []}, "whole number"),
        ({"nodes": [{"kind": "gpu", "rank": 0}], "links": []}, "'id' is missing"),
        ({"links": []}, "disconnected"),
        ({"links": [{"src": 4, "dst": 9, "bandwidth_GBps": 1, "alpha_us": 0}]}, "disconnected"),
        ({"links": [{"src": 4, "dst": 5, "bandwidth_GBps": 1, "alpha_us": 0}]}, "no node 5"),
        ({"links": [{"src": 4, "dst": 4, "bandwidth_GBps": 1, "alpha_us": 0}]}, "itself"),
        ({"links": [{"src": 4, "dst": 9, "bandwidth_GBps": 0, "alpha_us": 0}]}, "positive"),
        ({"links": [{"src": 4, "dst": 9, "bandwidth_GBps": -5, "alpha_us": 0}]}, "positive"),
        ({"links": [{"src": 4, "dst": 9, "bandwidth_GBps": float("nan"), "alpha_us": 0}]}, "finite"),
        ({"links": [{"src": 4, "dst": 9, "bandwidth_GBps": 1e-300, "alpha_us": 0}]}, "from 1e-09 to 1e+12"),
        ({"links": [{"src": 4, "dst": 9, "bandwidth_GBps": 1e300, "alpha_us": 0}]}, "from 1e-09 to 1e+12"),
        ({"links": [{"src": 4, "dst": 9, "bandwidth_GBps": 1, "alpha_us": 1e300}]}, "at most 1e+12"),
        ({"links": [{"src": 4, "dst": 9, "bandwidth_GBps": 1, "alpha_us": 10**400}]}, "finite"),
        ({"nodes": [{"id": 4, "kind": "gpu", "rank": 0, "multicast": "false"}], "links": []}, "true or false"),
        ({"links": [{"src": 4, "dst": 9, "bandwidth_GBps": 1, "alpha_us": -1}]}, "zero or more"),
        ({"links": [{"src": 4, "dst": 9, "bandwidth_GBps": "1", "alpha_us": 0}]}, "a number"),
        ({"links": [{"src": 4, "dst": 9, "alpha_us": 0}]}, "'bandwidth_GBps' is missing"),
        ({"threadblock_GBps": 0}, "threadblock_GBps"),
    ],
)
def test_bad_topologies_are_refused_by_name(change, said):
    with pytest.raises(InputError, match="pair") as refusal:
        Topology.from_json(two_gpus(**change), "pair.json")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_of_a_file_the_file_is_named_not_only_the_name_in_it(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(two_gpus(links=[])))
    with pytest.raises(InputError, match=r"mine\.json: disconnected: GPU 0 cannot reach GPU 1"):
        Topology.read(path)


def test_repeated_ids_are_refused():
    value = two_gpus()
    value["nodes"][1]["id"] = 4
    with pytest.raises(InputError, match="used twice"):
        Topology.from_json(value)
    value = two_gpus()
    value["links"][0]["id"] = 1
    with pytest.raises(InputError, match="used twice"):
        Topology.from_json(value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"name": "x"}', "[" * 100_000])
def test_files_that_are_no_topology(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"bad\.json"):
        Topology.read(path)


def test_a_copy_for_another_process_makes_its_own_hash():
    topology = Topology.from_json(two_gpus())
    assert hash(topology) == hash(Topology.from_json(two_gpus()))
    copy = pickle.loads(pickle.dumps(topology))
    assert copy == topology
    assert "_hash" not in vars(copy)
