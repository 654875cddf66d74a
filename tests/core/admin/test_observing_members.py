"""Observers of members, on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from lbg_core.admin.errors import Refused
from lbg_core.admin.group_reader import Described, survey
from lbg_core.admin.groups import create_group, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, path
from lbg_core.admin.member_requests import Wanted, pause_group, peek_group
from lbg_core.admin.rows import members_of
from lbg_core.admin.status_reports import REPORT_KEYS, ReportQueue, collect_reports
from lbg_core.client import ConfirmingPublisher, connect
from lbg_core.group import MEMBERS_VERSION, TO_OBSERVERS, GroupSpec, Names, routing_key
from testing.admin.faked_member import FakedMember, member
from testing.admin.place import Place
from testing.waiting import GUARD_S, until, until_answer

LISTEN_S = 0.5


def spec_of(name: str) -> GroupSpec:
    return GroupSpec(
        name, name, hash_count=8, queue_count=2, queue_size_mb=10, client_username=f"user-{name}"
    )


@asynccontextmanager
async def members(
    place: Place, spec: GroupSpec, *queues: Collection[int]
) -> AsyncIterator[list[FakedMember]]:
    """`queues`: for each, those that it consumes."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(member(place, spec, index=index, queues=consumed))
            for index, consumed in enumerate(queues)
        ]


async def publish(place: Place, spec: GroupSpec, hash_: int, count: int) -> None:
    connection = await connect(place.settings, name="publisher")
    publisher = await ConfirmingPublisher.open(connection)
    key = routing_key(spec.hash_prefix, hash_, "")
    await asyncio.gather(*(publisher.publish(Names(spec.name).exchange, key, b"{}") for _ in range(count)))
    await connection.close()


@pytest.mark.long
async def test_members_are_shown_with_the_queues_that_they_consume(admin: LiveAdmin, place: Place) -> None:
    spec = spec_of("a")
    await create_group(admin, spec, with_user=False)
    async with members(place, spec, [0], [1], [1], []):
        shown = await show_group(admin, "a", listen_s=LISTEN_S)
        assert isinstance(shown.members, tuple)
        assert [(one.name, [queue.queue for queue in one.queues]) for one in shown.members] == [
            ("m0", [0]),
            ("m1", [1]),
            ("m2", [1]),
            ("m3", []),
        ]
        assert shown.standing_by == ["m3"]
        assert [len(row.bindings) for row in shown.reported_services] == [1, 2]
        assert shown.problems == ()
        async with asyncio.timeout(GUARD_S):  # RabbitMQ's counts of consumers are a sample behind
            while True:
                (surveyed,) = (await survey(admin, {"a": spec}, listen_s=LISTEN_S)).values()
                if getattr(surveyed, "members", ()):
                    break
        assert surveyed.members == shown.members


async def test_what_only_looks_like_a_report_costs_no_observer_its_connection(
    admin: LiveAdmin, place: Place
) -> None:
    spec = spec_of("a")
    await create_group(admin, spec, with_user=False)
    connection = await connect(place.settings, name="forger")
    forger = await ConfirmingPublisher.open(connection)
    observer = ReportQueue(admin.amqp)
    async with members(place, spec, [0]):
        since = await observer.attend("a")
        for index in (b"[]", b"1e999"):
            body = b'{"v":1,"type":"beat","sender":[' + index + b',"m","of m"]}'
            await forger.publish(Names("a").members, TO_OBSERVERS, body)
        await until(lambda: [one.name for one in members_of(observer.latest("a"))] == ["m0"])
        assert await observer.attend("a") == since
    await connection.close()


@pytest.mark.long
async def test_a_survey_of_members_that_report_by_both_keys_shows_each_change(
    admin: LiveAdmin, place: Place
) -> None:
    spec = spec_of("a")
    await create_group(admin, spec, with_user=False)
    known: dict[str, Described] = {}

    async def paused() -> list[bool]:
        (one,) = (await survey(admin, {"a": spec}, listen_s=LISTEN_S, cache=known)).values()
        return [each.paused for each in getattr(one, "members", ())]

    async with members(place, spec, [0], [1]) as (first, _):
        await until_answer(paused, lambda told: told == [False, False])
        first.paused = True
        assert await until_answer(paused, lambda told: told != [False, False]) == [True, False]


