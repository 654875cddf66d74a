"""`lbg operator release`, which the chart runs before it is uninstalled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from lbg_operator.kube.api import ClusterError, Object
from lbg_operator.kube.kinds import DEPLOYMENT, GROUP, POD, Kind
from lbg_operator.reconcile.group_deletion import FINALIZER
from lbgroup.cli import cli


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global PAUSES, release_all, stop
    from lbg_operator.runtime.uninstall import PAUSES, release_all, stop


class OperatorsEnd:
    """A cluster in which the operator's pod needs `steps` looks to go. While it runs it puts finalizers back."""

    def __init__(self, steps: int, groups: Sequence[Object] = ()) -> None:
        self.steps = steps
        self.groups = list(groups)
        self.deployments = [{"metadata": {"name": "lbg"}}]

    async def select(self, kind: Kind, namespace: str | None, selector: str) -> Sequence[Object]:
        if kind is GROUP:
            return [one for one in self.groups if namespace in (None, one["metadata"]["namespace"])]
        assert (namespace, selector) == ("lbg-system", "app=lbg")
        if kind is DEPLOYMENT:
            return self.deployments
        assert kind is POD
        self.steps -= not self.deployments
        return [{"metadata": {"name": "lbg-x"}}] if self.steps > 0 else []

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        assert (kind, namespace, name) == (DEPLOYMENT, "lbg-system", "lbg")
        self.deployments = []

    async def merge(self, kind: Kind, namespace: str | None, name: str, patch: Object) -> Object:
        (group,) = (
            one for one in self.groups if (one["metadata"]["namespace"], one["metadata"]["name"]) == (namespace, name)
        )  # fmt: skip
        assert patch["metadata"].pop("resourceVersion") == group["metadata"]["resourceVersion"]
        if self.steps <= 0:
            group["metadata"].update(patch["metadata"])
        return group


def group(namespace: str, *finalizers: str) -> Object:
    metadata: dict[str, Any] = {"namespace": namespace, "name": "orders", "resourceVersion": "7"}
    return {"metadata": {**metadata, "finalizers": list(finalizers)}}


async def test_the_operator_has_ended_before_a_group_is_let_go() -> None:
    cluster = OperatorsEnd(3, [group("shop", FINALIZER), group("other", FINALIZER, "example.org/theirs")])
    await stop(cluster, "lbg-system", "app=lbg", pause_s=0)
    assert await release_all(cluster, ()) == ["shop/orders", "other/orders"]
    assert [one["metadata"]["finalizers"] for one in cluster.groups] == [[], ["example.org/theirs"]]


async def test_an_operator_that_does_not_end_is_an_error_and_not_a_wait_for_ever() -> None:
    with pytest.raises(
        ClusterError, match="pods app=lbg in lbg-system still run: delete them, and try again"
    ):
        await stop(OperatorsEnd(PAUSES + 1), "lbg-system", "app=lbg", pause_s=0)


async def test_only_groups_of_the_named_namespaces_are_let_go() -> None:
    cluster = OperatorsEnd(0, [group("shop", FINALIZER), group("other", FINALIZER), group("third")])
    assert await release_all(cluster, ["shop", "third"]) == ["shop/orders"]


def test_stopping_without_a_namespace_is_one_clear_line() -> None:
    done = CliRunner().invoke(
        cli, ["operator", "release", "--stop", "app=lbg"], env={"LBG_OPERATOR_NAMESPACE": ""}
    )
    assert done.exit_code == 2
    assert done.output.splitlines()[-1].endswith(
        "--stop needs LBG_OPERATOR_NAMESPACE, the namespace of the operator"
    )
