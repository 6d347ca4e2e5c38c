"""The JSON schemas of the nouns: what we write fits them, and what they refuse we refuse too."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from strategies_lower import wild_schedules

from teccl_msccl.collective.custom import custom
from teccl_msccl.collective.demand import demand_for
from teccl_msccl.errors import InputError
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.topology.catalog import load
from teccl_msccl.topology.model import Topology

jsonschema = pytest.importorskip("jsonschema")
referencing = pytest.importorskip("referencing")

NOUNS = ("topology", "demand", "schedule")
SCHEMAS = {noun: json.loads(files("teccl_msccl").joinpath(f"schemas/{noun}-1.json").read_text()) for noun in NOUNS}


def validator(noun: str) -> Any:
    registry = referencing.Registry().with_resources(
        (schema["$id"], referencing.Resource.from_contents(schema)) for schema in SCHEMAS.values()
    )
    return jsonschema.Draft202012Validator(SCHEMAS[noun], registry=registry)


@pytest.mark.parametrize("noun", NOUNS)
def test_schemas_are_schemas(noun: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[noun])
    assert SCHEMAS[noun]["$id"] == f"urn:teccl-msccl:{noun}:1"


@pytest.mark.parametrize("preset", ["dgx1", "dgx-h100x2", "mi250x", "star-4", "gb200-nvl72"])
def test_topologies(preset: str) -> None:
    validator("topology").validate(load(preset).topology.to_json())


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(schedule=wild_schedules())
def test_schedules(schedule: Schedule) -> None:
    value = json.loads(json.dumps(schedule.to_json()))
    validator("schedule").validate(value)
    validator("demand").validate({"chunks": value["chunks"]})


TOPOLOGY: dict[str, Any] = load("ring-3").topology.to_json()
FAULTS: list[tuple[str, Any]] = [
    ("nodes", {}), ("nodes.0.kind", "tpu"), ("nodes.0.rank", None), ("nodes.0.rank", -1), ("links.0.src", "a"),
    ("links.0.bandwidth_GBps", 0), ("links.0.alpha_us", -1), ("links.0", []), ("links", None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), FAULTS)
def test_what_they_refuse_is_refused(path: str, value: Any) -> None:
    broken: Any = copy.deepcopy(TOPOLOGY)
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = broken
    for key in way:
        place = place[key]
    place[last] = value
    assert not validator("topology").is_valid(broken)
    with pytest.raises(InputError):
        Topology.from_json(broken)


def test_demands() -> None:
    value = {"chunks": [{"origin": [0], "want": [1, 2], "bytes": 4.0}], "groups": [{"ranks": [0, 1, 2], "weight": 2}]}
    validator("demand").validate(value)
    custom(value, 3)
    validator("demand").validate(demand_for("allreduce", 3, 6.0, 2).to_json())
    for broken in ({"chunks": [{"origin": []}]}, {"chunks": [{"origin": [], "want": [1]}]}, {}):
        assert not validator("demand").is_valid(broken)
        with pytest.raises(InputError):
            custom(broken, 3, 8.0)
