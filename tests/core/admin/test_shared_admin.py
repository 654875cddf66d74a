"""One admin for a long time and many callers, on a broker that goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lbg_core.admin import ProvisioningError, Taken, Unreachable
from lbg_core.admin.actions import Action
from lbg_core.admin.amqp import AmqpAdmin
from lbg_core.admin.group_reader import survey
from lbg_core.admin.groups import create_group, delete_group, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.admin.record import Record
from lbg_core.client import Channel, ConnectionSettings, connect_any
from lbg_core.group import GroupSpec
from testing.admin.place import Place
from testing.broker.embedded import EmbeddedBroker
from testing.waiting import GUARD_S

CALL_S = 1.0
"""Longest time of a call until it finds the broker away."""


def spec_of(name: str, *, prefix: str = "") -> GroupSpec:
    return GroupSpec(
        name, prefix or name, hash_count=2, queue_count=2, queue_size_mb=1, client_username=f"user-{name}"
    )


@pytest.fixture
def broker(process: None, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
async def lasting(broker: EmbeddedBroker) -> AsyncIterator[LiveAdmin]:
    settings = replace(ConnectionSettings.parse(broker.url), connect_timeout_s=CALL_S)
    admin = LiveAdmin(settings, ManagementApi(ManagementSettings.parse(broker.management_url)))
    yield admin
    await admin.close()


async def outcome(asked: Awaitable[Any]) -> Any:
    async with asyncio.timeout(GUARD_S):
        try:
            return await asked
        except ProvisioningError as error:
            return error


async def test_after_a_restart_of_the_broker_the_next_call_connects_again(
    lasting: LiveAdmin, broker: EmbeddedBroker
) -> None:
    spec = spec_of("a")
    specs = {"a": spec}
    await create_group(lasting, spec)
    before = await survey(lasting, specs, listen_s=0.1)
    assert await lasting.lag_reader.lags(specs) == {"a": 0}
    broker.kill()
    for asked in (
        create_group(lasting, spec),
        survey(lasting, specs, listen_s=0.1),
        lasting.lag_reader.lags(specs, max_age_s=0.0),
        show_group(lasting, "a"),
    ):
        assert isinstance(await outcome(asked), Unreachable)
    await asyncio.to_thread(broker.start)
    assert await survey(lasting, specs, listen_s=0.1) == before
    assert await lasting.lag_reader.lags(specs, max_age_s=0.0) == {"a": 0}
    assert (await create_group(lasting, spec)).changes == ()
    with pytest.raises(Taken):
        await create_group(lasting, spec_of("b", prefix="a"))


async def test_calls_that_the_broker_dies_under_fail_soon_and_succeed_when_made_again(
    lasting: LiveAdmin, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a fiftieth change, when each group has about two."""
    specs = [spec_of(f"g{number}") for number in range(25)]
    perform, changes = lasting.perform, 0

    async def counted(action: Action) -> None:
        nonlocal changes
        changes += 1
        if changes == 50:
            broker.kill()
        await perform(action)

    monkeypatch.setattr(lasting, "perform", counted)
    done = await asyncio.gather(*(outcome(create_group(lasting, spec)) for spec in specs))
    assert any(isinstance(one, ProvisioningError) for one in done)
    await asyncio.to_thread(broker.start)
    await asyncio.gather(*(create_group(lasting, spec, finish=True) for spec in specs))
    found = await survey(lasting, {spec.name: spec for spec in specs}, listen_s=0.1)
    assert [getattr(one, "problems", one) for one in found.values()] == [()] * 25


