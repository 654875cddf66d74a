"""The API beside a running broker: its address, TLS, and a port that is taken."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path

import pytest
import trustme
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from lbg_broker import Address, Server, ServerSettings, StartError, TlsSettings, running
from lbg_core.client import ConfirmingPublisher, connect

ANY = Address("127.0.0.1", 0)
GUEST = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


async def test_the_api_says_where_amqp_listens_and_ends_with_the_broker(tmp_path: Path) -> None:
    async with ClientSession(headers=GUEST) as session:
        async with running(ServerSettings(tmp_path, listen=ANY, management=ANY)) as server:
            url = f"http://{server.management_address}/api/overview"
            async with session.get(url) as answer:
                assert (await answer.json())["listeners"][0]["port"] == server.port
        with pytest.raises(OSError, match="Connect"):
            await session.get(url)


async def test_without_an_address_there_is_no_api(tmp_path: Path) -> None:
    async with running(ServerSettings(tmp_path, listen=ANY)) as server:
        assert server.management_address is None


async def test_the_api_is_served_over_tls_when_amqp_is(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    tls = TlsSettings(tmp_path / "cert.pem", tmp_path / "key.pem")
    settings = ServerSettings(tmp_path / "data", listen=ANY, management=ANY, tls=tls)
    async with running(settings) as server, ClientSession(headers=GUEST) as session:
        answer = await session.get(f"https://{server.management_address}/api/whoami", ssl=trusting)
        assert answer.status == 200


async def test_a_port_that_is_taken_is_one_clear_error_and_leaves_the_directory_free(tmp_path: Path) -> None:
    async with running(ServerSettings(tmp_path / "first", listen=ANY, management=ANY)) as server:
        assert server.management_port is not None
        taken = Address("127.0.0.1", server.management_port)
        with pytest.raises(StartError, match=f"cannot listen on {taken}"):
            async with running(ServerSettings(tmp_path / "second", listen=ANY, management=taken)):
                pass
        async with running(ServerSettings(tmp_path / "second", listen=ANY)):
            pass


async def scrape(server: Server) -> str:
    async with ClientSession() as nobody, nobody.get(f"http://{server.management_address}/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return await answer.text()


def values(text: str) -> dict[str, float]:
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples}


async def test_metrics_count_the_whole_broker_and_name_nobody(tmp_path: Path) -> None:
    async with running(ServerSettings(tmp_path, listen=ANY, management=ANY)) as server:
        before = values(await scrape(server))
        connection = await connect(f"amqp://guest:guest@127.0.0.1:{server.port}/")
        channel = await connection.open_channel()
        await channel.queue_declare("secret-queue", durable=True)
        publisher = await ConfirmingPublisher.open(connection)
        for _ in range(3):
            await publisher.publish("", "secret-queue", b"x")
        await publisher.publish("", "nowhere", b"x")
        text = await scrape(server)
        after = values(text)
        await connection.close()
    assert "secret-queue" not in text
    assert "guest" not in text
    changed = {name: value - before[name] for name, value in after.items() if name.startswith("lbg_broker_")}
    assert {name: value for name, value in changed.items() if value} == {
        "lbg_broker_connections": 1,
        "lbg_broker_channels": 2,
        "lbg_broker_queues": 1,
        "lbg_broker_messages_ready": 3,
        "lbg_broker_messages_published_total": 4,
        "lbg_broker_messages_unroutable_total": 1,
    }
    assert after["lbg_broker_ready"] == 1
    assert after["process_open_fds"] > 0


@pytest.mark.process
async def test_promtool_accepts_the_metrics(tmp_path: Path) -> None:
    async with running(ServerSettings(tmp_path, listen=ANY, management=ANY)) as server:
        text = await scrape(server)
    judge = await asyncio.create_subprocess_exec(
        *("promtool", "check", "metrics"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await judge.communicate(text.encode())
    assert (judge.returncode, said) == (0, b"")
