"""The CRDs: structural, described to the last field, and of one mind with the code that reads them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import kubernetes_validate
import pytest
import yaml

from lbg_core.group import ATTRIBUTES, Attribute
from lbg_core.group.spec import BYTES_PER_MB, PREFIX_MAX_BYTES
from lbg_operator.crds.consumer import App, Batch, bytes_in, manifest_name
from lbg_operator.crds.group import REPLICAS_MAX
from lbg_sidecar.process.settings import Channel, table
from testing import ROOT

FILES = sorted((ROOT / "crds").glob("*.yaml"))
KUBERNETES = "1.29"
"""The oldest Kubernetes that the CRDs are for: from here on CEL knows quantities and structural rules are stable."""

Schema = dict[str, Any]


def crd(name: str) -> Schema:
    loaded: Schema = yaml.safe_load((ROOT / "crds" / f"lbg.dev_{name}.yaml").read_text())
    return loaded


def root_of(manifest: Schema) -> Schema:
    (version,) = manifest["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def field(manifest: Schema, path: str) -> Schema:
    schema = root_of(manifest)
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


def fields_in(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}", inner
        yield from fields_in(inner, f"{path}.{name}")
        if "items" in inner:
            yield from fields_in(inner["items"], f"{path}.{name}[]")


GROUP = crd("loadbalancedgroups")
BROKER = crd("brokers")
both = pytest.mark.parametrize("manifest", [GROUP, BROKER], ids=["group", "broker"])


@both
def test_it_is_a_crd_by_the_official_schema(manifest: Schema) -> None:
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@both
def test_every_field_says_what_it_is(manifest: Schema) -> None:
    silent = [path for path, schema in fields_in(root_of(manifest)) if not schema.get("description")]
    assert silent == [".metadata"]


@both
def test_kubectl_explain_shows_every_default(manifest: Schema) -> None:
    """It prints descriptions, and no `default` of a schema. What the operator fills in has none, only a
    description: it would be written into stored objects, and stay there when the setting of the operator changes."""
    silent = [
        path
        for path, schema in fields_in(field(manifest, "spec"))
        if schema.get("default", {}) != {}
        and not schema["description"].endswith(f" Default: {as_yaml(schema['default'])}.")
    ]
    assert silent == []


def as_yaml(value: object) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True)).partition("\n")[0]


@both
def test_every_text_and_list_of_a_spec_has_a_limit(manifest: Schema) -> None:
    """Without one the API server takes a rule on it for too expensive (Kubernetes: "CEL cost estimation")."""
    endless = [
        path
        for path, schema in fields_in(field(manifest, "spec"))
        if (schema.get("type") == "string" and not {"maxLength", "enum"} & schema.keys())
        or (schema.get("type") == "array" and "maxItems" not in schema)
    ]
    assert endless == []


@both
def test_columns_show_fields_that_there_are(manifest: Schema) -> None:
    known = {re.sub(r"\[\]", "", path) for path, _ in fields_in(root_of(manifest))}
    (version,) = manifest["spec"]["versions"]
    for column in version["additionalPrinterColumns"]:
        path = re.sub(r"\[\?\(.*?\)\]", "", column["jsonPath"])
        assert path in known | {".metadata.creationTimestamp"}, column
        assert column.get("description") or column["name"] == "Age"


@both
def test_every_rule_says_what_to_do(manifest: Schema) -> None:
    schemas = [root_of(manifest), *(schema for _, schema in fields_in(root_of(manifest)))]
    schemas += [schema["items"] for schema in schemas if "items" in schema]
    messages = [rule["message"] for schema in schemas for rule in schema.get("x-kubernetes-validations", ())]
    assert messages
    for message in messages:
        assert re.search(r"\bmust\b|: |needs", message), message


@pytest.mark.parametrize(
    "one", [one for one in ATTRIBUTES.values() if one.manifest], ids=lambda one: one.name
)
def test_attributes_of_a_group_have_the_limits_of_their_declarations(one: Attribute) -> None:
    schema = field(GROUP, f"spec.{one.manifest}")
    assert schema.get("enum", []) == list(one.choices)
    if schema.get("type") == "integer":
        assert (schema["maximum"], schema["minimum"] >= one.least) == (one.most, True)
    if one.modes:  # the others have defaults of their own
        assert schema.get("default") == one.default


def test_limits_are_those_of_a_group() -> None:
    assert field(GROUP, "spec.hash.prefix")["maxLength"] == PREFIX_MAX_BYTES
    assert field(GROUP, "spec.replicas")["maximum"] == REPLICAS_MAX


def word(text: str) -> str:
    """As the sidecar's settings have it: DeadLetter is dead-letter, HTTPBatch is http-batch."""
    return re.sub(r"(?<=[a-zP])(?=[A-Z][a-z])", "-", text).lower()


def test_channels_are_those_of_the_sidecar() -> None:
    channels = set(map(word, field(GROUP, "spec.consumer.app.channel")["enum"]))
    assert channels == set(Channel) - {Channel.COMMAND}


OF_THE_GROUP = ("rebalance_delay_s", "max_handoff_s", "release_interval_s")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *((manifest_name(name), name) for name in OF_THE_GROUP),
        *(
            (f"consumer.app.{manifest_name(one.name)}", one.name)
            for one in fields(App)
            if one.name in table()
        ),
        *((f"consumer.app.batch.{manifest_name(one.name)}", f"batch_{one.name}") for one in fields(Batch)),
        ("consumer.app.parking.maxKeys", "park_max_keys"),
        ("consumer.app.parking.maxMessages", "park_max_messages"),
    ],
)
def test_settings_have_the_limits_and_defaults_of_their_declarations(path: str, name: str) -> None:
    schema, one = field(GROUP, f"spec.{path}"), table()[name]
    assert list(map(word, schema.get("enum", []))) == list(one.choices)
    if schema["type"] == "integer":
        assert one.checked(schema["minimum"]) <= one.checked(schema["maximum"])
    if "default" in schema and one.default is not None:
        default = schema["default"]
        assert (word(default) if one.choices else default) == one.default


def test_the_default_size_of_parked_messages_is_that_of_the_sidecar() -> None:
    default = field(GROUP, "spec.consumer.app.parking.maxSize")["default"]
    assert bytes_in("maxSize", default) == table()["park_max_mb"].default * BYTES_PER_MB


def test_the_reference_is_what_the_schemas_say() -> None:
    spec = importlib.util.spec_from_file_location("crd_reference", ROOT / "docs" / "crd_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs/reference/crds.md").read_text() == module.reference(), (
        "run: python docs/crd_reference.py > docs/reference/crds.md"
    )
