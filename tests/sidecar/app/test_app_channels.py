"""The application's channels: every call taken is reported once, whatever the application does."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from lbg_sidecar import ACK, CommandChannel, CommandFailed, Message, Verdict, drop, retry
from lbg_sidecar.app.callable import handler_channel
from lbg_sidecar.app.command import parse_answer
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.message import INTERRUPTED, Kind
from testing.app.fake_calls import FakeCalls, message, running
from testing.waiting import GUARD_S, until

# A function in this process


async def test_what_a_coroutine_returns_is_the_verdict_and_nothing_is_an_ack() -> None:
    answers = {0: None, 1: ACK, 2: drop("no"), 3: retry("later", after_s=2)}

    async def handle(message: Message) -> Verdict | None:
        assert message.seq is not None
        return answers[message.seq]

    async with running(handler_channel(handle, concurrency=1), *map(message, range(4))) as calls:
        assert await calls.until(4) == [ACK, ACK, drop("no"), retry("later", after_s=2)]


async def test_an_exception_is_a_retry_that_says_why() -> None:
    async def handle(message: Message) -> None:
        raise LookupError("no such order")

    async with running(handler_channel(handle, concurrency=1), message()) as calls:
        (verdict,) = await calls.until(1)
    assert verdict == retry("LookupError: no such order")


async def test_an_answer_that_is_no_verdict_is_a_retry_that_says_so() -> None:
    async def handle(message: Message) -> object:
        return 42

    async with running(handler_channel(handle, concurrency=1), message()) as calls:
        (verdict,) = await calls.until(1)
    assert verdict.kind is Kind.RETRY
    assert "int" in verdict.reason


async def test_calls_that_wait_run_beside_each_other_up_to_the_limit() -> None:
    inside, most = 0, 0
    gate = asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 3:
            gate.set()
        await gate.wait()
        inside -= 1

    async with running(handler_channel(handle, concurrency=3), *map(message, range(9))) as calls:
        await calls.until(9)
    assert most == 3


async def test_an_aborted_coroutine_is_cancelled_and_its_worker_goes_on() -> None:
    started = asyncio.Event()
    cancelled = []

    async def handle(message: Message) -> None:
        if message.seq == 0:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.seq)
                raise

    channel = handler_channel(handle, concurrency=1)
    stuck = message(0)
    async with running(channel, stuck, message(1)) as calls:
        await started.wait()
        channel.abort([stuck])
        assert await calls.until(2) == [INTERRUPTED, ACK]
    assert cancelled == [0]


async def test_a_timeout_inside_a_handler_is_the_handlers_own() -> None:
    async def handle(message: Message) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    async with running(handler_channel(handle, concurrency=1), message()) as calls:
        (verdict,) = await calls.until(1)
    assert verdict.reason.startswith("TimeoutError")


async def test_a_handler_that_ignores_cancelling_does_not_hold_up_the_end() -> None:
    release = asyncio.Event()

    async def handle(message: Message) -> None:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    channel = handler_channel(handle, concurrency=1)
    calls = FakeCalls(message())
    await channel.start(calls)
    channel.wake()
    await asyncio.sleep(0)
    async with asyncio.timeout(GUARD_S):
        await channel.stop(0.05)
    assert calls.waiting == calls.ended == []
    release.set()
    await asyncio.sleep(0.01)


async def test_a_blocking_function_runs_beside_the_loop() -> None:
    barrier = threading.Barrier(3, timeout=GUARD_S)

    def handle(message: Message) -> Verdict | None:
        barrier.wait()
        return drop("no") if message.seq == 1 else None

    async with running(handler_channel(handle, concurrency=3), *map(message, range(3))) as calls:
        verdicts = await calls.until(3)
    assert sorted(verdict.kind for verdict in verdicts) == ["ack", "ack", "drop"]


async def test_a_blocking_function_that_never_returns_does_not_hold_up_the_end() -> None:
    release = threading.Event()

    def handle(message: Message) -> None:
        release.wait(2 * GUARD_S)

    channel = handler_channel(handle, concurrency=1)
    calls = FakeCalls(message())
    await channel.start(calls)
    channel.wake()
    async with asyncio.timeout(GUARD_S):
        await channel.stop(0.05)
    assert calls.waiting == calls.ended == []
    release.set()


# A command

ECHO = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    print(json.dumps({"id": message["id"], "verdict": message.get("data", "ack")}), flush=True)
"""


def python(source: str) -> list[str]:
    return [sys.executable, "-u", "-c", source]


def command(source: str, *, concurrency: int = 4) -> CommandChannel:
    return CommandChannel(python(source), concurrency=concurrency)


