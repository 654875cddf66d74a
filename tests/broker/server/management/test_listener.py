"""The API beside a running broker: its address, TLS, and a port that is taken."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

import pytest
import trustme
from aiohttp import ClientSession

from lbg_broker.server import Address, ServerSettings, StartError, TlsSettings, running

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
