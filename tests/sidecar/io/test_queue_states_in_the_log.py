"""Lines about 128 queues that a broker does not let a member consume, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest

from lbg_core.client import ChannelClosed, ClientConnection, ClientError
from lbg_core.group import EMBEDDED, RABBITMQ
from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.core.effects import Attach
from lbg_sidecar.io.consumers import MemberEvents, QueueConsumers
from lbg_sidecar.io.log_events import LiveLogger, StateLogger
from testing.virtual_time import in_virtual_time

QUEUES = 128


class Channel:
    """Answers basic.consume when `answer` has a result, with it."""

    def __init__(self, answer: asyncio.Future[None]) -> None:
        self.closed: asyncio.Future[ClientError | None] = asyncio.get_running_loop().create_future()
        self._answer = answer

    async def consume(self, *_: object, **__: object) -> None:
        try:
            await asyncio.shield(self._answer)
        except ClientError as error:
            self.closed.set_result(error)
            raise


class Broker:
    """A connection to an engine."""

    def __init__(self, product: str) -> None:
        self.is_open = True
        self.server_properties = {"product": product}
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open_channel(self, **_: object) -> Channel:
        return Channel(self.answer)


class Events:
    """A member that has no part in it."""

    @property
    def machine(self) -> Events:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_: False


class Member:
    def __init__(self, product: str = EMBEDDED) -> None:
        self.broker = Broker(product)
        self.states = StateLogger[int]("m", {"member": "m"})
        self._consumers = QueueConsumers(
            cast(ClientConnection, self.broker),
            "q{}".format,
            "tag",
            lambda _: None,
            self.states,
        )

    def attach(self) -> None:
        for queue in range(QUEUES):
            self._consumers.attach(Attach(Attachment(queue, 1)), cast(MemberEvents, Events()))


@pytest.fixture(autouse=True)
def _levels(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "lbg.member"):
        yield


@pytest.mark.parametrize(
    ("product", "hint"),
    [
        (EMBEDDED, "the embedded broker answers at once unless it is stopped or overloaded"),
        (RABBITMQ, "a quorum queue answers nothing while most of its nodes are down"),
    ],
)
def test_queues_without_an_answer_are_one_line_with_what_is_true_of_the_engine(
    caplog: pytest.LogCaptureFixture, product: str, hint: str
) -> None:
    @in_virtual_time
    async def test() -> None:
        member = Member(product)
        member.attach()
        await asyncio.sleep(7)
        assert caplog.messages == [f"m: 128 queues have no answer to basic.consume (queues 0-127); {hint}"]
        await asyncio.sleep(35)
        member.broker.answer.set_result(None)
        await asyncio.sleep(1)

    test()
    assert caplog.messages[1:] == [
        "m: 128 queues still have no answer to basic.consume after 16 s (queues 0-127)",
        "m: 128 queues still have no answer to basic.consume after 36 s (queues 0-127)",
        "m: all 128 queues answer again after 42.0 s",
    ]
    fields = [vars(record)["fields"] for record in caplog.records]
    assert {one["event"] for one in fields} == {"no_answer"}
    assert all(one["queues"] == list(range(QUEUES)) and one["member"] == "m" for one in fields)
    assert [one["over"] for one in fields] == [False, False, False, True]


def test_queues_that_are_refused_at_every_attempt_are_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @in_virtual_time
    async def test() -> None:
        member = Member()
        member.broker.answer.set_exception(ChannelClosed(404, "NOT_FOUND - no queue 'q'"))
        for _ in range(60):
            member.attach()
            await asyncio.sleep(10)
        member.broker.answer = asyncio.get_running_loop().create_future()
        member.broker.answer.set_result(None)
        member.attach()
        await asyncio.sleep(1)

    test()
    assert caplog.messages[0].startswith(
        "m: 128 queues have no channel (queues 0-127): channel closed: 404 NOT_FOUND"
    )
    assert caplog.messages[0].endswith("; the broker closed it")
    assert caplog.messages[-1] == "m: all 128 queues are consumed again after 600.0 s"
    assert len(caplog.messages) < 12


@pytest.mark.long
def test_a_connection_that_is_lost_and_comes_back_without_answers_adds_no_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @in_virtual_time
    async def test() -> None:
        member = Member()
        for _ in range(40):
            member.attach()
            await asyncio.sleep(30)
            member.states.disconnected()

    test()
    assert 4 < len(caplog.messages) < 12


def test_members_that_join_one_by_one_within_a_moment_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def test() -> None:
        log = LiveLogger("m")
        for count in range(1, 65):
            log.changed(frozenset(range(count)))
            await asyncio.sleep(0.05)
        await asyncio.sleep(10)
        log.changed(frozenset())
        log.changed(frozenset(range(2)))
        log.changed(frozenset())
        await asyncio.sleep(10)

    test()
    assert caplog.messages[0] == "m: live members: 1 (index 0)"
    assert caplog.messages[-2] == "m: live members: 64 (indexes 0-63)"
    assert caplog.messages[-1] == "m: live members: none"
    assert len(caplog.messages) == 6