@pytest.mark.process
async def test_a_command_gets_one_line_a_message_and_answers_with_one() -> None:
    messages = [message(0, body=b"ack"), message(1, body=b"drop"), message(2, body=b"retry")]
    async with running(command(ECHO), *messages) as calls:
        verdicts = await calls.until(3)
    assert [verdict.kind for verdict in verdicts] == ["ack", "drop", "retry"]


@pytest.mark.process
async def test_a_command_is_told_everything_about_a_message(tmp_path: Path) -> None:
    file = tmp_path / "line"
    source = f"import sys\nopen({str(file)!r}, 'w').write(sys.stdin.readline())\n" + ECHO
    async with running(command(source), message(7, body=b"h\xff")):
        await until(lambda: file.exists() and file.read_text())
    fields = json.loads(file.read_text())
    assert fields | {"headers": None} == {
        "id": "p-5-7",
        "group": "g",
        "queue": 1,
        "hash": 5,
        "key": "k",
        "publisher": "p",
        "seq": 7,
        "topic": "a.b",
        "attempt": 1,
        "redelivered": False,
        "headers": None,
        "data_base64": "aP8=",
    }


@pytest.mark.process
async def test_many_messages_may_be_with_the_command_at_once_and_no_more_than_the_limit() -> None:
    source = """
import json, sys
lines = [sys.stdin.readline() for _ in range(3)]
for line in reversed(lines):
    print(json.dumps({"id": json.loads(line)["id"], "verdict": "ack"}), flush=True)
sys.stdin.read()
"""
    async with running(command(source, concurrency=3), *map(message, range(4))) as calls:
        await calls.until(3)
        assert [ended.seq for ended, _ in calls.ended[:3]] == [2, 1, 0]


@pytest.mark.process
async def test_a_command_that_dies_is_started_again_and_its_calls_count_as_failed(tmp_path: Path) -> None:
    source = f"""
import os, sys
mark = {str(tmp_path / "mark")!r}
if not os.path.exists(mark):
    open(mark, "w").close()
    sys.stdin.readline()
    sys.exit(3)
{ECHO}"""
    channel = command(source)
    async with running(channel, message(0, body=b"ack")) as calls:
        (first,) = await calls.until(1)
        assert first == retry("the command ended: exit status 3")
        calls.waiting.append(message(1, body=b"ack"))
        verdicts = await calls.until(2)
        assert verdicts[1] == ACK


@pytest.mark.process
async def test_aborting_kills_the_command_with_everything_it_started_and_a_new_one_answers(
    tmp_path: Path,
) -> None:
    beats = tmp_path / "beats"
    source = f"""
import os, subprocess, sys
if not os.path.exists({str(beats)!r}):
    subprocess.Popen([sys.executable, "-c", '''
import time
while True:
    open({str(beats)!r}, "a").write("x")
    time.sleep(0.01)
'''])
    sys.stdin.read()
{ECHO}"""
    stuck, other = message(0, body=b"ack"), message(1, body=b"ack")
    channel = command(source)
    async with running(channel, stuck, other) as calls:
        await until(beats.exists)
        channel.abort([stuck])
        assert await calls.until(2) == [INTERRUPTED, INTERRUPTED]
        await asyncio.sleep(0.05)
        size = beats.stat().st_size
        calls.waiting += [stuck]
        channel.wake()
        assert (await calls.until(3))[2] == ACK
        assert beats.stat().st_size == size, "what the command had started still runs"


@pytest.mark.process
@pytest.mark.parametrize("has_input", [False, True])
async def test_a_command_that_dies_is_started_again_although_what_it_left_behind_has_its_output(
    tmp_path: Path, has_input: bool
) -> None:
    """One that has its input, too, may answer: it has the time of a call."""
    source = f"""
import os, subprocess, sys
mark = {str(tmp_path / "mark")!r}
if not os.path.exists(mark):
    stdin = None if {has_input} else subprocess.DEVNULL
    child = subprocess.Popen(["sleep", "600"], stdin=stdin, start_new_session=True)
    open(mark, "w").write(str(child.pid))
    sys.stdin.readline()
    sys.exit(3)
{ECHO}"""
    channel, first = command(source), message(0, body=b"ack")
    async with running(channel, first) as calls:
        try:
            if has_input:
                await until(lambda: (tmp_path / "mark").exists() and (tmp_path / "mark").read_text())
                await asyncio.sleep(0.1)
                channel.abort([first])
            ended = INTERRUPTED if has_input else retry("the command ended: exit status 3")
            assert await calls.until(1) == [ended]
            calls.waiting.append(message(1, body=b"ack"))
            assert (await calls.until(2))[1] == ACK
        finally:
            os.kill(int((tmp_path / "mark").read_text()), signal.SIGKILL)


