"""Values that a plan reads from a manifest, and its refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lbg_pipeline.errors import PlanRefused
from lbg_pipeline.plan.manifest import read_manifest
from testing import ROOT
from testing.kubernetes.manifests import consumer, group_manifest

EXAMPLES = ROOT / "examples"


def file(tmp_path: Path, *documents: Any) -> Path:
    path = tmp_path / "group.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def test_defaults_are_those_of_the_api_server(tmp_path: Path) -> None:
    least = {"kind": "LoadBalancedGroup", "metadata": {"name": "orders", "namespace": "shop"}}
    bare = {**least, "spec": {"brokerRef": {"name": "main"}, "queues": {"count": 8}}}
    told = read_manifest(file(tmp_path, bare), group=None)
    assert told == read_manifest(file(tmp_path, group_manifest()), group=None)
    assert (told.name, told.group, told.mode, told.assignment) == (
        "orders",
        "shop-orders-644f7b8c",
        "Exclusive",
        "ByLoad",
    )
    assert (told.hash_count, told.hash_function, told.queue_count) == (128, "crc32", 8)
    assert (told.replicas, told.members, told.members_min, told.concurrency) == (1, 1, None, 16)


def test_the_example_can_be_read() -> None:
    told = read_manifest(EXAMPLES / "flights-group.yaml", group=None)
    assert (told.name, told.queue_count, told.members) == ("flights", 8, 2)


@pytest.mark.parametrize(
    ("app", "concurrency"),
    [
        (consumer(), 16),
        (consumer(concurrency=3), 3),
        (consumer("Stream"), 256),
        (consumer("HTTPBatch"), 400),
        (consumer("HTTPBatch", batch={"size": 10, "requests": 3, "lingerMilliseconds": 5}), 30),
    ],
)
def test_calls_at_once_are_those_of_the_channel(tmp_path: Path, app: Any, concurrency: int) -> None:
    told = read_manifest(file(tmp_path, group_manifest({"consumer": app})), group=None)
    assert told.concurrency == concurrency
    assert not told.queue_is_a_lane


def test_order_by_queue_and_sessions_make_a_queue_a_lane(tmp_path: Path) -> None:
    by_queue = group_manifest({"consumer": consumer(order="Queue")})
    sessions = group_manifest({"mode": "Sessions", "queues": {"count": 1}})
    assert read_manifest(file(tmp_path, by_queue), group=None).queue_is_a_lane
    assert read_manifest(file(tmp_path, sessions), group=None).queue_is_a_lane


def test_scaling_tells_how_many_members_there_may_be(tmp_path: Path) -> None:
    scaling = {"minReplicas": 2, "maxReplicas": 6, "targetLag": 500}
    told = read_manifest(file(tmp_path, group_manifest({"scaling": scaling})), group=None)
    assert (told.members_min, told.members) == (2, 6)


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10), ("1m30s", 90), ("1h", 3600), ("1500ms", 1.5)])
def test_a_target_for_the_delay_is_a_duration(tmp_path: Path, text: str, seconds: float) -> None:
    scaling = {"maxReplicas": 6, "targetDelay": text}
    told = read_manifest(file(tmp_path, group_manifest({"scaling": scaling})), group=None)
    assert told.target_delay_s == seconds


def test_one_of_several_is_named_by_its_group(tmp_path: Path) -> None:
    two = [group_manifest(), group_manifest({"groupName": "other"}, name="second")]
    listed = file(tmp_path, {"kind": "List", "items": two})
    assert read_manifest(listed, group="other").name == "second"
    with pytest.raises(
        PlanRefused, match="has the groups shop-orders-644f7b8c, other: name one of them with --group"
    ):
        read_manifest(listed, group=None)
    with pytest.raises(
        PlanRefused, match="is of group shop-orders-644f7b8c, other on the broker, and not of third"
    ):
        read_manifest(listed, group="third")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [", "is no YAML"),
        ("just words", "has no LoadBalancedGroup in it"),
        ("kind: LoadBalancedGroup\nspec: [1]\n", r"spec is \[1\] and must be an object"),
        ("kind: LoadBalancedGroup\nspec: {queues: {}}\n", "count is None and must be a whole number"),
        (
            "kind: LoadBalancedGroup\nspec: {queues: {count: many}}\n",
            "count is 'many' and must be a whole number",
        ),
        (
            "kind: LoadBalancedGroup\nspec: {queues: {count: 1}, mode: Odd}\n",
            "mode is 'Odd' and must be one of",
        ),
        (
            "kind: LoadBalancedGroup\nspec: {queues: {count: 1}, scaling: {maxReplicas: 2, targetDelay: 10}}\n",
            "targetDelay is 10 and must be a duration such as 10s",
        ),
    ],
)
def test_a_manifest_that_cannot_be_taken_is_one_clear_line(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "group.yaml"
    path.write_text(text)
    with pytest.raises(PlanRefused, match=line) as refused:
        read_manifest(path, group=None)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="No such file"):
        read_manifest(tmp_path / "none.yaml", group=None)