@pytest.mark.long
async def test_the_lag_has_what_each_member_holds_of_its_own_queues(place: Place, admin: LiveAdmin) -> None:
    """Without a management API, so that the reports are the only source."""
    spec = spec_of("a")
    await create_group(admin, spec, with_user=False)
    reader = LiveAdmin(place.settings)

    async def lag() -> object:
        return (await reader.lag_reader.lags({"it": spec}, max_age_s=0.0))["it"]

    async with members(place, spec, [0], [1], []) as (first, second, _):
        await publish(place, spec, 0, 3)
        await publish(place, spec, 1, 40)
        await until(lambda: (first.in_flight, second.in_flight) == (3, 30), what="deliveries")
        async with asyncio.timeout(GUARD_S):
            while await lag() != 43:
                pass
        first.ack_all()
        async with asyncio.timeout(GUARD_S):
            while await lag() != 40:
                pass
    await reader.close()


@pytest.mark.long
async def test_a_pause_waits_for_the_reports_of_members(
    admin: LiveAdmin, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_core.admin.member_requests.ANSWERS_S", LISTEN_S)
    spec = spec_of("a")
    await create_group(admin, spec, with_user=False)
    async with members(place, spec, [0, 1], []) as (first, second):
        assert await pause_group(admin, "a", within_s=0.0) == ("m0", "m1")
        first.paused = True
        assert await pause_group(admin, "a", within_s=0.0) == ("m1",)

        async def follow() -> None:
            await asyncio.sleep(LISTEN_S)
            second.paused = True

        following = asyncio.create_task(follow())
        assert await pause_group(admin, "a", within_s=GUARD_S) == ()
        await following
        assert await pause_group(admin, "a", is_paused=False, within_s=0.0) == ("m0", "m1")


@pytest.mark.long
async def test_members_that_do_not_answer_a_request_are_named_by_their_reports(
    admin: LiveAdmin, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of("a")
    await create_group(admin, spec, with_user=False)
    async with members(place, spec, [0], [1], []):
        assert (await peek_group(admin, "a", Wanted())).silent == ("m0", "m1", "m2")


@pytest.mark.long
async def test_a_member_of_a_newer_version_is_refused_in_one_line_and_hides_no_other_group(
    admin: LiveAdmin, place: Place
) -> None:
    specs = [spec_of(name) for name in ("a", "b")]
    for spec in specs:
        await create_group(admin, spec, with_user=False)
    line = (
        f"member m0 of group 'a' sends messages of version {MEMBERS_VERSION + 1}, and this LBG reads version "
        f"{MEMBERS_VERSION}: upgrade it"
    )
    async with member(place, specs[0], version=MEMBERS_VERSION + 1), member(place, specs[1]):
        found = await collect_reports(admin.amqp, ["a", "b"], seconds=LISTEN_S)
        with pytest.raises(Refused) as refused:
            await peek_group(admin, "a", Wanted())
        observer = ReportQueue(admin.amqp)

        attended: Refused | None = None
        while attended is None:
            try:
                await observer.attend("a")
                await asyncio.sleep(0.02)
            except Refused as error:
                attended = error
    assert str(found["a"]) == str(refused.value) == str(attended) == line
    assert not isinstance(found["b"], Refused)


@pytest.mark.long
async def test_a_group_that_cannot_be_subscribed_to_hides_no_other(admin: LiveAdmin, place: Place) -> None:
    specs = [spec_of(name) for name in ("a", "b")]
    for spec in specs:
        await create_group(admin, spec, with_user=False)
    async with member(place, specs[0]), member(place, specs[1]):
        groups = ["missing-1", "a", "missing-2", "missing-3", "b", "missing-4"]
        found = await collect_reports(admin.amqp, groups, seconds=LISTEN_S)
    assert [group for group in groups if isinstance(found[group], Refused)] == [
        group for group in groups if group.startswith("missing")
    ]
    for group in ("a", "b"):
        beats = found[group]
        assert not isinstance(beats, Refused)
        assert [one.name for one in members_of(beats.beats)] == ["m0"]


async def test_a_group_that_is_not_observed_any_more_has_no_binding_left(
    admin: LiveAdmin, api: ManagementApi, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_core.admin.status_reports.KEPT_S", 0.0)
    for name in ("a", "b"):
        await create_group(admin, spec_of(name), with_user=False)
    observer = ReportQueue(admin.amqp)

    async def bound(group: str) -> set[str]:
        where = path("exchanges", place.settings.vhost, Names(group).members, "bindings", "source")
        return {one["routing_key"] for one in await api.get(where)} & {*REPORT_KEYS}

    await observer.attend("a")
    assert await bound("a") == {*REPORT_KEYS}
    await observer.attend("b")
    assert await bound("a") == set()
    assert await bound("b") == {*REPORT_KEYS}
