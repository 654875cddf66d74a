"""A cluster with the chart installed, and a namespace for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import helm_python as helm
import pytest

from e2e.kubectl import Kubectl, Object, until
from e2e.stage import HERE, broker, files, image, is_condition

CHART = HERE.parent / "charts" / "lbg"
RELEASE, SYSTEM = "lbg", "lbg-e2e-system"


def chart_values(**images: str) -> Object:
    return {"images": {**{name: image(name) for name in ("operator", "sidecar", "broker")}, **images}}


def system_namespace() -> Kubectl:
    """The namespace of the release, made if it is not there."""
    system = Kubectl(SYSTEM)
    if not system.is_there("namespace", SYSTEM):
        system("create", "namespace", SYSTEM)
    system("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    return system


@pytest.fixture(scope="session")
def release() -> Iterator[helm.Config]:
    """The chart, installed for the time of all tests."""
    if not os.environ.get("KUBECONFIG"):
        pytest.exit("e2e needs a cluster: set KUBECONFIG, or run `make e2e` where docker and kind are", 2)
    if found := groups_and_brokers():
        pytest.exit(f"e2e deletes all groups and Brokers of its cluster, and this one has {found}", 2)
    system = system_namespace()
    with helm.Config(namespace=SYSTEM) as config:
        try:
            config.install(CHART, RELEASE, chart_values(), namespace=SYSTEM, wait="watcher", timeout=180)
            yield config
        finally:
            config.uninstall(RELEASE, wait="watcher", timeout=120, ignore_not_found=True)
            system("delete", "namespace", SYSTEM, "--timeout=150s", timeout_s=160)


def groups_and_brokers() -> str:
    kinds = [
        one for one in Kubectl("default")("get", "crd", "-o", "name").split() if one.endswith(".lbg.dev")
    ]
    if not kinds:
        return ""
    return ", ".join(Kubectl("default")("get", "lbg,lbgb", "--all-namespaces", "-o", "name").split())


@pytest.fixture(scope="module")
def desk(release: helm.Config) -> Iterator[Kubectl]:
    """A namespace without a broker, for what the API server itself refuses or answers."""
    with _namespace() as inside:
        yield inside


@pytest.fixture
def shop(release: helm.Config) -> Iterator[Kubectl]:
    """A namespace with a broker that is ready; it is deleted with all that is in it."""
    with _namespace() as inside:
        inside.apply(files(), broker())
        until(lambda: is_condition(inside, "broker", "main", "Ready"), what="the broker to be ready")
        yield inside


@contextmanager
def _namespace() -> Iterator[Kubectl]:
    name = f"lbg-e2e-{uuid.uuid4().hex[:6]}"
    inside = Kubectl(name)
    inside("create", "namespace", name)
    try:
        inside("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        yield inside
    finally:
        inside("delete", "namespace", name, "--timeout=150s", timeout_s=160)
