"""Patches that the API server accepts, and advice where no patch is possible."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from lbg_operator.crds import GroupManifest
from lbg_pipeline.plan.choose import Choice, Existing, choose, choose_freely
from lbg_pipeline.plan.manifest import Declared, read_manifest
from lbg_pipeline.plan.propose import Proposal, Subject, propose
from lbg_pipeline.plan.simulate import Demand, Rules
from testing.kubernetes.manifests import Manifest, fill_in, group_manifest, schema_of

from .test_recommendation import even
from .test_simulating import demand, rules


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = copy.deepcopy(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def fixed_paths(schema: Manifest, path: str = "") -> Iterator[str]:
    """Fields that the API server lets nobody change."""
    for name, inner in schema.get("properties", {}).items():
        if any(rule["rule"] == "self == oldSelf" for rule in inner.get("x-kubernetes-validations", ())):
            yield f"{path}.{name}"
        yield from fixed_paths(inner, f"{path}.{name}")


def paths_in(patch: Any, path: str = "") -> set[str]:
    if not isinstance(patch, dict):
        return {path}
    return {path}.union(*(paths_in(value, f"{path}.{name}") for name, value in patch.items()))


def require_acceptable(manifest: Manifest, patch: Manifest) -> Manifest:
    """By the CRD's schema, by its rules on what is patched, and by the operator."""
    after = merged(manifest, patch)
    schema = schema_of("loadbalancedgroups")
    fill_in(after["spec"], schema["properties"]["spec"])
    jsonschema.validate(after["spec"], schema["properties"]["spec"])
    assert not paths_in(patch) & set(fixed_paths(schema))
    spec = after["spec"]
    if spec["mode"] in ("MessageGroups", "Sessions"):
        assert spec["queues"]["count"] == 1
    else:
        assert spec["replicas"] <= spec["queues"]["count"] <= spec["hash"]["count"]
        assert spec.get("scaling", {"maxReplicas": 0})["maxReplicas"] <= spec["queues"]["count"]
    if "scaling" in spec:
        assert spec["scaling"]["minReplicas"] <= spec["scaling"]["maxReplicas"]
        assert {"targetCPUUtilizationPercentage", "targetDelay", "targetLag", "schedule"} & spec[
            "scaling"
        ].keys()
    GroupManifest.parse(after)
    return after


def declared_by(manifest: Manifest, tmp_path: Any) -> Declared:
    path = tmp_path / "group.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return read_manifest(path, group=None)


def subject(declared: Declared | None = None, **told: Any) -> Subject:
    known: dict[str, Any] = {
        "group": "shop-orders",
        "mode": "Exclusive" if declared is None else declared.mode,
        "hash_count": 128 if declared is None else declared.hash_count,
        "queue_count": 8 if declared is None else declared.queue_count,
        "hash_function": "crc32",
        "is_same_function": True,
        "declared": declared,
    }
    return Subject(**{**known, **told})


def planned(
    demand: Demand, about: Subject, told: Rules, queue_counts: list[int] | None = None
) -> tuple[Choice, Proposal]:
    members = None if about.declared is None else about.declared.members
    choice = choose([demand], queue_counts, told, Existing(about.hash_count, about.queue_count, members))
    return choice, propose(choice, about, told)


SCALING = {"minReplicas": 1, "maxReplicas": 4, "targetCPUUtilizationPercentage": 60}


