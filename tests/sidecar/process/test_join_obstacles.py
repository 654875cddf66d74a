"""Obstacles to joining a group: the member retries, and reports error and remedy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from lbg_broker.settings import TlsSettings
from lbg_sidecar.process.lifecycle import MemberLifecycle
from lbg_sidecar.process.metrics import Measures
from lbg_sidecar.process.settings import configure
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker, free_port, in_process
from testing.member.group_load import group_spec
from testing.waiting import until

GROUP = "waited"


@asynccontextmanager
async def living(**settings: str) -> AsyncIterator[MemberLifecycle]:
    """A sidecar's member with a command that reads and never answers."""
    configured = configure({"LBG_GROUP": GROUP, "LBG_COMMAND": "cat", **settings})
    life = MemberLifecycle(configured, Measures(asyncio.get_running_loop().time))
    running = asyncio.create_task(life.run())
    try:
        yield life
    finally:
        life.stop("the test is over")
        await running


def at(broker: EmbeddedBroker, login: str = "guest:guest", vhost: str = "") -> str:
    return f"amqp://{login}@127.0.0.1:{broker.port}/{vhost}"


async def test_a_refused_address_is_told_with_what_to_do() -> None:
    port = free_port()
    async with living(LBG_BROKER=f"amqp://guest:guest@127.0.0.1:{port}/") as life:
        await until(lambda: "Connection refused" in life.contact.error)
        assert "is the broker up, and is LBG_BROKER its address?" in life.why_not_ready()[0]
        assert f"127.0.0.1:{port}" in life.why_not_ready()[0]


async def test_a_missing_virtual_host_is_told_with_what_to_do(broker: EmbeddedBroker) -> None:
    async with living(LBG_BROKER=at(broker, vhost="nowhere")) as life:
        await until(lambda: "create the virtual host" in life.contact.error)
        assert "nowhere" in life.contact.error


async def test_permissions_that_are_missing_are_told_and_waited_for(broker: EmbeddedBroker) -> None:
    await declare_group(broker.url, group_spec(GROUP))
    broker.put("users/allowed-nothing", password="pass-word", tags="")
    nothing = {"configure": "^$", "write": "^$", "read": "^$"}
    broker.put("permissions/%2F/allowed-nothing", **nothing)
    async with living(LBG_BROKER=at(broker, "allowed-nothing:pass-word")) as life:
        await until(lambda: f"lbg group create {GROUP} …" in life.contact.error)
        assert f"user 'allowed-nothing' may not use group '{GROUP}'" in life.contact.error
        broker.put("permissions/%2F/allowed-nothing", **dict.fromkeys(nothing, ".*"))
        await until(lambda: not life.why_not_ready())


async def test_a_wrong_password_is_waited_out_until_its_file_is_right(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await declare_group(broker.url, group_spec(GROUP))
    file = tmp_path / "password"
    file.write_text("not-this-one\n")
    async with living(LBG_BROKER=at(broker), LBG_PASSWORD_FILE=str(file)) as life:
        await until(lambda: "LBG_PASSWORD_FILE" in life.contact.error)
        assert "not-this-one" not in life.contact.error
        since = life.contact.since
        assert life.why_not_ready()[0].startswith(f"not in the group since {since}: ")
        file.unlink()
        await until(lambda: "mount the Secret there" in life.contact.error)
        assert life.contact.since == since
        file.write_text("guest\n")
        await until(lambda: not life.why_not_ready())
        assert life.contact.describe()["last_error"] is None


async def test_a_certificate_of_an_unknown_authority_is_told_with_what_to_do(tmp_path: Path) -> None:
    ours = trustme.CA().issue_cert("localhost")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    ours.cert_chain_pems[0].write_to_path(certificate)
    ours.private_key_pem.write_to_path(key)
    async with (
        in_process(tmp_path / "data", tls=TlsSettings(certificate, key)) as server,
        living(LBG_BROKER=f"amqps://guest:guest@localhost:{server.port}/") as life,
    ):
        await until(lambda: "certificate" in life.contact.error)
        assert "LBG_CAFILE must have the CA that signed the certificate" in life.contact.error


@pytest.mark.process
async def test_a_broker_that_was_there_is_told_to_be_away_since_when_and_why(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        await declare_group(broker.url, group_spec(GROUP))
        async with living(LBG_BROKER=broker.url) as life:
            await until(lambda: not life.why_not_ready())
            assert life.last_received_at is not None
            broker.kill()
            await until(lambda: "Connection refused" in life.contact.error)
            (reason,) = life.why_not_ready()
            assert reason.startswith(f"not in the group since {life.contact.since}: ")
            state = life.state()
            assert state["contact"]["joined"] is False
            assert "Connection refused" in state["contact"]["last_error"]
            assert life.last_received_at is None
            broker.start()
            await until(lambda: not life.why_not_ready())
            assert life.state()["contact"]["last_error"] is None
