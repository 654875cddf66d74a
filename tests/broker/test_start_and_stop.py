"""Start and stop of the broker, also with a failing disk."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trustme

from lbg_broker import Address, ServerSettings, StartError, TlsSettings, running
from lbg_broker.commit import BackPressure
from lbg_broker.core.effects import Page, StoreBatch
from lbg_broker.store import DiskFullError, Store, StoreError
from lbg_core.amqp import AckEvent
from lbg_core.amqp.methods import (
    BasicAck,
    BasicConsume,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionUnblocked,
    QueueDeclare,
    QueueDeclareOk,
)
from testing.amqp.plain_client import ClosedError, PlainClient
from testing.broker.embedded import BrokerFailedError, EmbeddedBroker, in_process
from testing.waiting import GUARD_S

T = TypeVar("T")


async def aside(function: Callable[[], T]) -> T:
    """Run something blocking while the broker in this loop goes on."""
    return await asyncio.get_running_loop().run_in_executor(None, function)


@pytest.mark.process
def test_sigterm_closes_connections_with_a_reason_and_keeps_what_they_held(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        client = PlainClient(broker.port)
        client.ask(QueueDeclare("q", durable=True), QueueDeclareOk)
        for body in (b"0", b"1", b"2"):
            client.publish(body, "q")
        client.send(BasicConsume("q", "c"))
        client.deliveries(3)
        client.send(BasicAck(1))
        os.kill(broker.pid, signal.SIGTERM)
        close = client.wait(ConnectionClose)
        assert (close.reply_code, close.reply_text) == (
            320,
            "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
        )
        client.close()
        assert broker.stop() == 0
        broker.start()
        with PlainClient(broker.port) as client:
            client.send(BasicConsume("q", "c"))
            found = client.deliveries(2)
            assert [(delivery.body, delivery.redelivered) for delivery in found] == [
                (b"1", True),
                (b"2", True),
            ]


@pytest.mark.process
def test_a_second_broker_on_the_same_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        second = EmbeddedBroker(tmp_path / "data")
        second.log_file = tmp_path / "second.log"
        with pytest.raises(BrokerFailedError, match=rf"in use by another broker \(process {broker.pid}\)"):
            second.start()
        with PlainClient(broker.port):
            pass


async def test_an_address_in_use_is_a_start_error(tmp_path: Path) -> None:
    async with in_process(tmp_path / "one") as server:
        settings = ServerSettings(tmp_path / "two", listen=Address("127.0.0.1", server.port))
        with pytest.raises(StartError, match="cannot listen on"):
            async with running(settings):
                pass
    async with in_process(tmp_path / "two"):
        pass


async def test_one_client_too_many_is_turned_away(tmp_path: Path) -> None:
    async with in_process(tmp_path / "data", connections_max=1) as server:
        client = await aside(lambda: PlainClient(server.port))
        with pytest.raises(ConnectionError):
            await aside(lambda: PlainClient(server.port))
        client.close()


async def test_clients_may_come_through_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "server.pem")
    )
    tls = TlsSettings(tmp_path / "server.pem", tmp_path / "server.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)

    def talk(port: int) -> int:
        with PlainClient(port, tls=context) as client:
            client.ask(QueueDeclare("q", durable=True), QueueDeclareOk)
            client.publish(b"x" * 300_000, "q")
            return client.ask(QueueDeclare("q", True), QueueDeclareOk).message_count

    async with in_process(tmp_path / "data", tls=tls) as server:
        assert await aside(lambda: talk(server.port)) == 1
        (connection,) = [peer.peer for peer in server.state.connections.values()] or [None]
        assert connection is None or connection.tls


class FailingStore:
    """Stands between the broker and its disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: StoreError | None = None
        carry_out = Store.carry_out

        def carry_out_or_fail(store: Store, batch: StoreBatch) -> list[Page]:
            if self.error is not None:
                raise self.error
            return carry_out(store, batch)

        monkeypatch.setattr(Store, "carry_out", carry_out_or_fail)


