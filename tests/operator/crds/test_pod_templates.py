"""Pod templates of a wrong shape: one clear line that names the path, and never an error of the operator's own."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_operator.crds import GroupManifest
from lbg_operator.errors import ManifestError
from lbg_operator.reconcile.desired import children_of
from lbg_operator.resources.autoscaler import autoscaler_of, scaled_object_of
from lbg_operator.settings import OperatorSettings
from testing.kubernetes.manifests import consumer, group_manifest

SETTINGS = OperatorSettings(sidecar_image="s:1", broker_image="b:1")
POD: dict[str, Any] = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {
        "containers": [
            {
                "name": "app",
                "image": "example.org/app:1",
                "env": [{"name": "A", "value": "1"}],
                "ports": [{"containerPort": 9090, "protocol": "TCP"}],
                "lifecycle": {"postStart": {"exec": {"command": ["true"]}}},
            }
        ],
        "initContainers": [{"name": "init", "image": "example.org/init:1", "ports": []}],
        "volumes": [{"name": "files", "emptyDir": {}}],
        "securityContext": {"fsGroup": 2000},
        "terminationGracePeriodSeconds": 30,
    },
}
Path = tuple[str | int, ...]


def followed(template: Any, *, mode: str = "Exclusive") -> list[dict[str, Any]]:
    """All that the operator makes of a manifest with this template. Raises ManifestError."""
    spec = {
        "mode": mode,
        "queues": {"count": 1},
        "consumer": {
            **consumer(),
            "template": template,
            "sidecar": {"journal": {"volume": "files"}},
        },
        "scaling": {"maxReplicas": 1, "targetLag": 10, "targetCPUUtilizationPercentage": 50},
    }
    group = GroupManifest.parse(group_manifest(spec))
    scaled = scaled_object_of(group, url="https://operator")
    scalers = [one for one in (autoscaler_of(group), scaled) if one is not None]
    return children_of(group, SETTINGS, has_ca=True, scalers=scalers)


def replaced(path: Path, value: Any) -> dict[str, Any]:
    template = copy.deepcopy(POD)
    at: Any = template
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return template


def paths(told: Any, path: Path = ()) -> list[Path]:
    """Each place in a tree of objects and lists."""
    steps = (
        list(told.items())
        if isinstance(told, dict)
        else list(enumerate(told))
        if isinstance(told, list)
        else []
    )
    return [one for step, inner in steps for one in ((*path, step), *paths(inner, (*path, step)))]


def test_a_template_of_the_right_shape_is_followed() -> None:
    assert "Deployment" in {one["kind"] for one in followed(POD)}
    assert "StatefulSet" in {one["kind"] for one in followed(POD, mode="Sessions")}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("spec",), "x", "template.spec: 'x' is not an object: write {containers:"),
        (("spec", "containers"), "x", "template.spec.containers: 'x' is not a list: write an entry for each"),
        (("spec", "containers"), {"name": "app"}, "template.spec.containers: {'name': 'app'} is not a list"),
        (("spec", "containers"), None, "template.spec.containers: is missing: write an"),
        (("spec", "containers"), [], "template.spec.containers: is empty"),
        (("spec", "containers", 0), "app", "template.spec.containers[0]: 'app' is not an object"),
        (
            ("spec", "containers", 0, "name"),
            None,
            "containers[0].name: is missing: give the container a name",
        ),
        (("spec", "containers", 0, "name"), 7, "containers[0].name: 7 is not text"),
        (("spec", "containers", 0, "env"), {"A": "1"}, "containers[0].env: {'A': '1'} is not a list"),
        (
            ("spec", "containers", 0, "ports"),
            [9090],
            "ports[0]: 9090 is not an object: write {containerPort:",
        ),
        (
            ("spec", "containers", 0, "ports"),
            [{}],
            "ports[0].containerPort: is missing: write the port's number",
        ),
        (("spec", "containers", 0, "ports", 0, "containerPort"), "9090", "'9090' is not a whole number"),
        (("spec", "containers", 0, "lifecycle"), [], "containers[0].lifecycle: [] is not an object"),
        (("spec", "volumes"), {"files": {}}, "template.spec.volumes: {'files': {}} is not a list"),
        (
            ("spec", "terminationGracePeriodSeconds"),
            "30s",
            "'30s' is not a whole number: write the seconds, as 30",
        ),
        (("metadata",), [], "template.metadata: [] is not an object: write {labels:"),
        (("metadata", "labels"), ["a"], "template.metadata.labels: ['a'] is not an object"),
    ],
)
def test_a_part_of_another_shape_is_named_with_what_to_write_instead(
    path: Path, value: Any, said: str
) -> None:
    with pytest.raises(ManifestError) as refused:
        followed(replaced(path, value))
    assert said in str(refused.value)
    assert str(refused.value).startswith("spec.consumer.template")
    assert "\n" not in str(refused.value)


def test_a_template_without_a_pod_is_told_what_to_write() -> None:
    with pytest.raises(
        ManifestError, match=r"spec.consumer.template.spec: is missing: write {containers: \["
    ):
        followed({})


def without_nulls(told: Any) -> Any:
    """As an API server stores it."""
    if isinstance(told, dict):
        return {name: without_nulls(inner) for name, inner in told.items() if inner is not None}
    return [without_nulls(inner) for inner in told] if isinstance(told, list) else told


def test_a_null_says_nothing() -> None:
    template = replaced(("spec", "containers", 0, "env"), None)
    template["spec"]["volumes"].append({"name": "more", "emptyDir": None})
    template["spec"] |= {
        "initContainers": None,
        "securityContext": None,
        "terminationGracePeriodSeconds": None,
    }
    template["metadata"] = None
    plain = copy.deepcopy(POD)
    del plain["metadata"], plain["spec"]["containers"][0]["env"]
    for name in ("initContainers", "securityContext", "terminationGracePeriodSeconds"):
        del plain["spec"][name]
    plain["spec"]["volumes"].append({"name": "more"})
    assert without_nulls(followed(template)) == without_nulls(followed(plain))


def test_what_is_long_is_cut() -> None:
    with pytest.raises(ManifestError) as refused:
        followed(replaced(("spec", "containers"), "x" * 1000))
    assert len(str(refused.value)) < 250


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "containerPort", "x", "preStop"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(path=st.sampled_from(paths(POD)), value=JSON, mode=st.sampled_from(["Exclusive", "Sessions"]))
def test_no_template_is_an_error_of_the_operator_s_own(path: Path, value: Any, mode: str) -> None:
    with suppress(ManifestError):
        assert followed(replaced(path, value), mode=mode)


@given(template=st.dictionaries(st.sampled_from(["metadata", "spec"]), JSON))
def test_nor_is_one_of_anything(template: dict[str, Any]) -> None:
    with suppress(ManifestError):
        assert followed(template)
