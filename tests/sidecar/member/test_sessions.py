"""Members in mode Sessions on the embedded broker: each message in one session, in order, until its end."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lbg_sidecar import Member, Message, SettingsError, Verdict, drop
from lbg_sidecar.app.health import HealthRules
from lbg_sidecar.app.http_push import PushChannel
from lbg_sidecar.app.websocket import StreamChannel, StreamSettings
from lbg_sidecar.commit_log import PositionFile
from lbg_sidecar.errors import SessionRefused
from lbg_sidecar.stream_client import consume
from testing.broker.embedded import EmbeddedBroker
from testing.member.group_load import Judge, Load, load_on
from testing.member.mode_place import place_in
from testing.member.place import Place
from testing.waiting import GUARD_S, until


@pytest.fixture
async def place(embedded: EmbeddedBroker, unique: str) -> Place:
    return await place_in("Sessions", embedded, unique)


@pytest.fixture
async def load(place: Place) -> AsyncIterator[Load]:
    async with load_on(place.url, place.spec.name) as load:
        yield load


async def lived(member: Member) -> None:
    """To its end."""
    async with asyncio.timeout(GUARD_S), member:
        await member.run()


@dataclass
class Table:
    """An application that commits its position with its rows. `rows` are (session, sequence, body)."""

    rows: list[tuple[str | None, int | None, bytes]] = field(default_factory=list)
    position: int | None = 0

    async def __call__(self, message: Message) -> None:
        self.rows.append((message.session, message.sequence, message.data))
        self.position = message.sequence

    async def committed(self, session: str) -> int | None:
        return self.position


def by_session(*tables: Table) -> dict[str | None, list[int | None]]:
    found = defaultdict(list)
    for table in tables:
        for session, sequence, _ in table.rows:
            found[session].append(sequence)
    return found


async def test_each_message_is_in_one_session_numbered_without_gaps(place: Place, load: Load) -> None:
    tables = [Table() for _ in range(3)]
    async with (
        Member(place.settings("a"), tables[0]),
        Member(place.settings("b"), tables[1]),
        Member(place.settings("c"), tables[2]),
    ):
        await load.publish(300)
        await until(lambda: sum(len(table.rows) for table in tables) == 300)
        await asyncio.sleep(0.1)
    assert Counter(body for table in tables for _, _, body in table.rows) == Counter(
        b"%d" % number for number in range(300)
    )
    found = by_session(*tables)
    assert found.keys() == {"a", "b", "c"}
    for sequences in found.values():
        assert sequences == list(range(1, len(sequences) + 1))


async def test_who_comes_back_goes_on_where_its_application_is(place: Place, load: Load) -> None:
    table = Table()
    for _ in range(3):
        async with Member(place.settings("a"), table):
            await load.publish(50)
            await until(lambda: len(table.rows) >= load.published)
    assert by_session(table) == {"a": list(range(1, 151))}


async def test_an_application_comes_back_that_dropped_its_last_messages_and_committed_no_number_of_them(
    place: Place, load: Load
) -> None:
    class Dropping(Table):
        async def __call__(self, message: Message) -> Verdict | None:
            if message.data in (b"8", b"9"):
                return drop("no such order")
            await super().__call__(message)
            return None

    table = Dropping()
    for _ in range(3):
        async with Member(place.settings("a"), table) as member:
            await load.publish(10)
            await until(lambda: member.state()["session"]["committed"] == load.published)
            await until(lambda: member.state()["queues"][0]["in_flight"] == 0)
    assert by_session(table) == {"a": [*range(1, 9), *range(11, 31)]}
    assert await place.count(place.names.dead) == 2


async def test_what_an_http_application_committed_before_its_reply_was_lost_comes_once(
    place: Place, load: Load
) -> None:
    committed: list[int] = []

    async def take(request: web.Request) -> web.Response:
        committed.append(int(request.headers["ce-lbgsequence"]))
        if committed == [1, 2, 3]:
            assert request.transport is not None
            request.transport.abort()
        return web.Response()

    async def positions(_: web.Request) -> web.Response:
        return web.json_response({"committed": committed[-1] if committed else 0})

    application = web.Application()
    application.add_routes([web.post("/app", take), web.get("/positions", positions)])
    async with TestServer(application) as server:
        rules = HealthRules(interval_s=0.05, positions_path="/positions")
        channel = PushChannel(str(server.make_url("/app")), concurrency=1, health=rules)
        async with Member(place.settings("a"), channel):
            await load.publish(5)
            await until(lambda: committed and committed[-1] == 5)
    assert committed == [1, 2, 3, 4, 5]


async def test_what_is_assigned_waits_for_its_session(place: Place, load: Load) -> None:
    stuck, other = asyncio.Event(), Table()

    async def wait(message: Message) -> None:
        await stuck.wait()

    async with Member(place.settings("a", prefetch=10, shutdown_grace_s=0.1), wait):
        await load.publish(30)
        async with Member(place.settings("b"), other):
            await until(lambda: len(other.rows) == 20)
    back = Table()
    async with Member(place.settings("a"), back):
        await until(lambda: len(back.rows) == 10)
    assert by_session(back, other) == {"a": list(range(1, 11)), "b": list(range(1, 21))}


async def test_a_closed_queue_ends_every_session_and_its_members_leave(
    place: Place, load: Load, embedded: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lbg.member")
    tables = Table(), Table()
    a, b = (Member(place.settings(name), table) for name, table in zip("ab", tables, strict=True))
    async with a, b:
        await load.publish(100)
        await load.all_seen(_seen(tables))
        embedded.perform(place.names.parent, "close")
        async with asyncio.timeout(GUARD_S):
            await a.run()
            await b.run()
        assert a.state()["session"]["ended"]
    assert sum(len(table.rows) for table in tables) == 100
    assert embedded.queue(place.names.parent)["sessions"] == []
    for name in "ab":
        assert f"End-of-Session: session '{name}' ended after" in caplog.text
    assert "no consumer" not in caplog.text


def _seen(tables: tuple[Table, ...]) -> Judge:
    """For `all_seen`: as many as there are rows."""
    judge = Judge()

    class Rows(dict[object, int]):
        def __len__(self) -> int:
            return sum(len(table.rows) for table in tables)

    judge.times = Rows()
    return judge


async def test_a_session_that_is_taken_is_waited_for(
    place: Place, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Table(), Table()
    async with Member(place.settings("a"), first) as holder:
        await load.publish(10)
        await until(lambda: len(first.rows) == 10)
        async with Member(place.settings("a"), second) as waiting:
            await until(lambda: "belongs to another live consumer" in caplog.text)
            assert waiting.state()["connected"]
            second.position = first.position
            holder.stop("SIGTERM")
            await holder.run()
            await load.publish(10)
            await until(lambda: len(second.rows) == 10)
    assert by_session(first, second) == {"a": list(range(1, 21))}
    assert caplog.text.count("belongs to another live consumer") == 1


async def test_a_position_that_the_broker_does_not_know_ends_a_member_whose_application_keeps_it(
    place: Place, load: Load
) -> None:
    table = Table()
    async with Member(place.settings("a"), table):
        await load.publish(10)
        await until(lambda: len(table.rows) == 10)
        await asyncio.sleep(0.1)
    for wrong in (3, 345):
        table.position = wrong
        member = Member(place.settings("a"), table)
        with pytest.raises(
            SessionRefused, match=f"has committed {wrong}, and the broker does not go on there"
        ):
            await lived(member)
    assert len(table.rows) == 10
    table.position = 10
    async with Member(place.settings("a"), table):
        await load.publish(1)
        await until(lambda: len(table.rows) == 11)


async def test_a_position_file_that_the_broker_does_not_know_is_given_up_with_a_warning(
    place: Place, load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[int | None] = []

    async def handle(message: Message) -> None:
        got.append(message.sequence)

    def position() -> PositionFile:
        path = tmp_path / f"{place.spec.name}-a.position"
        return PositionFile(path, group=place.spec.name, session="a")

    file = position()
    file.write(345)
    file.close()
    async with Member(place.settings("a", commits=tmp_path), handle):
        await load.publish(5)
        await until(lambda: len(got) == 5)
    assert caplog.text.count("the broker refuses the position 345 of the position file") == 1
    file = position()
    assert file.committed == 5
    file.close()


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"name": ""}, "the session's, so the member must have it again"),
        ({"name": "x" * 129}, "at most 128 characters"),
        ({"name": "a", "order": "key"}, "leave it at queue"),
    ],
)
async def test_settings_that_do_not_go_with_sessions_are_refused(
    place: Place, told: dict[str, str], why: str
) -> None:
    with pytest.raises(SettingsError, match=why) as refused:
        async with Member(place.settings(**told), Table()):
            pass
    assert "\n" not in str(refused.value)


async def test_a_lost_connection_goes_on_after_what_the_application_says_then(
    place: Place, load: Load
) -> None:
    table = Table()
    async with Member(place.settings("a"), table) as member:
        await load.publish(100)
        await until(lambda: len(table.rows) > 20)
        member.drop_connection()
        await load.publish(100)
        await until(lambda: len(table.rows) >= 200)
    assert by_session(table) == {"a": list(range(1, 201))}


class Stubborn(Table):
    """A call that is told to stop commits all the same, a little later."""

    async def __call__(self, message: Message) -> None:
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            await super().__call__(message)
            raise
        await super().__call__(message)


async def test_a_call_that_commits_while_it_is_aborted_is_not_made_again(place: Place, load: Load) -> None:
    table = Stubborn()
    async with Member(place.settings("a"), table) as member:
        await load.publish(30)
        for point in (5, 15):
            await until(lambda point=point: len(table.rows) >= point)
            member.drop_connection()
            await until(lambda: member.index is None)
            await until(lambda: member.index == 0)
        await until(lambda: len(table.rows) >= 30)
    assert by_session(table) == {"a": list(range(1, 31))}


async def test_over_the_stream_it_says_so_when_it_connects_and_again_after_a_lost_connection(
    place: Place, load: Load
) -> None:
    rows: list[int] = []

    async def handle(message: dict[str, object]) -> None:
        assert message["session"] == "a"
        rows.append(int(str(message["sequence"])))

    async def application(url: str) -> None:
        while True:
            with suppress(aiohttp.ClientError):
                await consume(url, handle, credit=4, committed=rows[-1] if rows else 0)
            await asyncio.sleep(0.02)

    channel = StreamChannel(StreamSettings(concurrency=4))
    app = web.Application()
    app.add_routes(channel.routes)
    async with TestServer(app) as server:
        running = asyncio.create_task(application(str(server.make_url("/v1/stream"))))
        async with Member(place.settings("a"), channel) as member:
            await load.publish(100)
            await until(lambda: len(rows) > 20)
            assert member.state()["session"]["kept_by"] == "application"
            member.drop_connection()
            await load.publish(100)
            await until(lambda: len(rows) >= 200)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert rows == list(range(1, 201))