@pytest.mark.parametrize("calls", [0.0, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("queue_counts", [None, [2], [32]])
@pytest.mark.parametrize(
    "spec", [{}, {"replicas": 8}, {"scaling": SCALING}, {"scaling": SCALING, "replicas": 4}]
)
def test_every_patch_would_be_taken(
    tmp_path: Any, calls: float, queue_counts: list[int] | None, spec: Manifest
) -> None:
    manifest = group_manifest(spec)
    about = subject(declared_by(manifest, tmp_path))
    choice, proposal = planned(even(calls, 128), about, rules(), queue_counts)
    assert proposal.patch is not None
    after = require_acceptable(manifest, proposal.patch)["spec"]
    assert after["queues"]["count"] == choice.recommended.queue_count
    if "scaling" in spec:
        assert (after["scaling"]["targetCPUUtilizationPercentage"], after["scaling"]["targetDelay"]) == (
            60,
            "10s",
        )
        assert after["scaling"]["maxReplicas"] == choice.recommended.members
        assert after["scaling"]["minReplicas"] == choice.members_min
    else:
        assert "scaling" not in after
        assert after["replicas"] == choice.recommended.members


@pytest.mark.parametrize("spec", [{}, {"replicas": 8}, {"scaling": SCALING}])
@pytest.mark.parametrize("queue_counts", [None, [2]])
def test_a_patch_without_a_manifest_would_be_taken_too(
    spec: Manifest, queue_counts: list[int] | None
) -> None:
    _, proposal = planned(even(1.0, 128), subject(), rules(), queue_counts)
    assert proposal.patch is not None
    assert require_acceptable(group_manifest(spec), proposal.patch)["spec"]["scaling"]["targetDelay"] == "10s"
    assert any(
        "sets targetDelay to 10s; other targets of the group remain" in line for line in proposal.advice
    )


@pytest.mark.parametrize(("delay_s", "patched"), [(90.0, None), (30.0, "30s")])
def test_a_patch_has_the_target_for_the_delay_only_where_it_differs(
    tmp_path: Any, delay_s: float, patched: str | None
) -> None:
    manifest = group_manifest({"scaling": {"maxReplicas": 4, "targetDelay": "1m30s"}})
    about = subject(declared_by(manifest, tmp_path))
    _, proposal = planned(even(1.0, 128), about, rules(target_delay_s=delay_s))
    assert proposal.patch is not None
    require_acceptable(manifest, proposal.patch)
    assert proposal.patch["spec"]["scaling"].get("targetDelay") == patched


@pytest.mark.parametrize("mode", ["MessageGroups", "Sessions"])
@pytest.mark.parametrize("spec", [{}, {"scaling": SCALING}])
def test_modes_without_queues_get_replicas_alone(tmp_path: Any, mode: str, spec: Manifest) -> None:
    manifest = group_manifest({"mode": mode, "queues": {"count": 1}, **spec})
    about = subject(declared_by(manifest, tmp_path))
    choice = choose_freely(
        even(5.0, 128), rules(), Existing(members=about.declared.members if about.declared else None)
    )
    proposal = propose(choice, about, rules())
    assert proposal.patch is not None
    after = require_acceptable(manifest, proposal.patch)["spec"]
    assert after["replicas"] == 8 or after["scaling"]["maxReplicas"] == 8
    assert "queues" not in proposal.patch["spec"]
    assert any(f"mode {mode} has no number of queues" in line for line in proposal.advice)


def test_another_number_of_queues_is_a_repartition(tmp_path: Any) -> None:
    about = subject(declared_by(group_manifest(), tmp_path))
    _, proposal = planned(even(20.0, 128), about, rules())
    (line,) = [line for line in proposal.advice if "repartition" in line]
    assert "`lbg group repartition shop-orders --queues" in line
    assert "from 8 to" in line


def test_another_number_of_members_moves_the_queues_of_static(tmp_path: Any) -> None:
    about = subject(declared_by(group_manifest({"assignment": "Static"}), tmp_path))
    _, proposal = planned(even(1.0, 128), about, rules(assignment="Static"), [32])
    assert any("repartition" in line for line in proposal.advice)
    assert any("moves nearly all queues" in line for line in proposal.advice)


def test_a_group_that_nobody_knows_gets_no_patch() -> None:
    told = subject(hash_count=None, queue_count=None)
    _, proposal = planned(even(1.0, 128), told, rules())
    assert proposal.patch is None
    assert "too few keys" in proposal.advice[0]
    assert "hash.count 128" in proposal.advice[0]


def test_another_hash_function_is_a_new_group() -> None:
    told = subject(hash_function="java", is_same_function=False)
    choice = choose([even(1.0, 256)], None, rules(), Existing())
    proposal = propose(choice, told, rules())
    assert proposal.patch is None
    assert "hash.function java" in proposal.advice[0]


def test_a_target_that_cannot_be_met_is_said_first() -> None:
    _, proposal = planned(even(10.0, 128), subject(), rules(members_max=4))
    assert proposal.advice[0].startswith("no candidate keeps below 70%: the busiest is 250% busy")


def test_the_number_of_queues_that_evens_the_loads_is_named() -> None:
    """Four heavy hashes of 64 fall together in 4 queues: one of 2 members has them all."""
    calls = [0.01] * 64
    for hash_ in (0, 4, 8, 12):
        calls[hash_] = 1.0
    told = subject(hash_count=64, queue_count=4)
    _, proposal = planned(demand(calls), told, rules(concurrency=6), [4])
    (line,) = [line for line in proposal.advice if "times the mean load" in line]
    assert "no number of queues that was tried" in line
    _, wider = planned(demand(calls), told, rules(concurrency=4, target_utilisation=0.95), [4, 8, 16])
    assert not any("times the mean load" in line for line in wider.advice), wider.advice
