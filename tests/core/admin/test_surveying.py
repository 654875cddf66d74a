"""Many groups of one broker at a time, on both engines."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lbg_core.admin import GroupNotFound, ProvisioningError, Unreachable, Unsupported
from lbg_core.admin.actions import DeleteExchange, DeleteQueue
from lbg_core.admin.describe import Description
from lbg_core.admin.group_reader import Described, survey
from lbg_core.admin.groups import create_group, delete_group, show_group
from lbg_core.admin.lag import Backlog
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, path
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.client import Channel, ConfirmingPublisher, connect
from lbg_core.group import GroupSpec, Names, routing_key
from testing.admin.faked_member import member
from testing.admin.place import Place
from testing.admin.problem_lines import problem_lines
from testing.waiting import GUARD_S, until, until_answer

LISTEN_S = 0.3


def spec_of(name: str, *, queues: int = 2) -> GroupSpec:
    return GroupSpec(
        name, name, hash_count=8, queue_count=queues, queue_size_mb=10, client_username=f"user-{name}"
    )


async def publish(place: Place, spec: GroupSpec, count: int) -> None:
    connection = await connect(place.settings, name="publisher")
    publisher = await ConfirmingPublisher.open(connection)
    key = routing_key(spec.hash_prefix, 0, "")
    await asyncio.gather(*(publisher.publish(Names(spec.name).exchange, key, b"{}") for _ in range(count)))
    await connection.close()


async def create_all(admin: LiveAdmin, *specs: GroupSpec) -> None:
    await asyncio.gather(*(create_group(admin, spec, with_user=False) for spec in specs))


async def queue_of_beats(api: ManagementApi, place: Place) -> str:
    """The queue in which an administrator hears members, which is no group's."""
    listed = await api.get(path("queues", place.settings.vhost))
    (name,) = [one["name"] for one in listed if one["name"].startswith("lbg._")]
    return str(name)


def described(found: Description | ProvisioningError) -> Description:
    assert isinstance(found, Description), found
    return found


@pytest.mark.long
async def test_many_groups_are_made_through_one_admin_at_a_time(admin: LiveAdmin) -> None:
    specs = [spec_of(f"g{number}", queues=1) for number in range(12)]
    await create_all(admin, *specs)
    found = await survey(admin, {spec.name: spec for spec in specs}, listen_s=LISTEN_S)
    assert {name for name, one in found.items() if described(one).problems == ()} == {
        spec.name for spec in specs
    }