@pytest.mark.process
async def test_a_command_that_dies_with_unread_input_is_started_again_although_what_it_left_behind_has_it(
    tmp_path: Path,
) -> None:
    source = f"""
import os, subprocess, sys
mark = {str(tmp_path / "mark")!r}
if not os.path.exists(mark):
    child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, start_new_session=True)
    open(mark, "w").write(str(child.pid))
    os.close(1)
    os._exit(3)
{ECHO}"""
    channel, first = command(source), message(0, body=b"ack" + bytes(2_000_000))
    async with running(channel, first) as calls:
        try:
            assert await calls.until(1) == [retry("the command ended: exit status 3")]
            calls.waiting.append(message(1, body=b"ack"))
            channel.wake()
            assert (await calls.until(2))[1] == ACK
        finally:
            os.kill(int((tmp_path / "mark").read_text()), signal.SIGKILL)


@pytest.mark.process
async def test_of_two_messages_with_one_id_the_second_waits_for_the_first() -> None:
    """No publisher of ours gives two keys the same, so nobody else's may stop a member."""
    async with running(
        command(ECHO), message(0, key="a", body=b"ack"), message(0, key="b", body=b"ack")
    ) as calls:
        verdicts = await calls.until(2)
    assert sorted(verdict.kind for verdict in verdicts) == ["ack", "retry"]


@pytest.mark.process
async def test_a_line_that_is_no_verdict_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    source = "print('hello')\nprint('world')\n" + ECHO
    with caplog.at_level(logging.WARNING, "lbg.member"):
        async with running(command(source), message(0, body=b"ack")) as calls:
            assert await calls.until(1) == [ACK]
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "hello" in warnings[0]


@pytest.mark.process
async def test_a_verdict_for_a_message_that_does_not_wait_is_ignored() -> None:
    source = 'print(\'{"id":"who","verdict":"ack"}\')\n' + ECHO
    async with running(command(source), message(0, body=b"ack")) as calls:
        assert await calls.until(1) == [ACK]
    assert len(calls.ended) == 1


@pytest.mark.process
async def test_a_command_that_cannot_be_started_is_one_clear_error() -> None:
    with pytest.raises(CommandFailed, match="cannot run '/no/such/thing': No such file"):
        await CommandChannel(["/no/such/thing"], concurrency=1).start(FakeCalls())


@pytest.mark.process
async def test_a_command_that_ignores_everything_does_not_hold_up_the_end() -> None:
    source = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('x')\ntime.sleep(600)"
    channel = command(source)
    calls = FakeCalls(message())
    await channel.start(calls)
    channel.wake()
    async with asyncio.timeout(GUARD_S):
        await channel.stop(0.4)
    assert channel.describe()["pid"] is None


@pytest.mark.process
async def test_a_command_that_reads_nothing_is_not_buried_in_messages() -> None:
    big = b"x" * 300_000
    channel = command("import time\ntime.sleep(600)", concurrency=100)
    async with running(channel, *(message(n, body=big) for n in range(50))) as calls:
        await asyncio.sleep(0.1)
        assert len(calls.waiting) > 30
    assert calls.ended == []


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"[]",
        b'{"verdict":"ack"}',
        b'{"id":7,"verdict":"ack"}',
        b'{"id":"a"}',
        b'{"id":"a","verdict":"maybe"}',
        b'{"id":"a","verdict":"retry","after_s":"soon"}',
        b'{"id":"a","verdict":"retry","after_s":-1}',
        b'{"id":"a","verdict":"retry","after_s":true}',
    ],
)
def test_a_bad_verdict_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|id|verdict|after_s"):
        parse_answer(line)


def test_a_retry_may_say_when_and_why() -> None:
    line = b'{"id":"a","verdict":"retry","after_s":1.5,"reason":"busy"}'
    assert parse_answer(line) == ("a", retry("busy", after_s=1.5))


@pytest.mark.process
async def test_a_command_extends_a_call_before_its_verdict() -> None:
    asked: list[tuple[float, str | None]] = []

    def extend(_: InFlight, seconds: float, progress: str | None) -> float:
        asked.append((seconds, progress))
        return seconds

    source = """
import json, sys
for line in sys.stdin:
    name = json.loads(line)["id"]
    print(json.dumps({"id": name, "seconds": 60, "progress": "half"}), flush=True)
    print(json.dumps({"id": name, "verdict": "ack"}), flush=True)
"""
    called = message()
    called.extender = extend
    async with running(command(source), called) as calls:
        assert await calls.until(1) == [ACK]
    assert asked == [(60, "half")]
