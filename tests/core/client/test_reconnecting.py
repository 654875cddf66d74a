"""Coming back: backoff with jitter, several addresses, and when to give up."""

import asyncio
from random import Random

import pytest

from lbg_core.amqp.methods import ConnectionClose, ConnectionStartOk
from lbg_core.client import (
    AuthenticationError,
    Backoff,
    ConnectionSettings,
    SettingsError,
    reconnect_loop,
)
from lbg_core.client.errors import NoListener
from testing.amqp.fake_broker import FakeBroker

AT_ONCE = Backoff(first_s=0, max_s=0)


def test_delays_double_up_to_the_longest():
    backoff = Backoff(first_s=0.1, max_s=5, jitter=0)
    assert [backoff.delay_s(n) for n in range(1, 8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5]
    assert backoff.delay_s(10**6) == 5


def test_jitter_shortens_each_delay_by_up_to_its_part():
    backoff, random = Backoff(first_s=1, max_s=1, jitter=0.5), Random(7)
    delays = [backoff.delay_s(1, random.random) for _ in range(1000)]
    assert 0.5 <= min(delays) < 0.52
    assert 0.98 < max(delays) <= 1


async def test_a_live_connection_each_time_round(fake):
    rounds = 0
    async for connection in reconnect_loop(fake.url, backoff=AT_ONCE):
        assert connection.is_open
        session = await fake.accepted.get()
        rounds += 1
        if rounds == 3:
            break
        session.transport.abort()
        await connection.closed
    assert len(fake.sessions) == 3
    assert connection.is_open
    await connection.close()


async def test_a_connection_still_alive_is_closed_before_the_next(fake):
    connections = reconnect_loop(fake.url, backoff=AT_ONCE)
    first, second = await anext(connections), await anext(connections)
    assert first.closed.done()
    assert fake.sessions[0].lost.done()
    await second.close()


async def test_addresses_are_tried_in_turn():
    async with FakeBroker() as first, FakeBroker() as second:
        tried = []
        async for connection in reconnect_loop([first.url, second.url], backoff=AT_ONCE):
            tried.append(connection.settings.port)
            if len(tried) == 4:
                break
            (first if tried[-1] == first.port else second).sessions[-1].transport.abort()
            await connection.closed
        await connection.close()
        assert tried == 2 * [first.port, second.port]


async def test_a_broker_that_is_down_is_tried_again_and_each_failure_told():
    failures = []
    async with FakeBroker() as broker:
        down = ConnectionSettings("127.0.0.1", 1)  # nobody listens on port 1
        places = [down, down, broker.url]

        def told(error, wait_s):
            failures.append((type(error), wait_s))

        connection = await anext(reconnect_loop(places, backoff=Backoff(0.001, 0.002, 0), on_failure=told))
        await connection.close()
    assert failures == [(NoListener, 0.001), (NoListener, 0.002)]


def refuse(broker, code=403):
    broker.answers[ConnectionStartOk] = lambda _: [ConnectionClose(code, "no")]


async def test_a_refused_login_gives_up_while_there_has_been_no_connection(fake):
    refuse(fake)
    with pytest.raises(AuthenticationError):
        await anext(reconnect_loop([fake.url, fake.url], backoff=AT_ONCE))
    assert len(fake.sessions) == 2


async def test_a_refused_login_is_retried_once_there_was_a_connection(fake):
    answers = dict(fake.answers)
    connections = reconnect_loop(
        fake.url, backoff=AT_ONCE, on_failure=lambda *_: fake.answers.update(answers)
    )
    connection = await anext(connections)
    refuse(fake)
    fake.sessions[0].transport.abort()
    await connection.closed
    again = await anext(connections)
    assert len(fake.sessions) == 3
    await again.close()


async def test_another_address_may_still_take_the_login():
    async with FakeBroker() as refusing, FakeBroker() as taking:
        refuse(refusing)
        connection = await anext(reconnect_loop([refusing.url, taking.url], backoff=AT_ONCE))
        assert connection.settings.port == taking.port
        await connection.close()


async def test_a_broker_that_drops_at_once_is_waited_for_longer_and_longer(fake):
    waits = []

    class Recording(Backoff):
        def delay_s(self, failures, uniform=None):
            waits.append(failures)
            return 0

    connections = reconnect_loop(fake.url, backoff=Recording())
    for _ in range(4):
        connection = await anext(connections)
        fake.sessions[-1].transport.abort()
    assert waits == [1, 2, 3]
    await connection.close()


async def test_waiting_can_be_cancelled():
    down = ConnectionSettings("127.0.0.1", 1)
    waiting = asyncio.ensure_future(anext(reconnect_loop(down, backoff=Backoff(60, 60, 0))))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_no_address_or_a_wrong_one_is_told_at_once():
    with pytest.raises(SettingsError):
        reconnect_loop([])
    with pytest.raises(SettingsError):
        reconnect_loop(["amqp://good", "http://bad"])
