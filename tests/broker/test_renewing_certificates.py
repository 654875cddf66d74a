"""A certificate that is replaced under a running broker: who comes gets the new one, who is there stays."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from lbg_broker import Address, Server, TlsSettings
from lbg_core.amqp.methods import QueueDeclare, QueueDeclareOk
from testing import waiting
from testing.amqp.plain_client import PlainClient
from testing.broker.embedded import in_process
from testing.kubernetes.mounted import MountedSecret

ANY = Address("127.0.0.1", 0)


class Authority:
    def __init__(self) -> None:
        self._ca = trustme.CA()
        self.trusting = ssl.create_default_context()
        self._ca.configure_trust(self.trusting)

    def files(self) -> dict[str, bytes]:
        """A new certificate with its key, as a Secret has them."""
        issued = self._ca.issue_cert("localhost")
        return {
            "tls_crt": issued.cert_chain_pems[0].bytes(),
            "tls_key": issued.private_key_pem.bytes(),
        }


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def secret(tmp_path: Path, authority: Authority) -> MountedSecret:
    return MountedSecret(tmp_path / "tls", **authority.files())


def settings_of(secret: MountedSecret) -> TlsSettings:
    return TlsSettings(secret / "tls.crt", secret / "tls.key")


def shown_to(context: ssl.SSLContext, port: int, *, name: str | None = "localhost") -> bytes:
    """The certificate that a new client is shown (DER)."""
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname=name) as client,
    ):
        found = client.getpeercert(binary_form=True)
        assert found is not None
        return found


def der(files: dict[str, bytes]) -> bytes:
    return ssl.PEM_cert_to_DER_cert(files["tls_crt"].decode())


async def shown(server: Server, context: ssl.SSLContext, *, name: str | None = "localhost") -> bytes:
    return await asyncio.to_thread(shown_to, context, server.port, name=name)


async def wait_for(server: Server, context: ssl.SSLContext, wanted: bytes) -> None:
    for _ in range(500):
        if await shown(server, context) == wanted:
            return
        await asyncio.sleep(0.02)
    pytest.fail("the former certificate is shown still")


async def test_new_connections_get_the_new_certificate_and_old_ones_stay(
    tmp_path: Path, authority: Authority, secret: MountedSecret
) -> None:
    settings = {"tls": settings_of(secret), "management": ANY, "files_check_s": 0.02}
    async with in_process(tmp_path / "data", **settings) as server:
        client = await asyncio.to_thread(PlainClient, server.port, tls=authority.trusting)
        renewed = authority.files()
        secret.put(**renewed)
        await wait_for(server, authority.trusting, der(renewed))
        assert server.management_port is not None
        of_api = await asyncio.to_thread(shown_to, authority.trusting, server.management_port)
        assert of_api == der(renewed)
        answer = await asyncio.to_thread(client.ask, QueueDeclare("q", durable=True), QueueDeclareOk)
        assert answer.queue == "q"
        await asyncio.to_thread(client.close)


async def test_a_client_that_names_no_server_gets_the_new_one_too(
    tmp_path: Path, authority: Authority, secret: MountedSecret
) -> None:
    nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nameless.check_hostname = False
    nameless.verify_mode = ssl.CERT_NONE
    async with in_process(tmp_path / "data", tls=settings_of(secret), files_check_s=0.02) as server:
        renewed = authority.files()
        secret.put(**renewed)
        await wait_for(server, authority.trusting, der(renewed))
        assert await shown(server, nameless, name=None) == der(renewed)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_versions_of_tls_are_served_the_new_one(
    tmp_path: Path, authority: Authority, secret: MountedSecret, version: ssl.TLSVersion
) -> None:
    authority.trusting.minimum_version = authority.trusting.maximum_version = version
    async with in_process(tmp_path / "data", tls=settings_of(secret), files_check_s=0.02) as server:
        renewed = authority.files()
        secret.put(**renewed)
        await wait_for(server, authority.trusting, der(renewed))


@pytest.mark.parametrize("broken", ["another key", "no certificate", "gone"])
async def test_what_cannot_be_used_changes_nothing_until_it_can(
    tmp_path: Path,
    authority: Authority,
    secret: MountedSecret,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    caplog.set_level(logging.INFO, "lbg.broker")
    async with in_process(tmp_path / "data", tls=settings_of(secret), files_check_s=0.01) as server:
        former = await shown(server, authority.trusting)
        renewed = authority.files()
        if broken == "another key":
            secret.put(tls_crt=renewed["tls_crt"], tls_key=authority.files()["tls_key"])
        elif broken == "no certificate":
            secret.put(tls_crt="nothing", tls_key=renewed["tls_key"])
        else:
            secret.put(other="x")
        await waiting.until(lambda: "the certificate changed and cannot be used" in caplog.text)
        assert await shown(server, authority.trusting) == former
        secret.put(**renewed)
        await wait_for(server, authority.trusting, der(renewed))
    assert caplog.text.count("cannot be used") == 1
