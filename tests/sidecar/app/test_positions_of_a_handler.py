"""A handler that knows what it has processed is asked for it before it is called."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from lbg_core.group.sequences import StreamRuns
from lbg_sidecar import AppError, Message
from lbg_sidecar.app.callable import handler_channel
from lbg_sidecar.message import Verdict
from testing.waiting import until


class AskingCalls:
    def __init__(self, session: str | None = None) -> None:
        self.told: list[StreamRuns | int] = []
        self.session = session
        self.readiness: list[bool] = []

    def take(self) -> Message | None:
        return None

    def end(self, message: Message, verdict: Verdict) -> None: ...

    def more(self) -> bool:
        return False

    def ready(self, is_ready: bool, why: str = "") -> None:
        self.readiness.append(is_ready)

    def processed(self, streams: Iterable[StreamRuns]) -> None:
        self.told.extend(streams)

    def committed(self, sequence: int, epoch: str | None = None) -> None:
        self.told.append(sequence)


class Coroutine:
    async def processed(self) -> object:
        return [["p", 3, [[0, 4]]]]

    async def __call__(self, message: Message) -> None: ...


class Blocking:
    def processed(self) -> object:
        return [["p", 3, [[0, 4]]]]

    def __call__(self, message: Message) -> None: ...


class Wrong(Blocking):
    def processed(self) -> object:
        return {"p": 3}


@pytest.mark.parametrize("handler", [Coroutine(), Blocking()], ids=["coroutine", "blocking"])
async def test_its_positions_are_told_when_the_member_starts(handler: Coroutine | Blocking) -> None:
    calls, channel = AskingCalls(), handler_channel(handler, concurrency=2)
    await channel.start(calls)
    await channel.stop(2.0)
    assert calls.told == [("p", 3, ((0, 4),))]


async def test_positions_that_cannot_be_read_end_the_start_with_one_line() -> None:
    channel = handler_channel(Wrong(), concurrency=1)
    with pytest.raises(
        AppError, match=r"failed to return its processed positions: ValueError: .* is not a list"
    ):
        await channel.start(AskingCalls())


class Committing(Blocking):
    def __init__(self) -> None:
        self.position: object = 7

    def committed(self, session: str) -> object:
        assert session == "s"
        return self.position


async def test_how_far_its_session_is_is_told_in_mode_sessions_only() -> None:
    for session, told in (("s", [("p", 3, ((0, 4),)), 7]), (None, [("p", 3, ((0, 4),))])):
        calls, channel = AskingCalls(session), handler_channel(Committing(), concurrency=1)
        await channel.start(calls)
        await channel.stop(2.0)
        assert calls.told == told


async def test_it_is_asked_again_and_is_not_ready_until_it_has_said_so() -> None:
    handler, calls = Committing(), AskingCalls("s")
    channel = handler_channel(handler, concurrency=1)
    await channel.start(calls)
    handler.position = 12
    channel.request_position()
    assert calls.readiness == [False]
    await until(lambda: calls.readiness == [False, True])
    assert calls.told[-1] == 12
    await channel.stop(2.0)


async def test_a_second_request_takes_the_place_of_one_that_is_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lbg_sidecar.app.callable.REQUEST_EVERY_S", 0.001)
    handler, calls = Committing(), AskingCalls("s")
    channel = handler_channel(handler, concurrency=1)
    await channel.start(calls)
    handler.position = None  # unreadable, so it is asked again and again
    tasks = asyncio.all_tasks()
    for _ in range(2):
        channel.request_position()
        await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks() - tasks) == 1
    await channel.stop(2.0)


@pytest.mark.parametrize("wrong", [None, -1, "7", True, 2**63])
async def test_a_number_that_is_none_ends_the_start_with_one_line(wrong: object) -> None:
    handler = Committing()
    handler.position = wrong
    channel = handler_channel(handler, concurrency=1)
    with pytest.raises(AppError, match=r"the committed position of a session is .*, not a number from 0"):
        await channel.start(AskingCalls("s"))


async def test_positions_of_an_object_that_was_opened_after_its_channel_are_reported() -> None:
    def handler(message: Message) -> None: ...

    calls, channel = AskingCalls(), handler_channel(handler, concurrency=1)
    handler.processed = Blocking().processed
    await channel.start(calls)
    await channel.stop(2.0)
    assert calls.told == [("p", 3, ((0, 4),))]