async def test_on_a_full_disk_publishers_wait_and_nothing_is_confirmed_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingStore(monkeypatch)
    async with in_process(tmp_path / "data", disk_retry_s=0.02) as server:
        client = await aside(lambda: PlainClient(server.port))
        await aside(lambda: client.ask(QueueDeclare("q", durable=True), QueueDeclareOk))
        await aside(lambda: client.ask(ConfirmSelect(), ConfirmSelectOk))
        disk.error = DiskFullError("no space left on the device")
        client.publish(b"x", "q")
        await aside(lambda: client.wait(ConnectionBlocked))
        client.publish(b"y", "q")
        client.flush()
        await asyncio.sleep(0.1)
        assert not [event for event in client.events if type(event) is AckEvent]
        disk.error = None
        await aside(lambda: client.wait(ConnectionUnblocked))
        confirmed = 0
        while confirmed < 2:
            ack = await aside(lambda: client.wait(BasicAck))
            confirmed = ack.delivery_tag
        client.close()
    store = Store(tmp_path / "data" / "broker.sqlite3")
    assert store.load().spools[0].messages == 2
    store.close()


async def test_a_broken_disk_ends_the_broker_and_confirms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingStore(monkeypatch)
    async with in_process(tmp_path / "data") as server:
        client = await aside(lambda: PlainClient(server.port))
        await aside(lambda: client.ask(QueueDeclare("q", durable=True), QueueDeclareOk))
        await aside(lambda: client.ask(ConfirmSelect(), ConfirmSelectOk))
        disk.error = StoreError("the disk is on fire")
        client.publish(b"x", "q")
        with pytest.raises((ClosedError, ConnectionResetError)):
            await aside(lambda: client.wait(BasicAck))
        with pytest.raises(StoreError, match="on fire"):
            await asyncio.wait_for(server.wait(), GUARD_S)
        client.close()


@pytest.mark.long
async def test_a_publisher_faster_than_the_disk_is_slowed_down_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out = Store.carry_out

    def slowly(store: Store, batch: StoreBatch) -> list[Page]:
        time.sleep(0.02)
        return carry_out(store, batch)

    def publish_all(port: int) -> int:
        with PlainClient(port) as client:
            client.ask(QueueDeclare("q", durable=True), QueueDeclareOk)
            client.ask(ConfirmSelect(), ConfirmSelectOk)
            for _ in range(2000):
                client.publish(b"x" * 1000, "q")
                client.flush()
            confirmed = 0
            while confirmed < 2000:
                confirmed = client.wait(BasicAck).delivery_tag
            return client.ask(QueueDeclare("q", True), QueueDeclareOk).message_count

    pacing: list[BackPressure] = []

    class Recorded(BackPressure):
        def __init__(self, limit_bytes: int) -> None:
            super().__init__(limit_bytes)
            pacing.append(self)

    monkeypatch.setattr("lbg_broker.server.BackPressure", Recorded)
    async with in_process(tmp_path / "data", unwritten_max_bytes=50_000) as server:
        (back_pressure,) = pacing
        monkeypatch.setattr(Store, "carry_out", slowly)
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, back_pressure.waiting_bytes)
                await asyncio.sleep(0.001)

        watching = asyncio.ensure_future(watch())
        assert await aside(lambda: publish_all(server.port)) == 2000
        watching.cancel()
        assert most < 50_000 + 2 * 256 * 1024


async def test_what_was_administered_is_on_disk_when_it_is_answered(tmp_path: Path) -> None:
    async with in_process(tmp_path / "data") as server:
        answer = await server.administer("guest", "/", QueueDeclare("q", durable=True))
        assert answer == QueueDeclareOk("q", 0, 0)
        await server.committed()
        assert server.state.batch.number > 1
    async with in_process(tmp_path / "data") as server:
        assert "q" in server.state.vhosts["/"].queues


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:5672", "127.0.0.1", 5672), ("[::1]:0", "::1", 0), ("broker:1", "broker", 1)],
)
def test_addresses_are_read_and_written(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize("text", ["5672", ":5672", "host:", "host:x", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        Address.parse(text)


async def test_a_certificate_that_is_not_there_is_a_start_error(tmp_path: Path) -> None:
    tls = TlsSettings(tmp_path / "none.pem", tmp_path / "none.pem")
    with pytest.raises(StartError, match="cannot use the certificate"):
        async with in_process(tmp_path / "data", tls=tls):
            pass
    async with in_process(tmp_path / "data"):
        pass
