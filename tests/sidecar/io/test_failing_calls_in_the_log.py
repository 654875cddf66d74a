"""Lines about an application that fails, is slow, refuses messages or cannot be reached, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from lbg_sidecar.app.callable import FailedCalls
from lbg_sidecar.core.effects import CallFailed, Failure
from lbg_sidecar.io.log_events import EffectLogger
from testing.virtual_time import in_virtual_time


@pytest.fixture(autouse=True)
def _levels(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "lbg.member"):
        yield


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def failed(kind: Failure = Failure.RETRIED, *, attempts: int = 1, reason: str = "") -> CallFailed:
    seconds = {Failure.SLOW: 15.0, Failure.TIMED_OUT: 30.0}.get(kind, 0.0)
    return CallFailed(kind, 3, "N14228", ("flights-x", 7, 12), attempts, reason, seconds)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            failed(reason="HTTP 500: KeyError: 'account'", attempts=2),
            "m: queue 3: message flights-x-7-12 of key 'N14228' failed and is retried, attempt 2: "
            "HTTP 500: KeyError: 'account'",
        ),
        (
            failed(Failure.TIMED_OUT),
            "m: queue 3: message flights-x-7-12 of key 'N14228' has no verdict within the call timeout of 30 s, "
            "attempt 1; its call is aborted, and it is retried",
        ),
        (
            failed(Failure.SLOW),
            "m: queue 3: message flights-x-7-12 of key 'N14228' has no verdict after 15 s, attempt 1; its call still "
            "runs",
        ),
        (
            failed(Failure.REFUSED, reason="no such account"),
            "m: queue 3: message flights-x-7-12 of key 'N14228' is refused and becomes a dead letter, attempt 1: "
            "no such account",
        ),
    ],
    ids=lambda one: one.kind.name if isinstance(one, CallFailed) else "",
)
def test_a_failure_names_queue_message_key_attempt_and_reason(
    call: CallFailed, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        EffectLogger("m", "g").log(call, 0)

    in_virtual_time(scene)()
    assert texts(caplog) == [line]
    fields = vars(caplog.records[0])["fields"]
    assert (fields["event"], fields["queue"], fields["key"]) == (call.kind.value, 3, "N14228")
    assert (fields["id"], fields["attempt"], fields["reason"]) == (
        "flights-x-7-12",
        call.attempts,
        call.reason,
    )


def test_failures_that_go_on_have_few_lines_with_their_count(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        calls = EffectLogger("m", "g")
        for number in range(145):
            calls.log(failed(attempts=number, reason=f"error {number}"), 0)
            await asyncio.sleep(0.25)

    in_virtual_time(scene)()
    first, second, third = texts(caplog)
    assert first.endswith("attempt 0: error 0")
    assert second.endswith("attempt 40: error 40 (40 attempts since the last such line)")
    assert third.endswith("attempt 120: error 120 (80 attempts since the last such line)")


def test_a_failure_after_five_minutes_without_one_has_its_line_and_its_first_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        calls = EffectLogger("m", "g")
        for pause_s in (5.0, 6.0, 25.0, 300.0, 10.0):
            calls.log(failed(), 0)
            await asyncio.sleep(pause_s)
        calls.log(failed(), 0)

    in_virtual_time(scene)()
    assert len(texts(caplog)) == 5, "at 0, 11, 36, 336 and 346 s"


def test_a_reason_is_bounded_and_escaped(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        EffectLogger("m", "g").log(failed(reason="one\n\x1b[31mtwo" + "x" * 5000), 0)

    in_virtual_time(scene)()
    (line,) = texts(caplog)
    assert line.isprintable()
    assert "one\\n\\x1b[31mtwo" in line
    assert len(line) < 500


def test_a_poisoned_message_is_an_error_and_many_of_them_are_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        calls = EffectLogger("m", "g")
        for number in range(400):
            identity = ("p", 7, number)
            calls.log(CallFailed(Failure.POISONED, 3, f"k{number}", identity, 10, "no such account"), 0)

    in_virtual_time(scene)()
    assert texts(caplog) == [
        "m: queue 3: message p-7-0 of key 'k0' failed 10 times and is retried; its key waits, and the whole queue "
        "waits once the window is full of that key; the last reason: no such account"
    ]
    assert caplog.records[0].levelname == "ERROR"


def test_tracebacks_of_a_handler_are_one_for_each_place_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    calls = FailedCalls()

    def handler(number: int) -> None:
        raise ValueError(f"no such account {number}")

    for number in range(400):
        with pytest.raises(ValueError, match="no such account") as raised:
            handler(number)
        assert calls.verdict(raised.value).reason == f"ValueError: no such account {number}"
    (record,) = caplog.records
    assert record.getMessage().startswith("the handler raised ValueError at ")
    assert record.exc_info is not None
    assert "in verdict" not in (record.exc_text or "")


def test_calls_that_cannot_be_stopped_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    calls = FailedCalls()
    for _ in range(100):
        calls.waited_for(4)
    assert texts(caplog) == ["4 calls of a blocking handler cannot be stopped: waiting for them"]
