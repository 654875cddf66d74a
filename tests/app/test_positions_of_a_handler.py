"""A handler that knows what it has processed is asked for it before it is called."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from lbg_sidecar import AppError, Message
from lbg_sidecar.app import handler_channel
from lbg_sidecar.consuming.positions import StreamRuns
from lbg_sidecar.verdict import Verdict


class AskingCalls:
    def __init__(self) -> None:
        self.told: list[StreamRuns] = []

    def take(self) -> Message | None:
        return None

    def end(self, message: Message, verdict: Verdict) -> None: ...

    def more(self) -> bool:
        return False

    def ready(self, is_ready: bool, why: str = "") -> None: ...

    def processed(self, streams: Iterable[StreamRuns]) -> None:
        self.told.extend(streams)

    def committed(self, sequence: int) -> None:
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
    with pytest.raises(AppError, match=r"cannot say what it has processed: ValueError: .* is not a list"):
        await channel.start(AskingCalls())
