"""Consumers of a group: their pod template, sidecar, application and storage.

The CRD leaves the template to the API server, which judges it once a Deployment is made of it. What the operator itself
reads has to have the right shape before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from decimal import Decimal
from typing import Any, TypeVar

from lbg_core.group.spec import BYTES_PER_MB
from lbg_operator.errors import ManifestError


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


def pod_template_of(value: Any, path: str) -> Mapping[str, Any]:
    """A PodTemplateSpec as it was written, without its nulls, which mean nothing. Raises ManifestError for the first
    part that has another shape than the operator reads."""
    template = _without_nulls(value)
    for where, rule in _shape_errors(template, _TEMPLATE, path):
        raise ManifestError(where, rule)
    checked: Mapping[str, Any] = template
    return checked


def _shape_errors(value: Any, shape: _Shape, path: str) -> Iterator[tuple[str, str]]:
    match value, shape:
        case (str(), _Text()):
            return
        case (int(), _Number()) if not isinstance(value, bool):
            return
        case (list(), _List()):
            if not value and not shape.may_be_empty:
                yield path, f"is empty: {shape.instead}"
            for number, item in enumerate(value):
                yield from _shape_errors(item, shape.item, f"{path}[{number}]")
        case (dict(), _Object()):
            for name in shape.required:
                if name not in value:
                    yield f"{path}.{name}", f"is missing: {shape.fields[name].instead}"
            for name, inner in shape.fields.items():
                if name in value:
                    yield from _shape_errors(value[name], inner, f"{path}.{name}")
        case _:
            yield path, f"{_shown(value)} is not {_NAMES[type(shape)]}: {shape.instead}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _without_nulls(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _without_nulls(value) for name, value in document.items() if value is not None}
    return [_without_nulls(one) for one in document] if isinstance(document, list) else document


_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([kMGT]|[KMGT]i)?")
_BYTES = {
    None: 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def bytes_in(field: str, quantity: str | int) -> int:
    """`quantity` in bytes, rounded down. Raises ManifestError."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise ManifestError(field, f"{quantity!r} is not a quantity of bytes: set it as 500M or 2Gi")
    return int(Decimal(match[1]) * _BYTES[match[2]])


def quantity_of(size_bytes: int) -> str:
    """As people write it: in the largest unit that it is a whole number of."""
    units = ((unit, _BYTES[unit]) for unit in ("Ti", "Gi", "Mi", "Ki"))
    unit_and_size = next(((unit, size) for unit, size in units if size_bytes % size == 0), ("", 1))
    return f"{size_bytes // unit_and_size[1]}{unit_and_size[0]}"


@dataclass(frozen=True, slots=True)
class Batch:
    size: int
    linger_ms: int
    requests: int


@dataclass(frozen=True, slots=True)
class ParkingBounds:
    """Bounds of the group's parked messages, beyond which members park no further key. `max_mb`: megabytes of their
    bodies."""

    max_keys: int
    max_messages: int
    max_mb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """Channel to the application; words as the manifest has them."""

    channel: str
    container: str | None = None
    port: int | None = None
    path: str
    batch: Batch | None = None
    parking: ParkingBounds | None = None
    order: str
    health_path: str | None = None
    positions_path: str | None = None
    concurrency: int | None = None
    prefetch: int | None = None
    call_timeout_s: int
    max_attempts: int
    when_exhausted: str


@dataclass(frozen=True, slots=True)
class Journal:
    """Volume of the sidecars' journals: a claim of the group's namespace, or a volume that the template has."""

    volume_claim: str | None = None
    volume: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    image: str | None = None
    resources: Mapping[str, Any] | None = None
    log_format: str
    republish: bool = False
    journal: Journal | None = None
    publishes: bool = False
    env: Sequence[Mapping[str, Any]] = field(default=(), hash=False)
    """Further variables (EnvVar); the API server judges them when a Deployment is made of it."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Volume for the session position of a consumer pod. No `storage_class`: the cluster's."""

    size_bytes: int = 2**30
    storage_class: str | None = None


@dataclass(frozen=True, slots=True)
class Consumer:
    """`template` is a PodTemplateSpec of the right shape; the API server judges it when a Deployment is made of it."""

    template: Mapping[str, Any] = field(hash=False)
    app: App
    guarantee: str
    sidecar: Sidecar
    storage: Storage


def consumer_of(spec: Mapping[str, Any]) -> Consumer:
    app, sidecar = dict(spec["app"]), dict(spec["sidecar"])
    if "batch" in app:
        app["batch"] = _part(Batch, app["batch"])
    if (parking := app.get("parking")) is not None:
        size_bytes = bytes_in("spec.consumer.app.parking.maxSize", parking["maxSize"])
        app["parking"] = _part(ParkingBounds, {**parking, "maxMb": size_bytes // BYTES_PER_MB})
    if "journal" in sidecar:
        sidecar["journal"] = _part(Journal, sidecar["journal"])
    return Consumer(
        template=pod_template_of(spec["template"], "spec.consumer.template"),
        app=_part(App, app),
        guarantee=spec["guarantee"],
        sidecar=_part(Sidecar, sidecar),
        storage=_storage(spec["storage"]) if "storage" in spec else Storage(),
    )


P = TypeVar("P")


def _part(kind: type[P], spec: Mapping[str, Any]) -> P:
    """A dataclass of a part of a manifest. Raises KeyError without a field that has no default."""
    values = {}
    for one in fields(kind):  # type: ignore[arg-type]  # P is a dataclass
        name = manifest_name(one.name)
        if name in spec or one.default is MISSING:
            values[one.name] = spec[name]
    return kind(**values)


_UNITS = {"s": "Seconds", "ms": "Milliseconds"}


def manifest_name(name: str) -> str:
    """`callTimeoutSeconds` of `call_timeout_s`."""
    first, *others = name.split("_")
    return "".join((first, *(_UNITS.get(word, word.capitalize()) for word in others)))


def _storage(spec: Mapping[str, Any]) -> Storage:
    return Storage(bytes_in("spec.consumer.storage.size", spec["size"]), spec.get("storageClassName"))
