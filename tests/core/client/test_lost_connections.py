"""Lost connections and channels: every pending call fails once, with the reason."""

import asyncio
import gc

import pytest

from lbg_core.amqp import NO_PROPERTIES
from lbg_core.amqp.frames import encode_frame
from lbg_core.amqp.methods import (
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUnblocked,
    QueueDeclare,
    QueueDeclareOk,
)
from lbg_core.client import (
    ChannelClosed,
    ClientError,
    ConfirmingPublisher,
    ConnectionClosed,
    ConnectionLost,
    NotFound,
    ResourceLocked,
    connect,
)
from testing.waiting import passes


def drop_socket(connection, session):
    session.transport.abort()


def close_with_320(connection, session):
    session.send(0, ConnectionClose(320, "CONNECTION_FORCED - restarting"))


def abort_ours(connection, session):
    connection.abort()


def send_nonsense(connection, session):
    session.transport.write(b"this is no frame at all")


ENDS = {
    "socket dropped": (drop_socket, ConnectionLost, "lost"),
    "closed by the broker": (close_with_320, ConnectionClosed, "320 CONNECTION_FORCED"),
    "aborted by us": (abort_ours, ConnectionLost, "aborted"),
    "broken protocol": (send_nonsense, ConnectionClosed, "501"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_everything_that_waits_fails_with_the_reason(pair, name, caplog):
    end, error_type, text = ENDS[name]
    connection, session = pair
    channel = await connection.open_channel()
    publisher = await ConfirmingPublisher.open(connection, max_unconfirmed_bytes=1)
    session.mute |= {QueueDeclare, BasicGet, ChannelOpen, ChannelClose}
    confirm = publisher.publish_soon("e", "k", b"body")
    lost_channel = await_all(channel)
    waiting = [
        asyncio.ensure_future(waiter)
        for waiter in (
            channel.queue_declare("q"),
            channel.basic_get("q"),
            connection.open_channel(),
            publisher.publish("e", "k", b"body"),
            publisher.drain(),
        )
    ]
    flushing = asyncio.ensure_future(publisher.flush())
    await session.seen(BasicGet)
    end(connection, session)
    outcomes = await asyncio.gather(*waiting, confirm, return_exceptions=True)
    reason = await connection.closed
    await flushing
    await lost_channel

    assert isinstance(reason, error_type)
    assert text in str(reason)
    assert [str(outcome) for outcome in outcomes] == [str(reason)] * len(outcomes)
    assert channel.closed.result() is reason
    assert not connection.is_open
    assert not channel.is_open
    for call in (lambda: channel.publish("e", "k", b""), lambda: channel.ack(1), lambda: channel.nack(1)):
        with pytest.raises(error_type):
            call()
    for wait in (
        channel.queue_declare("q"),
        connection.open_channel(),
        connection.drain(),
        publisher.drain(),
    ):
        with pytest.raises(error_type):
            await wait
    await connection.close()  # closing what is gone is no error
    await channel.close()
    del outcomes, waiting, confirm, publisher
    gc.collect()
    await asyncio.sleep(0)
    assert not caplog.records


def await_all(channel):
    return asyncio.ensure_future(asyncio.wait([channel.closed]))


async def test_our_own_close_is_no_error_but_ends_what_waits(pair):
    connection, session = pair
    channel = await connection.open_channel()
    session.mute.add(QueueDeclare)
    declaring = asyncio.ensure_future(channel.queue_declare("q"))
    await session.seen(QueueDeclare)
    await connection.close()
    assert connection.closed.result() is None
    with pytest.raises(ConnectionClosed, match="by us"):
        await declaring
    with pytest.raises(ConnectionLost):
        channel.publish("e", "k", b"")


async def test_what_was_published_before_close_is_written(pair):
    connection, session = pair
    channel = await connection.open_channel()
    for _ in range(100):
        channel.publish("e", "k", b"x" * 1000)
    await connection.close()
    assert len([event for event in session.events if hasattr(event, "body")]) == 100


async def test_a_broker_that_never_answers_close_is_left_behind(pair):
    connection, session = pair
    session.mute.add(ConnectionClose)
    await connection.close(timeout_s=0.05)
    assert connection.closed.done()
    await session.lost


async def test_both_ends_closing_at_once_end_closed(pair):
    connection, session = pair
    session.mute.add(ConnectionClose)
    closing = asyncio.ensure_future(connection.close())
    await session.seen(ConnectionClose)
    session.send(0, ConnectionCloseOk())
    await closing
    assert connection.closed.result() is None


async def test_a_channel_error_closes_the_channel_only(pair):
    connection, session = pair
    broken, healthy = await connection.open_channel(), await connection.open_channel()
    session.mute.add(QueueDeclare)
    first = asyncio.ensure_future(broken.queue_declare("a"))
    second = asyncio.ensure_future(broken.queue_declare("b"))
    await session.seen(QueueDeclare)
    await session.seen(QueueDeclare)
    session.send(broken.number, ChannelClose(404, "NOT_FOUND - no queue"))
    for waiting in (first, second):
        with pytest.raises(NotFound) as caught:
            await waiting
        assert caught.value.reply_code == 404
    await session.seen(ChannelCloseOk)
    assert isinstance(broken.closed.result(), NotFound)
    session.mute.clear()
    assert healthy.is_open
    await healthy.queue_declare("c")
    again = await connection.open_channel()
    assert again.number == broken.number


@pytest.mark.parametrize(
    ("code", "kind"),
    [(403, "AccessRefused"), (405, "ResourceLocked"), (406, "PreconditionFailed"), (311, "ChannelClosed")],
)
async def test_the_reply_code_chooses_the_error(pair, code, kind):
    connection, session = pair
    channel = await connection.open_channel()
    session.answers[QueueDeclare] = lambda _: [ChannelClose(code, "no")]
    with pytest.raises(ChannelClosed) as caught:
        await channel.queue_declare("q", exclusive=True)
    assert type(caught.value).__name__ == kind
    assert caught.value.retryable == isinstance(caught.value, ResourceLocked)


async def test_closing_a_channel_sends_close_and_nothing_before_it(pair):
    connection, session = pair
    channel = await connection.open_channel()
    await channel.consume("q", lambda _: None, prefetch_count=10)
    session.events.clear()
    await channel.close()
    assert [event.method.NAME for event in session.events] == ["channel.close"]
    assert channel.closed.result() is None
    with pytest.raises(ChannelClosed, match="by us"):
        await channel.queue_declare("q")


async def test_deliveries_after_close_are_dropped(pair):
    connection, session = pair
    channel = await connection.open_channel()
    seen = []
    tag = await channel.consume("q", seen.extend, prefetch_count=10)
    session.mute.add(ChannelClose)
    closing = asyncio.ensure_future(channel.close())
    await session.seen(ChannelClose)
    late = [
        encode_frame(
            1, channel.number, b"\x00\x3c\x00\x3c" + bytes((len(tag),)) + tag.encode() + b"\0" * 9 + b"\0\0"
        ),
        encode_frame(2, channel.number, b"\x00\x3c\x00\x00" + (4).to_bytes(8, "big") + NO_PROPERTIES),
        encode_frame(3, channel.number, b"late"),
    ]
    session.transport.write(b"".join(late))
    session.send(channel.number, ChannelCloseOk())
    await closing
    assert seen == []


async def test_deliveries_behind_a_close_in_the_same_read_are_dropped(pair):
    connection, session = pair
    channel, other = await connection.open_channel(), await connection.open_channel()
    seen = []

    def on_deliveries(deliveries):
        seen.append(len(deliveries))
        other.close_soon()

    tag = await channel.consume("q", on_deliveries)
    other_tag = await other.consume("q", lambda deliveries: seen.append("other"))
    for number, consumer in ((channel.number, tag), (other.number, other_tag), (channel.number, tag)):
        session.machine.deliver(number, consumer, 1, False, "e", "k", NO_PROPERTIES, b"x")
    session.flush()
    await other.closed
    assert seen == [1, 1]


async def test_cancelling_a_request_leaves_the_next_ones_answer_alone(pair):
    connection, session = pair
    channel = await connection.open_channel()
    session.mute.add(QueueDeclare)
    first = asyncio.ensure_future(channel.queue_declare("a"))
    second = asyncio.ensure_future(channel.queue_declare("b"))
    await session.seen(QueueDeclare)
    await session.seen(QueueDeclare)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    session.send(channel.number, QueueDeclareOk("a", 1, 0))
    session.send(channel.number, QueueDeclareOk("b", 2, 0))
    assert (await second).message_count == 2


async def test_cancelling_open_channel_closes_what_was_opened(pair):
    connection, session = pair
    session.mute |= {ChannelOpen, ChannelClose}
    opening = asyncio.ensure_future(connection.open_channel())
    await session.seen(ChannelOpen)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    session.send(1, ChannelOpenOk())
    await session.seen(ChannelClose)
    assert connection.channel_count == 1  # its number is not free before the broker has answered
    session.send(1, ChannelCloseOk())
    session.mute.clear()
    await (await connection.open_channel()).close()
    await passes(lambda: connection.channel_count == 0)


async def test_cancelling_consume_closes_the_channel(pair):
    connection, session = pair
    channel = await connection.open_channel()
    session.mute.add(BasicConsume)
    consuming = asyncio.ensure_future(channel.consume("q", lambda _: None, consumer_tag="t"))
    await session.seen(BasicConsume)
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming
    session.send(channel.number, BasicConsumeOk("t"))
    await session.seen(ChannelClose)
    await channel.closed


async def test_cancelling_close_still_closes(pair):
    connection, session = pair
    channel = await connection.open_channel()
    session.mute.add(ChannelClose)
    closing = asyncio.ensure_future(channel.close())
    await session.seen(ChannelClose)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    session.send(channel.number, ChannelCloseOk())
    assert await channel.closed is None


async def test_a_callback_that_raises_aborts_the_connection(pair, caplog):
    connection, session = pair
    channel = await connection.open_channel()

    def on_deliveries(_):
        raise RuntimeError("a bug")

    tag = await channel.consume("q", on_deliveries)
    session.machine.deliver(channel.number, tag, 1, False, "e", "k", NO_PROPERTIES, b"x")
    session.flush()
    reason = await connection.closed
    assert isinstance(reason, ConnectionLost)
    assert isinstance(reason.__cause__, RuntimeError)
    assert "a bug" in caplog.text


async def test_a_callback_before_writing_that_raises_aborts_the_connection(pair, caplog):
    connection, _ = pair
    channel = await connection.open_channel()
    channel.before_writing(lambda: 1 / 0)
    asking = asyncio.ensure_future(channel.queue_declare("q"))
    reason = await connection.closed
    assert isinstance(reason, ConnectionLost)
    assert isinstance(reason.__cause__, ZeroDivisionError)
    with pytest.raises(ConnectionLost):
        await asking
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.long
async def test_a_silent_broker_is_missed_after_two_heartbeats(fake):
    loop = asyncio.get_running_loop()
    started = loop.time()
    connection = await connect(fake.url, heartbeat_s=1)
    reason = await connection.closed
    assert isinstance(reason, ConnectionLost)
    assert "2 s" in str(reason)
    assert loop.time() - started > 1.9


async def test_a_blocked_connection_is_told_and_holds_publishers_back(pair):
    connection, session = pair
    told = []
    connection.on_blocked = told.append
    connection.on_unblocked = lambda: told.append("free")
    publisher = await ConfirmingPublisher.open(connection)
    session.send(0, ConnectionBlocked("low on memory"))
    await passes(lambda: connection.is_blocked)
    draining = asyncio.ensure_future(publisher.drain())
    await asyncio.sleep(0.01)
    assert not draining.done()
    session.send(0, ConnectionUnblocked())
    await draining
    assert told == ["low on memory", "free"]


async def test_a_broker_that_does_not_read_holds_publishers_back_in_bytes(pair):
    connection, session = pair
    publisher = await ConfirmingPublisher.open(connection, max_unconfirmed_bytes=100 * 1024 * 1024)
    session.transport.pause_reading()
    published = 0

    async def publish():
        nonlocal published
        while True:
            await publisher.drain()
            publisher.publish_soon("e", "k", b"x" * 100_000)
            published += 100_000

    publishing = asyncio.ensure_future(publish())
    before = -1
    while before != published:
        before = published
        await asyncio.sleep(0.05)
    assert 1_000_000 < published < 50_000_000
    assert connection.unwritten_bytes < 3_000_000
    session.transport.resume_reading()
    await passes(lambda: published > before)
    connection.abort()
    with pytest.raises(ClientError):
        await publishing


async def test_closing_what_is_lost_already_does_not_swallow_a_cancellation(pair):
    connection, session = pair
    drop_socket(connection, session)
    await connection.closed
    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)
    was_waiting = closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled() == was_waiting