async def test_a_broker_that_stands_still_costs_all_callers_one_timeout(
    lasting: LiveAdmin, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_group(lasting, spec_of("a"))
    attempts = 0

    async def counted(*arguments: Any, **settings: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return await connect_any(*arguments, **settings)

    monkeypatch.setattr("lbg_core.admin.amqp_link.connect_any", counted)
    (await lasting.amqp.link.connection()).abort()
    broker.freeze()
    try:
        found = await asyncio.gather(*(outcome(show_group(lasting, "a")) for _ in range(50)))
        assert {type(one) for one in found} == {Unreachable}
        assert attempts == 1
    finally:
        broker.thaw()
    assert (await show_group(lasting, "a")).problems == ()


async def test_a_closed_admin_lets_its_callers_go_and_takes_no_more(
    lasting: LiveAdmin, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for an answer that does not come: it may take longer than the guard of `outcome`."""
    for limit in ("management.REQUEST_TIMEOUT_S", "observe.READ_S", "lag.READ_S"):
        monkeypatch.setattr(f"lbg_core.admin.{limit}", 10 * GUARD_S)
    spec = spec_of("a")
    await create_group(lasting, spec)
    broker.freeze()
    try:
        calls = [
            asyncio.create_task(outcome(one))
            for one in (
                show_group(lasting, "a"),
                lasting.lag_reader.lags({"a": spec}),
                create_group(lasting, spec_of("b")),
            )
        ]
        await asyncio.sleep(0.1)
        await lasting.amqp.link.close(timeout_s=0.2)
        await lasting.close()
        ended = await asyncio.gather(*calls)
        assert {type(one) for one in ended} == {Unreachable}
        assert all("closed" in str(one) for one in ended), "they waited for answers that do not come"
    finally:
        broker.thaw()
    for asked in (
        show_group(lasting, "a"),
        survey(lasting, {"a": spec}),
        lasting.lag_reader.lags({"a": spec}),
    ):
        assert "closed" in str(await outcome(asked))


async def test_a_prefix_is_known_without_reading_the_records_again(
    admin: LiveAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await create_group(admin, spec_of(name), with_user=False)
    await create_group(admin, spec_of("d"), with_user=False)
    read = AmqpAdmin.record
    asked = []

    async def reading(self: AmqpAdmin, group: str) -> Record | None:
        asked.append(group)
        return await read(self, group)

    monkeypatch.setattr(AmqpAdmin, "record", reading)
    with pytest.raises(Taken, match=r"prefix 'b' is that of another group$"):
        await create_group(admin, spec_of("e", prefix="b"), with_user=False)
    assert sorted(set(asked) - {"e"}) == ["d"], "the one that was made since"


async def test_a_group_that_somebody_else_made_anew_counts_with_its_new_prefix(
    admin: LiveAdmin, place: Place
) -> None:
    await create_group(admin, spec_of("a"), with_user=False)
    await create_group(admin, spec_of("b"), with_user=False)
    elsewhere = place.admin()
    await delete_group(elsewhere, "a", with_user=False)
    await create_group(elsewhere, spec_of("a", prefix="new"), with_user=False)
    with pytest.raises(Taken, match=r"prefix 'new' is that of another group$"):
        await create_group(admin, spec_of("c", prefix="new"), with_user=False)
    await create_group(admin, spec_of("c", prefix="a"), with_user=False)
    await delete_group(elsewhere, "c", with_user=False)
    await create_group(admin, spec_of("d", prefix="a"), with_user=False)
    await elsewhere.close()


@pytest.mark.long
async def test_a_record_out_of_reach_holds_up_no_other_group_and_is_told(
    admin: LiveAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_group(admin, spec_of("down"), with_user=False)
    read = AmqpAdmin.record

    async def reading(self: AmqpAdmin, group: str) -> Record | None:
        if group == "down":
            await asyncio.Event().wait()
        return await read(self, group)

    monkeypatch.setattr(AmqpAdmin, "record", reading)
    monkeypatch.setattr("lbg_core.admin.observe.READ_S", 0.3)
    created = await create_group(admin, spec_of("a"), with_user=False)
    assert created.unchecked == ("prefixes (the records of these groups are out of reach: down)",)
    async with asyncio.timeout(GUARD_S):
        made = await asyncio.gather(
            *(create_group(admin, spec_of(f"g{n}"), with_user=False) for n in range(4))
        )
    assert all(one.unchecked for one in made)


async def test_the_lock_of_a_caller_that_does_not_wait_for_the_answer_is_free_again(
    place: Place, admin: LiveAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would stay with the connection, and be Busy for everybody else."""
    declared = asyncio.Event()
    declare = Channel.queue_declare

    async def answered_late(channel: Channel, name: str, **options: Any) -> None:
        await declare(channel, name, **options)
        declared.set()
        await asyncio.Event().wait()

    async def locked() -> None:
        async with admin.lock("orders"):
            raise AssertionError("there was no answer")

    with monkeypatch.context() as patched:
        patched.setattr(Channel, "queue_declare", answered_late)
        caller = asyncio.create_task(locked())
        await declared.wait()
        caller.cancel()
        await asyncio.wait([caller])
    assert caller.cancelled()
    async with place.administered() as other, other.lock("orders"):
        pass
