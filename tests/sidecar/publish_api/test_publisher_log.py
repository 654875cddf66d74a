"""Lines about a publisher whose queues fill up and whose broker is away, in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lbg_core.publisher.events import (
    Connected,
    Disconnected,
    JournalTrouble,
    QueueFull,
    QueueSilent,
    QueueTaking,
    Unreachable,
)
from lbg_sidecar.publish_api.service import PublisherLog
from testing.virtual_time import in_virtual_time

QUEUES = [f"lbg.orders.q.{number}" for number in range(128)]


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message.removeprefix("publishing to orders: ") for message in caplog.messages]


def test_queues_that_are_full_are_one_line_and_another_when_all_take_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @in_virtual_time
    async def test() -> None:
        log = PublisherLog("orders")
        for queue in QUEUES:
            log(QueueFull(queue))
        await asyncio.sleep(5)
        for queue in QUEUES:
            log(QueueTaking(queue))
        await asyncio.sleep(60)

    with caplog.at_level(logging.INFO, "lbg.publishing"):
        test()
    [full, taking] = logged(caplog)
    assert full.startswith("128 queues have no room (queues lbg.orders.q.0, lbg.orders.q.1, ")
    assert full.endswith(
        ", …); a full queue refuses messages, which wait in order until members have acknowledged others"
    )
    assert taking == "all 128 queues take messages again after 5.0 s"


def test_queues_that_fill_up_and_empty_all_the_time_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def test() -> None:
        log = PublisherLog("orders")
        for _ in range(300):
            for queue in QUEUES[:8]:
                log(QueueFull(queue))
            await asyncio.sleep(0.5)
            for queue in QUEUES[:8]:
                log(QueueTaking(queue))
            await asyncio.sleep(0.5)
        log.end()

    with caplog.at_level(logging.INFO, "lbg.publishing"):
        test()
    assert 2 < len(logged(caplog)) < 16


def test_a_silent_queue_is_named_with_a_possible_reason(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def test() -> None:
        log = PublisherLog("orders")
        log(QueueSilent(QUEUES[7], 5.0))
        await asyncio.sleep(2)

    test()
    assert logged(caplog) == [
        "queue lbg.orders.q.7 has no answers; messages wait in order (are most nodes of a quorum queue down?)"
    ]


def test_attempts_to_connect_that_fail_in_the_same_way_are_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @in_virtual_time
    async def test() -> None:
        log = PublisherLog("orders")
        log(Disconnected("gone", 3))
        for _ in range(720):
            log(Unreachable("amqp://host:5672/: Connection refused", 5.0))
            await asyncio.sleep(5)
        log(Connected("amqp://host:5672/"))
        log(Unreachable("amqp://host:5672/: Connection refused", 0.1))

    with caplog.at_level(logging.INFO, "lbg.publishing"):
        test()
    lines = logged(caplog)
    assert lines[1] == "amqp://host:5672/: Connection refused; trying again within 5.0 s"
    assert "attempts since the last such line" in lines[2]
    assert lines[-1] == "amqp://host:5672/: Connection refused; trying again within 0.1 s"
    assert len(lines) < 24


def test_nothing_is_logged_about_the_queues_of_a_publisher_that_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @in_virtual_time
    async def test() -> None:
        log = PublisherLog("orders")
        log(QueueFull(QUEUES[0]))
        await asyncio.sleep(2)
        log.end()
        await asyncio.sleep(1000)

    test()
    assert len(logged(caplog)) == 1


def test_trouble_with_the_journal_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def test() -> None:
        PublisherLog("orders")(JournalTrouble("no space"))

    test()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "publishing to orders: no space")
    ]
