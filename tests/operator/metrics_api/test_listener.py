"""The metrics API over TLS, with certificates of a cluster."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
import trustme

from lbg_operator.errors import MetricUnknown
from lbg_operator.kube.kinds import CONFIG_MAP
from lbg_operator.metrics_api import MetricsApi, Service, serve, token_for
from testing.kubernetes.fake_cluster import FakeCluster
from testing.operator.metric_reader import HANGS, Lags
from testing.waiting import GUARD_S, until

OURS = Service("lbg", "lbg-operator")
VALUES = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/lbg_group_lag?labelSelector=group%3Dorders"
LAG = "/v1/metrics/shop/orders/api/v1/query?query=lbg_group_lag&time=2026-03-01T12:00:00Z"
CALLERS = (CONFIG_MAP, "kube-system", "extension-apiserver-authentication")


@dataclass
class Place:
    """A cluster, its front proxy's authority, and the API as its process runs it."""

    front: trustme.CA = field(default_factory=trustme.CA)
    cluster: FakeCluster = field(default_factory=FakeCluster)
    lags: Lags = field(default_factory=lambda: Lags({("shop", "orders"): 42}))
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def trust(self, authority: trustme.CA, names: str = '["front-proxy-client"]') -> None:
        data = {
            "requestheader-client-ca-file": authority.cert_pem.bytes().decode(),
            "requestheader-allowed-names": names,
        }
        metadata = {"name": CALLERS[2], "namespace": CALLERS[1]}
        self.cluster.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

    async def start(self) -> MetricsApi:
        return await self.stack.enter_async_context(
            serve(
                self.lags,
                self.cluster,
                OURS,
                host="127.0.0.1",
                port=0,
                check_interval_s=0.02,
                retry_s=0.02,
                read_within_s=0.1,
            )
        )

    async def client(
        self, api: MetricsApi, *, name: str | None = None, authority: trustme.CA | None = None
    ) -> Client:
        """With a certificate for `name`, or with none."""
        await until(lambda: api.serving_config is not None)
        assert api.serving_config is not None
        tls = ssl.create_default_context(cadata=api.serving_config.certificate.ca_pem.decode())
        if name is not None:
            issued = (authority or self.front).issue_cert("front@example.org", common_name=name)
            issued.configure_cert(tls)
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls))
        return Client(await self.stack.enter_async_context(session), f"https://127.0.0.1:{api.port}")


@dataclass
class Client:
    session: aiohttp.ClientSession
    url: str

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        name = "lbg-operator.lbg.svc"
        async with self.session.get(self.url + path, headers=headers, server_hostname=name) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    place.trust(place.front)
    async with place.stack:
        yield place


@pytest.fixture
async def api(place: Place) -> MetricsApi:
    return await place.start()


@pytest.fixture
async def api_server(place: Place, api: MetricsApi) -> Client:
    return await place.client(api, name="front-proxy-client")


async def test_the_api_server_is_told_a_lag(api_server: Client) -> None:
    status, told = await api_server.get(VALUES)
    assert status == 200
    (item,) = told["items"]
    assert (item["metricLabels"], item["value"]) == ({"group": "orders"}, "42")
    at = datetime.strptime(item["timestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - at).total_seconds()) < GUARD_S


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/apis", "APIGroupList"),
        ("/apis/external.metrics.k8s.io", "APIGroup"),
        ("/apis/external.metrics.k8s.io/v1beta1", "APIResourceList"),
    ],
)
async def test_discovery_says_what_there_is(api_server: Client, path: str, kind: str) -> None:
    status, told = await api_server.get(path)
    assert (status, told["kind"], told["apiVersion"]) == (200, kind, "v1")


async def test_the_aggregator_finds_both_openapi_documents(api_server: Client) -> None:
    status, told = await api_server.get("/openapi/v2")
    assert (status, told["swagger"], told["paths"]) == (200, "2.0", {})
    assert await api_server.get("/openapi/v3") == (200, {"paths": {}})


async def test_what_is_not_there_is_a_status(api_server: Client) -> None:
    for path in ("/api", "/apis/apps/v1", "/apis/external.metrics.k8s.io/v1beta1/lbg_group_lag"):
        status, told = await api_server.get(path)
        assert (status, told["kind"], told["reason"]) == (404, "Status", "NotFound")
    async with api_server.session.post(api_server.url + "/apis", server_hostname="lbg-operator") as response:
        assert (response.status, (await response.json())["reason"]) == (405, "MethodNotAllowed")


