"""A fault of a handler costs no worker: the next message is called, and the fault is a failed attempt."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from lbg_sidecar import ACK, Message, Verdict, retry
from lbg_sidecar.app.callable import handler_channel
from lbg_sidecar.message import Kind
from testing.app.fake_calls import message, running
from testing.waiting import GUARD_S, passes


class Fault(BaseException):
    """No Exception: whoever catches those does not see it."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


async def swallow_abort(_: Message) -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def cancel_itself(_: Message) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def fail_in_a_group(_: Message) -> None:
    async def fail() -> None:
        raise LookupError("no such order")

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        group.create_task(asyncio.Event().wait())


async def raise_no_exception(_: Message) -> None:
    raise Fault("a fault")


async def raise_what_ends_generators(_: Message) -> None:
    raise GeneratorExit


async def raise_without_text(_: Message) -> None:
    raise Unspeakable


async def answer_with_a_wrong_time(_: Message) -> Verdict:
    return retry("later", after_s="5")


async def answer_with_no_time(_: Message) -> Verdict:
    return retry("later", after_s=float("nan"))


FAULTS = (
    swallow_abort,
    cancel_itself,
    fail_in_a_group,
    raise_no_exception,
    raise_what_ends_generators,
    raise_without_text,
    answer_with_a_wrong_time,
    answer_with_no_time,
)


@pytest.mark.parametrize("second", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("first", FAULTS, ids=lambda fault: fault.__name__)
async def test_two_faults_of_a_coroutine_one_after_the_other_cost_no_worker(
    first: Callable[[Message], Awaitable[Verdict | None]],
    second: Callable[[Message], Awaitable[Verdict | None]],
) -> None:
    faults = {0: first, 1: second}

    async def handle(message: Message) -> Verdict | None:
        assert message.seq is not None
        if message.seq in faults:
            return await faults[message.seq](message)
        await asyncio.sleep(0)
        return None

    channel = handler_channel(handle, concurrency=1)
    messages = [message(number) for number in range(4)]
    async with running(channel, *messages) as calls:
        for number in (0, 1):
            await passes(lambda number=number: channel.describe()["running"] or len(calls.ended) > number)
            await asyncio.sleep(0)
            if faults[number] is swallow_abort:
                channel.abort([messages[number]])
            await calls.until(number + 1)
        verdicts = await calls.until(4)
    kinds = [verdict.kind for verdict in verdicts]
    assert kinds[2:] == [Kind.ACK, Kind.ACK]
    for number, fault in faults.items():
        if fault in (swallow_abort, cancel_itself):  # it returned, and so processed the message
            assert kinds[number] is Kind.ACK
        else:
            assert kinds[number] is Kind.RETRY


async def test_a_worker_that_somebody_cancels_between_two_calls_is_replaced_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "lbg.member")
    tasks: list[asyncio.Task[None] | None] = []

    async def handle(message: Message) -> None:
        tasks.append(asyncio.current_task())

    channel = handler_channel(handle, concurrency=1)
    async with running(channel, message(0)) as calls:
        await calls.until(1)
        (task,) = tasks
        assert task is not None
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        calls.waiting.append(message(1))
        channel.wake()
        assert await calls.until(2) == [ACK, ACK]
    (line,) = caplog.messages
    assert line == "a worker of the handler ended with CancelledError, and another one was started"


def exit_process(_: Message) -> None:
    sys.exit(3)


def raise_fault(_: Message) -> None:
    raise Fault("a fault")


def raise_unspeakable(_: Message) -> None:
    raise Unspeakable


@pytest.mark.parametrize("fault", [exit_process, raise_fault, raise_unspeakable])
async def test_a_fault_of_a_blocking_function_costs_no_thread(fault: Callable[[Message], None]) -> None:
    def handle(message: Message) -> None:
        if message.seq == 0:
            fault(message)

    async with running(handler_channel(handle, concurrency=1), message(0), message(1)) as calls:
        async with asyncio.timeout(GUARD_S):
            first, second = await calls.until(2)
    assert (first.kind, second) == (Kind.RETRY, ACK)
