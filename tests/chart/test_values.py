"""The chart's values: each is checked, and one that is wrong or unknown is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from testing.kubernetes.chart import CHART, Object, rendered


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global helm
    import helm_python as helm


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"image": "x"}, "at '': additional properties 'image' not allowed"),
        ({"metrics": {"provider": "prometheus"}}, "at '/metrics/provider': value must be one of 'auto', 'external'"),
        ({"watchNamespaces": ["Shop"]}, "at '/watchNamespaces/0': 'Shop' does not match pattern"),
        ({"watchNamespaces": "shop"}, "at '/watchNamespaces': got string, want array"),
        ({"brokerNetworks": ["10.0.0.0"]}, "at '/brokerNetworks/0': '10.0.0.0' does not match pattern"),
        ({"operator": {"log": {"level": "loud"}}}, "at '/operator/log/level': value must be one of 'debug', 'info'"),
        ({"operator": {"replicas": 2}}, "at '/operator': additional properties 'replicas' not allowed"),
        ({"defaults": {"sidecarResources": {"request": {}}}}, "additional properties 'request' not allowed"),
        (
            {"defaults": {"sidecarStartSeconds": 0}},
            "at '/defaults/sidecarStartSeconds': minimum: got 0, want 1",
        ),
        ({"defaults": {"prefetch": 0}}, "at '/defaults/prefetch': minimum: got 0, want 1"),
        ({"operator": {"resources": {"limits": {"memory": "lots"}}}}, "'lots' does not match pattern"),
        ({"broker": {"storage": 10}}, "at '/broker/storage': got number, want string"),
        ({"images": {"sidecar": "a b"}}, "at '/images/sidecar': 'a b' does not match pattern"),
        ({"monitoring": {"objects": True}}, "at '/monitoring/objects': value must be one of 'auto', 'always'"),
        (
            {"broker": {"create": True}, "watchNamespaces": ["shop"]},
            "broker.create makes a Broker in namespace lbg-system, which watchNamespaces leaves out",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_value_is_one_clear_line(values: Mapping[str, Any], says: str) -> None:
    with pytest.raises(helm.HelmError) as caught:
        rendered(values)
    (line,) = [line for line in str(caught.value).splitlines() if says in line]
    assert len([line for line in str(caught.value).splitlines() if line.startswith("- ")]) in (0, 1)
    assert line


def test_every_value_is_in_the_schema_and_nothing_else_is() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert _unknown(values, schema) == []
    assert schema["properties"].keys() - values.keys() == {"global"}


def _unknown(values: Object, schema: Object, where: str = "") -> list[str]:
    """Values without a schema, and schemas without a value."""
    named = schema.get("properties")
    if named is None or not isinstance(values, dict):
        return []
    found = [f"{where}/{name}" for name in named.keys() ^ values.keys() if name != "global"]
    for name in named.keys() & values.keys():
        found += _unknown(values[name], named[name], f"{where}/{name}")
    return found