async def test_a_fault_of_ours_is_a_status_and_is_logged(
    place: Place, api_server: Client, caplog: pytest.LogCaptureFixture
) -> None:
    place.lags.told["shop", "orders"] = ZeroDivisionError("a bug")
    status, told = await api_server.get(VALUES)
    assert (status, told["reason"]) == (500, "InternalError")
    assert "a bug" not in told["message"]
    assert "a bug" in caplog.text


async def test_one_broker_that_hangs_holds_up_nobody_else(place: Place, api_server: Client) -> None:
    place.lags.told["shop", "stuck"] = HANGS
    stuck = asyncio.create_task(api_server.get(VALUES.replace("orders", "stuck")))
    status, _ = await api_server.get(VALUES)
    assert status == 200
    assert not stuck.done()
    status, told = await stuck
    assert (status, told["reason"]) == (503, "ServiceUnavailable")


# Who may ask


async def test_health_is_everybodys(place: Place, api: MetricsApi) -> None:
    stranger = await place.client(api)
    assert await stranger.get("/healthz") == (200, "ok")


@pytest.mark.parametrize("path", [VALUES, "/apis", "/openapi/v2", "/nothing"])
async def test_without_a_certificate_nothing_is_told(place: Place, api: MetricsApi, path: str) -> None:
    status, told = await (await place.client(api)).get(path)
    assert (status, told["reason"], told["code"]) == (401, "Unauthorized", 401)


async def test_another_name_of_the_same_authority_is_nobody(place: Place, api: MetricsApi) -> None:
    status, _ = await (await place.client(api, name="somebody")).get(VALUES)
    assert status == 401


async def test_the_same_name_of_another_authority_is_nobody(place: Place, api: MetricsApi) -> None:
    stranger = await place.client(api, name="front-proxy-client", authority=trustme.CA())
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await stranger.get(VALUES)


async def test_nobody_is_known_by_headers(place: Place, api: MetricsApi) -> None:
    stranger = await place.client(api)
    status, _ = await stranger.get(VALUES, **{"X-Remote-User": "system:masters"})
    assert status == 401


async def test_where_the_api_server_tells_no_authority_everybody_is_refused(place: Place) -> None:
    place.cluster.objects.pop(CALLERS)
    api = await place.start()
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await (await place.client(api, name="front-proxy-client")).get("/apis")
    assert (await (await place.client(api)).get("/apis"))[0] == 401


def authority_known(api: MetricsApi) -> str:
    callers = None if api.serving_config is None else api.serving_config.callers
    return "" if callers is None else callers.authority_pem


async def test_a_new_authority_of_the_api_server_takes_the_place_of_the_former(
    place: Place, api: MetricsApi, api_server: Client
) -> None:
    assert (await api_server.get("/apis"))[0] == 200
    new = trustme.CA()
    place.trust(new)
    await until(lambda: authority_known(api) == new.cert_pem.bytes().decode())
    status, _ = await api_server.get("/apis")
    assert status == 401, "on the connection that the former authority had opened"
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await api_server.get("/apis")
    successor = await place.client(api, name="front-proxy-client", authority=new)
    assert (await successor.get(VALUES))[0] == 200


async def test_an_authority_may_be_one_that_another_has_signed(place: Place) -> None:
    """As the API server takes it: any certificate of the list is an authority."""
    signed = trustme.CA().create_child_ca()
    place.trust(signed)
    client = await place.client(await place.start(), name="front-proxy-client", authority=signed)
    assert (await client.get("/apis"))[0] == 200