async def test_long_lists_and_those_that_come_in_pages_show_the_same(
    admin: LiveAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few groups are chosen by name, page by page; more than a few are looked for in a list of everything."""
    specs = {name: spec_of(name) for name in ("a", "a-b", "b")}
    await create_all(admin, *specs.values())
    asked = {name: specs[name] for name in ("a", "b")}

    async def shown() -> dict[str, object]:
        found = {
            name: described(one) for name, one in (await survey(admin, asked, listen_s=LISTEN_S)).items()
        }
        return {name: ([line.name for line in one.queues], problem_lines(one)) for name, one in found.items()}

    whole = {name: ([f"lbg.{name}.q.0", f"lbg.{name}.q.1"], []) for name in asked}
    assert await shown() == whole
    monkeypatch.setattr("lbg_core.admin.management_admin.PAGE_SIZE", 3)
    assert await shown() == whole
    assert set(await admin.groups()) == specs.keys()
    monkeypatch.setattr("lbg_core.admin.management_admin.FEW", 1)
    assert await shown() == whole
    assert await admin.lag_reader.lags(asked) == {"a": 0, "b": 0}


async def test_counts_of_many_groups_are_read_once_for_whoever_asks(
    admin: LiveAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backlogs of all groups and the lags of some of them come from one list, which has other queues as well."""
    await create_all(admin, *map(spec_of, ("a", "b", "c")))
    monkeypatch.setattr("lbg_core.admin.management_admin.FEW", 1)
    management = admin.management_for("")
    counts = await management.counts(["a", "b", "c"])
    assert counts.keys() == {f"lbg.{name}.q.{number}" for name in "abc" for number in range(2)}
    assert await management.counts(["b", "c"]) is counts


async def test_an_exchange_that_is_refused_is_not_bound_to_by_further_keys(
    admin: LiveAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_all(admin, spec_of("a"))
    bound, bind = list[tuple[str, str]](), Channel.queue_bind

    async def counted(channel: Channel, queue: str, exchange: str, routing_key: str) -> None:
        bound.append((exchange, routing_key))
        await bind(channel, queue, exchange, routing_key)

    monkeypatch.setattr(Channel, "queue_bind", counted)
    queue = await admin.amqp.own_queue()
    exchanges = ["lbg.x.members", "lbg.a.members", "lbg.y.members"]
    refused = await admin.amqp.bind_own(queue, exchanges, keys=("one", "two"))
    assert refused.keys() == {"lbg.x.members", "lbg.y.members"}
    assert [one for one in bound if one[1] == "two"] == [("lbg.a.members", "two")]


@pytest.mark.long
async def test_a_survey_says_of_each_group_what_a_look_at_it_alone_says(
    admin: LiveAdmin, place: Place
) -> None:
    served, broken, idle = map(spec_of, ("served", "broken", "idle"))
    await create_all(admin, served, broken, idle)
    await admin.perform(DeleteQueue("lbg.broken.q.1"))
    await admin.perform(DeleteExchange("lbg.broken.dlx"))
    specs = {f"of {spec.name}": spec for spec in (served, broken, idle, spec_of("nobody"))}
    async with member(place, served):
        await publish(place, served, 40)
        found = await survey(admin, specs, listen_s=LISTEN_S)
        assert isinstance(found["of nobody"], GroupNotFound)
        async with asyncio.timeout(GUARD_S):  # RabbitMQ's counts and consumers are a sample behind
            while True:
                found = await survey(admin, specs, listen_s=LISTEN_S)
                alone = [
                    await show_group(admin, spec.name, listen_s=LISTEN_S) for spec in (served, broken, idle)
                ]
                if [_steady(described(found[f"of {one.group}"])) for one in alone] == list(
                    map(_steady, alone)
                ):
                    break
        shown = described(found["of served"])
        assert [one.name for one in shown.members or ()] == ["m0"]
        assert (shown.ready, shown.unacked) == (10, 30)
        assert [queue.status is None for queue in described(found["of broken"]).queues] == [False, True]
        assert any(
            "lbg.broken.dlx is missing" in line for line in problem_lines(described(found["of broken"]))
        )


def _steady(one: Description) -> Description:
    """Without what differs between two engines' doors: a tag that one of them has sampled and the other not. A survey
    reads no records, and so neither owners nor pauses."""
    return replace(
        one, owner="", is_paused=None, is_ingress_paused=None, problems=tuple(sorted(one.problems, key=str))
    )


async def test_a_survey_without_a_management_api_is_refused_and_one_of_a_broker_that_is_away_fails(
    place: Place,
) -> None:
    specs = {"a": spec_of("a")}
    admin = LiveAdmin(place.settings)
    with pytest.raises(Unsupported, match="no management API was given"):
        await survey(admin, specs, listen_s=LISTEN_S)
    await admin.close()
    away = LiveAdmin(replace(place.settings, port=1))
    for asked in (survey(away, specs, listen_s=LISTEN_S), away.lag_reader.lags(specs)):
        with pytest.raises((Unreachable, Unsupported)):
            await asked
    await away.close()


async def test_the_lag_counts_what_is_delivered_and_follows(admin: LiveAdmin, place: Place) -> None:
    spec = spec_of("served")
    await create_all(admin, spec)

    async def lag() -> object:
        return (await admin.lag_reader.lags({"it": spec}, max_age_s=0.0))["it"]

    async def becomes(wanted: int) -> None:
        await until_answer(lag, lambda messages: messages == wanted, every_s=0)

    assert await lag() == 0
    await publish(place, spec, 40)
    assert await lag() == 40
    async with member(place, spec) as faked:
        await becomes(40)  # whom nobody heard yet is listened to first
        await until(lambda: faked.in_flight >= 30)
        await becomes(40)
        faked.ack_all()
        await becomes(10)
        await publish(place, spec, 5)
        await becomes(15)


async def test_a_lag_with_a_queue_missing_is_unknown_and_that_of_others_is_known(
    admin: LiveAdmin, place: Place
) -> None:
    whole, broken = spec_of("whole"), spec_of("broken")
    await create_all(admin, whole, broken)
    await publish(place, whole, 3)
    await admin.perform(DeleteQueue("lbg.broken.q.1"))
    nobody = spec_of("nobody")
    found = await admin.lag_reader.lags({"a": whole, "b": broken, "c": nobody}, max_age_s=0.0)
    assert found == {"a": 3, "b": UNKNOWN, "c": UNKNOWN}


async def test_a_count_of_backlogs_shows_that_a_member_has_come_and_gone(
    admin: LiveAdmin, place: Place
) -> None:
    served, idle = spec_of("served"), spec_of("idle")
    await create_all(admin, served, idle)
    await publish(place, idle, 3)

    async def counted(**expected: Backlog) -> None:
        async with asyncio.timeout(GUARD_S):
            while (await admin.lag_reader.backlogs({"served": served, "idle": idle})) != expected:
                pass

    await counted(served=Backlog(0, 0), idle=Backlog(3, 0))
    async with member(place, served):
        await counted(served=Backlog(0, 2), idle=Backlog(3, 0))
    await counted(served=Backlog(0, 0), idle=Backlog(3, 0))
    await admin.perform(DeleteQueue("lbg.idle.q.1"))
    await counted(served=Backlog(0, 0), idle=Backlog(UNKNOWN, UNKNOWN))


async def test_where_a_consumer_does_not_speak_the_brokers_own_count_is_taken(
    admin: LiveAdmin, place: Place
) -> None:
    spec = spec_of("silent")
    await create_all(admin, spec)
    await publish(place, spec, 7)
    async with member(place, spec, silent=True), asyncio.timeout(GUARD_S):
        while (await admin.lag_reader.lags({"it": spec}, max_age_s=0.0)) != {"it": 7}:
            pass


@pytest.mark.long
async def test_without_a_management_api_members_are_heard_and_heard_again_when_the_ear_was_cut_off(
    place: Place, api: ManagementApi
) -> None:
    spec = spec_of("heard")
    admin = LiveAdmin(place.settings)
    await create_all(admin, spec)
    await publish(place, spec, 5)

    async def lag() -> object:
        return (await admin.lag_reader.lags({"it": spec}, max_age_s=0.0))["it"]

    assert await lag() == 5
    async with member(place, spec, silent=True):
        assert await lag() is UNKNOWN, "somebody may hold some, and nobody says how many"
    async with member(place, spec) as faked:
        for wanted in (6, 7):
            await publish(place, spec, 1)
            await until(lambda wanted=wanted: faked.in_flight >= wanted)
            await until_answer(lag, lambda messages, wanted=wanted: messages == wanted)
            await admin.amqp.delete_own(await queue_of_beats(api, place))  # as an administrator may
    await admin.close()


@pytest.mark.long
async def test_a_group_that_was_deleted_and_made_anew_is_heard_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_core.admin.status_reports.BIND_AGAIN_S", 0.0)
    spec = spec_of("anew")
    admin = LiveAdmin(place.settings)

    async def heard() -> bool:
        return (await admin.lag_reader.lags({"it": spec}, max_age_s=0.0))["it"] == 3

    for _ in range(2):
        await create_all(admin, spec)
        await publish(place, spec, 3)
        async with member(place, spec):
            await until_answer(heard)
        await delete_group(admin, "anew", force=True, with_user=False)
    await admin.close()


@pytest.mark.long
async def test_callers_share_a_reading_that_is_young_enough(
    admin: LiveAdmin, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of("shared")
    await create_all(admin, spec)
    asked = 0

    async def counted(self: object, *rest: object) -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return asked

    for way in ("_counted", "_from_reports"):
        monkeypatch.setattr(f"lbg_core.admin.lag.LagReader.{way}", counted)
    together = await asyncio.gather(*(admin.lag_reader.lags({"it": spec}, max_age_s=5) for _ in range(20)))
    assert together == [{"it": 1}] * 20
    assert await admin.lag_reader.lags({"it": spec}, max_age_s=5) == {"it": 1}
    assert await admin.lag_reader.lags({"it": spec}, max_age_s=0.0) == {"it": 2}


@pytest.mark.long
@pytest.mark.parametrize("few", [0, 20])
async def test_what_has_not_changed_is_the_same_object_in_the_next_survey(
    place: Place, admin: LiveAdmin, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr("lbg_core.admin.management_admin.FEW", few)
    spec, other = spec_of("a"), spec_of("b")
    await create_all(admin, spec, other)
    known: dict[str, Described] = {}

    async def seen() -> dict[str, Description | ProvisioningError]:
        return await survey(admin, {"a": spec, "b": other}, listen_s=LISTEN_S, cache=known)

    async with member(place, spec):
        async with asyncio.timeout(GUARD_S):
            first = await seen()
            while (
                (second := await seen())["a"] is not first["a"]
                or second["b"] is not first["b"]
                or any(queue.status.consumers is UNKNOWN for queue in described(second["b"]).queues)
                or not described(second["a"]).members
            ):
                first = second  # RabbitMQ lists a new queue before it counts its consumers
        assert len(described(second["a"]).members) == 1
        await publish(place, spec, 3)
        async with asyncio.timeout(GUARD_S):
            while described((third := await seen())["a"]).unacked != 3:
                pass
        assert described(third["b"]) == described(second["b"])
        (line,) = described(third["a"]).members
        assert sum(one.in_flight for one in line.queues) == 3
    async with asyncio.timeout(GUARD_S):
        while described((await seen())["a"]).members:
            pass
    await admin.perform(DeleteQueue("lbg.b.q.1"))
    async with asyncio.timeout(GUARD_S):
        while not any(
            "lbg.b.q.1 is missing" in line for line in problem_lines(described((await seen())["b"]))
        ):
            pass
