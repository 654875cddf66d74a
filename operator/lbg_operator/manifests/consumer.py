"""The consumers of a group, as its manifest says them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .pod_template import pod_template_of
from .quantities import bytes_in


@dataclass(frozen=True, slots=True)
class Batch:
    size: int
    linger_ms: int
    requests: int


@dataclass(frozen=True, slots=True)
class App:
    """How messages reach the application; words as the manifest has them."""

    channel: str
    container: str | None
    port: int | None
    path: str
    health_path: str | None
    positions_path: str | None
    order: str
    concurrency: int | None
    prefetch: int | None
    call_timeout_s: int
    max_attempts: int
    when_exhausted: str
    batch: Batch | None


@dataclass(frozen=True, slots=True)
class Journal:
    """Where sidecars write it: on a claim of the group's namespace, or on a volume that the template has."""

    claim: str | None
    volume: str | None


@dataclass(frozen=True, slots=True)
class Sidecar:
    image: str | None
    resources: Mapping[str, Any] | None
    log_format: str
    republish: bool
    journal: Journal | None


@dataclass(frozen=True, slots=True)
class Storage:
    """What a consumer pod keeps its session's position on. No `storage_class`: the cluster's."""

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


def consumer_of(told: Mapping[str, Any]) -> Consumer:
    app, sidecar = told["app"], told["sidecar"]
    return Consumer(
        template=pod_template_of(told["template"], "spec.consumer.template"),
        app=App(
            channel=app["channel"],
            container=app.get("container"),
            port=app.get("port"),
            path=app["path"],
            health_path=app.get("healthPath"),
            positions_path=app.get("positionsPath"),
            order=app["order"],
            concurrency=app.get("concurrency"),
            prefetch=app.get("prefetch"),
            call_timeout_s=app["callTimeoutSeconds"],
            max_attempts=app["maxAttempts"],
            when_exhausted=app["whenExhausted"],
            batch=_batch(app["batch"]) if "batch" in app else None,
        ),
        guarantee=told["guarantee"],
        sidecar=Sidecar(
            image=sidecar.get("image"),
            resources=sidecar.get("resources"),
            log_format=sidecar["logFormat"],
            republish=sidecar.get("republish", False),
            journal=_journal(sidecar["journal"]) if "journal" in sidecar else None,
        ),
        storage=_storage(told["storage"]) if "storage" in told else Storage(),
    )


def _journal(told: Mapping[str, Any]) -> Journal:
    return Journal(claim=told.get("volumeClaim"), volume=told.get("volume"))


def _storage(told: Mapping[str, Any]) -> Storage:
    return Storage(bytes_in("spec.consumer.storage.size", told["size"]), told.get("storageClassName"))


def _batch(told: Mapping[str, Any]) -> Batch:
    return Batch(size=told["size"], linger_ms=told["lingerMilliseconds"], requests=told["requests"])