async def test_no_session_is_resumed_past_the_judgement_of_its_client(place: Place, api: MetricsApi) -> None:
    await until(lambda: api.serving_config is not None)
    assert api.serving_config is not None
    tls = ssl.create_default_context(cadata=api.serving_config.certificate.ca_pem.decode())
    place.front.issue_cert("front@example.org", common_name="front-proxy-client").configure_cert(tls)

    def visit(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        with (
            socket.create_connection(("127.0.0.1", api.port)) as plain,
            tls.wrap_socket(plain, server_hostname="lbg-operator.lbg.svc", session=session) as secure,
        ):
            secure.sendall(b"GET /apis HTTP/1.1\r\nHost: lbg-operator\r\nConnection: close\r\n\r\n")
            assert b" 200 " in secure.recv(100)
            while secure.recv(10_000):
                pass
            assert secure.version() == "TLSv1.3"
            assert not secure.session_reused
            return secure.session

    await asyncio.to_thread(visit, await asyncio.to_thread(visit, None))


async def test_a_name_that_is_allowed_no_more_is_refused_on_its_connection(
    place: Place, api: MetricsApi, api_server: Client
) -> None:
    assert (await api_server.get("/apis"))[0] == 200
    place.trust(place.front, '["another"]')
    await until(lambda: "another" in str(api.serving_config))
    assert (await api_server.get("/apis"))[0] == 401


# KEDA


def token(api: MetricsApi, group: str = "orders") -> str:
    assert api.serving_config is not None
    return f"Bearer {token_for(api.serving_config.token_key, 'shop', group)}"


async def test_keda_is_told_a_lag_for_its_token(place: Place, api: MetricsApi) -> None:
    keda = await place.client(api)
    status, told = await keda.get(LAG, Authorization=token(api))
    assert (status, told["status"], told["data"]["resultType"]) == (200, "success", "vector")
    (sample,) = told["data"]["result"]
    at, value = sample["value"]
    assert value == "42", "a text, as Prometheus has it"
    assert isinstance(at, float)


async def test_keda_is_told_nothing_of_another_metric(place: Place, api: MetricsApi) -> None:
    keda = await place.client(api)
    other = LAG.replace("query=lbg_group_lag", "query=up")
    assert (await keda.get(other, Authorization=token(api)))[0] == 400


async def test_keda_is_told_nothing_without_the_groups_own_token(place: Place, api: MetricsApi) -> None:
    keda = await place.client(api)
    assert (await keda.get(LAG))[0] == 401
    assert (await keda.get(LAG, Authorization=token(api, "other")))[0] == 401
    assert (await keda.get(VALUES, Authorization=token(api)))[0] == 401


async def test_the_api_servers_certificate_is_no_token(api_server: Client) -> None:
    assert (await api_server.get(LAG))[0] == 401


@pytest.mark.parametrize("lag", [MetricUnknown("the broker is away"), HANGS])
async def test_keda_is_told_that_a_lag_is_unknown(place: Place, api: MetricsApi, lag: object) -> None:
    place.lags.told["shop", "orders"] = lag
    status, told = await (await place.client(api)).get(LAG, Authorization=token(api))
    assert (status, told["reason"]) == (503, "ServiceUnavailable")


# Our own certificate


async def test_a_certificate_is_renewed_without_a_restart(place: Place, api: MetricsApi) -> None:
    client = await place.client(api)
    assert (await client.get("/healthz"))[0] == 200
    assert api.serving_config is not None
    former = api.serving_config.certificate
    secret = next(one for one in place.cluster.objects.values() if one["kind"] == "Secret")
    secret["data"]["tls.crt"] = base64.b64encode(b"spoilt").decode()
    await until(lambda: api.serving_config is not None and api.serving_config.certificate != former)
    shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", api.port))
    assert shown.strip().encode() == api.serving_config.certificate.certificate_pem.strip()
    assert (await client.get("/healthz"))[0] == 200, "on the connection that was open"


async def test_before_there_is_a_certificate_the_door_is_closed_and_opens_by_itself(place: Place) -> None:
    place.cluster.failing = {"read"}
    api = await place.start()
    tls = ssl.create_default_context()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", api.port, ssl=tls, server_hostname="lbg-operator.lbg.svc")
    assert api.serving_config is None
    place.cluster.failing = set()
    assert (await (await place.client(api)).get("/healthz"))[0] == 200


async def test_a_client_that_never_ends_its_handshake_holds_up_nobody(place: Place, api: MetricsApi) -> None:
    client = await place.client(api)
    _, silent = await asyncio.open_connection("127.0.0.1", api.port)
    assert (await client.get("/healthz"))[0] == 200
    silent.close()
    await silent.wait_closed()
