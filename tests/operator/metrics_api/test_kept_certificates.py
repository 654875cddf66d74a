"""Certificate, token key and trusted callers, stored in a cluster."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509

from lbg_operator.certificates import renewal_due
from lbg_operator.kube.api import ClusterError, Object
from lbg_operator.kube.kinds import API_SERVICE, SECRET, Kind
from lbg_operator.metrics_api import Service, ServingConfig
from lbg_operator.metrics_api.tls import ensure_serving_config, names_of
from testing.kubernetes.fake_cluster import FakeCluster

NOW = datetime(2026, 3, 1, tzinfo=UTC)
OURS = Service("lbg", "lbg-operator")
SECRET_PLACE = (SECRET, "lbg", "lbg-operator-metrics-api")


def api_service(service: Service, **spec: Any) -> Object:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
        "spec": {"service": {"namespace": service.namespace, "name": service.name, "port": 443}, **spec},
    }


def spec_of(cluster: FakeCluster) -> Any:
    return cluster.objects[API_SERVICE, None, "v1beta1.external.metrics.k8s.io"]["spec"]


def authority_of(standing: ServingConfig) -> str:
    return base64.b64encode(standing.certificate.ca_pem).decode()


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(api_service(OURS))
    cluster.put(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
            "data": {"requestheader-client-ca-file": "PEM", "requestheader-allowed-names": '["front"]'},
        }
    )
    return cluster


async def test_the_first_round_makes_a_certificate_and_has_the_api_server_trust_it(
    cluster: FakeCluster,
) -> None:
    standing = await ensure_serving_config(cluster, OURS, now=NOW)
    names = x509.load_pem_x509_certificate(standing.certificate.certificate_pem).extensions
    covered = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "lbg-operator.lbg.svc" in covered.get_values_for_type(x509.DNSName)
    assert len(standing.token_key) == 32
    assert standing.callers is not None
    assert standing.callers.names == {"front"}
    assert spec_of(cluster)["caBundle"] == authority_of(standing)
    assert cluster.objects[SECRET_PLACE]["type"] == "kubernetes.io/tls"


async def test_further_rounds_change_nothing(cluster: FakeCluster) -> None:
    first = await ensure_serving_config(cluster, OURS, now=NOW)
    written = list(cluster.written)
    assert await ensure_serving_config(cluster, OURS, now=NOW + timedelta(days=30)) == first
    assert cluster.written == written


async def test_a_certificate_is_renewed_in_time_and_stays_trusted(cluster: FakeCluster) -> None:
    first = await ensure_serving_config(cluster, OURS, now=NOW)
    bundle = spec_of(cluster)["caBundle"]
    later = NOW + timedelta(days=65)
    second = await ensure_serving_config(cluster, OURS, now=later)
    assert second.certificate.certificate_pem != first.certificate.certificate_pem
    assert not renewal_due(second.certificate.certificate_pem, names_of(OURS), now=later)
    assert (second.token_key, spec_of(cluster)["caBundle"]) == (first.token_key, bundle)
    assert await ensure_serving_config(cluster, OURS, now=later) == second, "it is in the Secret"


@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
@pytest.mark.parametrize("value", [None, "", "bm9uc2Vuc2U=", "&&&"])
async def test_a_secret_that_was_spoilt_is_made_anew(
    cluster: FakeCluster, key: str, value: str | None
) -> None:
    await ensure_serving_config(cluster, OURS, now=NOW)
    data = cluster.objects[SECRET_PLACE]["data"]
    if value is None:
        del data[key]
    else:
        data[key] = value
    standing = await ensure_serving_config(cluster, OURS, now=NOW)
    assert standing == await ensure_serving_config(cluster, OURS, now=NOW)
    assert not renewal_due(standing.certificate.certificate_pem, names_of(OURS), now=NOW)
    assert spec_of(cluster)["caBundle"] == authority_of(standing)


async def test_a_token_key_that_is_gone_is_made_anew(cluster: FakeCluster) -> None:
    first = await ensure_serving_config(cluster, OURS, now=NOW)
    del cluster.objects[SECRET_PLACE]["data"]["token.key"]
    second = await ensure_serving_config(cluster, OURS, now=NOW)
    assert second.certificate == first.certificate
    assert second.token_key not in (b"", first.token_key)
    assert await ensure_serving_config(cluster, OURS, now=NOW) == second


@pytest.mark.parametrize("other", [Service("keda", "keda-metrics"), Service("elsewhere", "lbg-operator")])
async def test_somebody_elses_api_service_is_not_touched(cluster: FakeCluster, other: Service) -> None:
    cluster.put(api_service(other, caBundle="dGhlaXJz"))
    await ensure_serving_config(cluster, OURS, now=NOW)
    assert spec_of(cluster)["caBundle"] == "dGhlaXJz"
    assert not [one for one in cluster.written if one[1] == "APIService"]


async def test_a_cluster_without_an_api_service_gets_none(cluster: FakeCluster) -> None:
    cluster.objects.pop((API_SERVICE, None, "v1beta1.external.metrics.k8s.io"))
    await ensure_serving_config(cluster, OURS, now=NOW)
    assert not [one for one in cluster.written if one[1] == "APIService"]


async def test_an_api_service_that_trusts_anybody_is_made_to_trust_us(cluster: FakeCluster) -> None:
    cluster.put(api_service(OURS, insecureSkipTLSVerify=True))
    standing = await ensure_serving_config(cluster, OURS, now=NOW)
    assert spec_of(cluster)["caBundle"] == authority_of(standing)
    assert "insecureSkipTLSVerify" not in spec_of(cluster)


async def test_two_operators_that_start_together_end_with_one_certificate(cluster: FakeCluster) -> None:
    class Late(FakeCluster):
        """Reads, and is then overtaken."""

        def __init__(self, other: FakeCluster) -> None:
            super().__init__()
            self.objects, self._other = other.objects, other

        async def create(self, new: Object) -> Object:
            await ensure_serving_config(self._other, OURS, now=NOW)
            return await super().create(new)

    late = Late(cluster)
    with pytest.raises(ClusterError, match="already exists"):
        await ensure_serving_config(late, OURS, now=NOW)
    assert await ensure_serving_config(late, OURS, now=NOW) == await ensure_serving_config(
        cluster, OURS, now=NOW
    )
    assert spec_of(cluster)["caBundle"] == authority_of(await ensure_serving_config(late, OURS, now=NOW))


async def test_callers_are_nobody_where_the_api_server_does_not_tell_them() -> None:
    assert (await ensure_serving_config(FakeCluster(), OURS, now=NOW)).callers is None


async def test_an_api_service_that_is_pointed_elsewhere_in_between_is_not_touched() -> None:
    class Overtaken(FakeCluster):
        async def merge(self, kind: Kind, *place: Any, **more: Any) -> Object | None:
            if kind is API_SERVICE:
                self.put(api_service(Service("keda", "keda-metrics"), caBundle="dGhlaXJz"))
            return await super().merge(kind, *place, **more)

    cluster = Overtaken()
    cluster.put(api_service(OURS))
    with pytest.raises(ClusterError, match="has been modified"):
        await ensure_serving_config(cluster, OURS, now=NOW)
    assert spec_of(cluster)["caBundle"] == "dGhlaXJz"
