"""A cluster that refuses a broker's volume keeps nobody from looking after the broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from lbg_core.client import Credentials
from lbg_operator.certificates import issue
from lbg_operator.crds import BrokerManifest
from lbg_operator.kube.api import ClusterError, Forbidden, Invalid
from lbg_operator.kube.kinds import VOLUME_CLAIM
from lbg_operator.reconcile.broker import refusal_of_volume
from lbg_operator.reconcile.ending_namespaces import EndingNamespaces
from lbg_operator.reconcile.object_cache import Key, ObjectCache
from lbg_operator.reconcile.server_side_apply import ServerSideApply
from lbg_operator.resources.embedded_broker import embedded_of, hosts_of
from lbg_operator.settings import OperatorSettings
from testing.kubernetes.manifests import broker_manifest

KEY = Key("shop", "main")
SETTINGS = OperatorSettings(sidecar_image="s", broker_image="b")


class Refusing:
    """A cluster that answers every apply with `error`, if there is one."""

    def __init__(self, error: ClusterError | None) -> None:
        self.error = error
        self.applied: list[dict[str, Any]] = []

    async def apply(self, wanted: dict[str, Any]) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        self.applied.append(wanted)
        return wanted


def volume() -> dict[str, Any]:
    broker = BrokerManifest.parse(broker_manifest())
    certificate = issue(hosts_of(broker), now=datetime(2031, 1, 1, tzinfo=UTC), days=90)
    found = embedded_of(broker, SETTINGS, login=Credentials("a", "b"), certificate=certificate)[-1]
    assert found["kind"] == VOLUME_CLAIM.kind, "what may be refused is applied last"
    return found


def applied_by(cluster: Refusing) -> ServerSideApply:
    store = ObjectCache()
    return ServerSideApply(cluster, store, EndingNamespaces(store))


@pytest.mark.parametrize("error", [Forbidden, Invalid])
async def test_a_volume_that_may_not_grow_is_told_and_is_tried_again(error: type[ClusterError]) -> None:
    cluster = Refusing(error("apply PersistentVolumeClaim shop/main-lbg-data", "must support resize"))
    applied = applied_by(cluster)
    assert "must support resize" in await refusal_of_volume(applied, KEY, volume(), now=0.0)
    cluster.error = None
    assert await refusal_of_volume(applied, KEY, volume(), now=1.0) == ""
    assert len(cluster.applied) == 1


async def test_an_api_server_that_does_not_answer_is_nothing_of_the_volumes() -> None:
    cluster = Refusing(ClusterError("apply PersistentVolumeClaim shop/main-lbg-data", "no answer"))
    with pytest.raises(ClusterError, match="no answer"):
        await refusal_of_volume(applied_by(cluster), KEY, volume(), now=0.0)
