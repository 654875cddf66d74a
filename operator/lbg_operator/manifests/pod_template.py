"""The shape of a pod template, as far as the operator reads it.

The CRD leaves the template to the API server, which judges it once a Deployment is made of it. What the operator itself
reads has to have the right shape before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ManifestError


@dataclass(frozen=True, slots=True)
class _Text:
    instead: str


@dataclass(frozen=True, slots=True)
class _Number:
    instead: str


@dataclass(frozen=True, slots=True)
class _List:
    item: _Shape
    instead: str
    may_be_empty: bool = True


@dataclass(frozen=True, slots=True)
class _Object:
    """`fields`: of those that are read, and `required`: of those that have to be there."""

    instead: str
    fields: Mapping[str, _Shape] = field(default_factory=dict)
    required: Sequence[str] = ()


_Shape = _Text | _Number | _List | _Object
_NAMES = {_Text: "text", _Number: "a whole number", _List: "a list", _Object: "an object"}

_PORT = _Object(
    "write {containerPort: 9090}",
    {
        "containerPort": _Number("write the port's number, as 9090"),
        "protocol": _Text("write TCP, UDP or SCTP"),
    },
    ("containerPort",),
)
_CONTAINER = _Object(
    "write {name: app, image: IMAGE}",
    {
        "name": _Text("give the container a name, as app"),
        "env": _List(
            _Object("write {name: NAME, value: VALUE}"), "write entries as - {name: NAME, value: VALUE}"
        ),
        "ports": _List(_PORT, "write entries as - {containerPort: 9090}"),
        "lifecycle": _Object("write {postStart: HANDLER}, or leave it out"),
    },
    ("name",),
)
_A_CONTAINER = "write an entry for each container, as - {name: app, image: IMAGE}"
_CONTAINERS = _List(_CONTAINER, _A_CONTAINER, may_be_empty=False)
_VOLUME = _Object("write {name: NAME, emptyDir: {}}", {"name": _Text("give the volume a name")}, ("name",))
_METADATA = _Object(
    "write {labels: {KEY: VALUE}}",
    {"labels": _Object("write {KEY: VALUE}"), "annotations": _Object("write {KEY: VALUE}")},
)
_POD = _Object(
    "write {containers: [{name: app, image: IMAGE}]}",
    {
        "containers": _CONTAINERS,
        "initContainers": _List(_CONTAINER, _A_CONTAINER),
        "volumes": _List(_VOLUME, "write an entry for each volume, as - {name: NAME, emptyDir: {}}"),
        "securityContext": _Object("write {fsGroup: 2000}"),
        "terminationGracePeriodSeconds": _Number("write the seconds, as 30"),
    },
    ("containers",),
)
_TEMPLATE = _Object(
    "write {spec: {containers: [{name: app, image: IMAGE}]}}",
    {"metadata": _METADATA, "spec": _POD},
    ("spec",),
)


def pod_template_of(told: Any, path: str) -> Mapping[str, Any]:
    """A PodTemplateSpec as it was written, without its nulls, which say nothing. Raises ManifestError for the first
    part that has another shape than the operator reads."""
    template = _without_nulls(told)
    for where, rule in _offences(template, _TEMPLATE, path):
        raise ManifestError(where, rule)
    checked: Mapping[str, Any] = template
    return checked


def _offences(told: Any, shape: _Shape, path: str) -> Iterator[tuple[str, str]]:
    match told, shape:
        case (str(), _Text()):
            return
        case (int(), _Number()) if not isinstance(told, bool):
            return
        case (list(), _List()):
            if not told and not shape.may_be_empty:
                yield path, f"is empty: {shape.instead}"
            for number, item in enumerate(told):
                yield from _offences(item, shape.item, f"{path}[{number}]")
        case (dict(), _Object()):
            for name in shape.required:
                if name not in told:
                    yield f"{path}.{name}", f"is missing: {shape.fields[name].instead}"
            for name, inner in shape.fields.items():
                if name in told:
                    yield from _offences(told[name], inner, f"{path}.{name}")
        case _:
            yield path, f"{_shown(told)} is not {_NAMES[type(shape)]}: {shape.instead}"


def _shown(told: Any) -> str:
    text = repr(told)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _without_nulls(told: Any) -> Any:
    if isinstance(told, dict):
        return {name: _without_nulls(value) for name, value in told.items() if value is not None}
    return [_without_nulls(one) for one in told] if isinstance(told, list) else told
