"""Which program a group's ranks agree on: rank 0's word counts, whatever another rank's store has."""

from __future__ import annotations

import json

import pytest
from test_store_build import Here, quiet

from teccl_msccl.errors import Refused
from teccl_msccl.store.build import Plan, build
from teccl_msccl.store.store import Store
from teccl_msccl.topology.model import Topology
from teccl_msccl.torch.programs import Programs


class Board(dict):
    """What the ranks of a group tell one another."""

    def ranks(self, size: int) -> list[Programs]:
        return [Programs(rank, size, True, self.__setitem__, self.__getitem__) for rank in range(size)]


@pytest.fixture
def store(tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    build(store, Topology.load("ring-3"), Plan(("allgather",), (1000,), method="greedy", seconds=0.0), Here(), quiet)
    monkeypatch.setenv("TECCL_STORE", str(store.root))
    monkeypatch.setenv("TECCL_TOPOLOGY", "ring-3")
    return store


def test_a_rank_with_another_store_runs_what_rank_0_has(store, tmp_path, monkeypatch) -> None:
    first, second, third = Board().ranks(3)
    served = first.find("allgather", 900, 0)
    assert str(store.root) in served.source
    monkeypatch.setenv("TECCL_STORE", str(tmp_path / "none"))
    assert second.find("allgather", 900, 0).program == served.program
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text("{")
    monkeypatch.setenv("TECCL_STORE", str(tmp_path))
    assert third.find("allgather", 900, 0).program == served.program


def test_a_damaged_store_is_refused_by_all_ranks_alike(store) -> None:
    for file in store.root.rglob("*.xml"):
        file.write_bytes(file.read_bytes().replace(b'cnt="1"', b'cnt="2"', 1))
    for rank in Board().ranks(3):
        with pytest.raises(Refused, match="its hash differs"):
            rank.find("allgather", 900, 0)


def test_a_manifest_of_a_newer_version_is_refused_by_all_ranks_alike(store) -> None:
    (manifest,) = store.root.rglob("manifest.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    for rank in Board().ranks(3):
        with pytest.raises(Refused, match="has format 99 and this version reads 1; upgrade teccl-msccl"):
            rank.find("allgather", 900, 0)


def test_a_wrong_topology_is_said_to_all_ranks(store, monkeypatch) -> None:
    monkeypatch.setenv("TECCL_TOPOLOGY", "ring-5")
    for rank in Board().ranks(3):
        with pytest.raises(Refused, match="TECCL_TOPOLOGY=ring-5 has 5 GPUs, and the job 3 ranks"):
            rank.find("allgather", 900, 0)


def test_what_the_store_lacks_is_made(store) -> None:
    first, second, _ = Board().ranks(3)
    assert first.find("allgather", 10**7, 0).source == "synthesized for ring-3"
    assert second.find("allgather", 10**7, 0).program == first.find("allgather", 10**7, 0).program
