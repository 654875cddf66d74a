"""A member whose broker is away: it waits, it comes back, and it can be stopped meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest

from lbg_core.client import AuthenticationError
from lbg_sidecar import Member, MemberSettings, Message, SettingsError
from lbg_sidecar.app.channel import AppChannel, Calls
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker, free_port
from testing.member.group_load import Judge, group_spec, load_on
from testing.member.place import Place
from testing.waiting import GUARD_S, until


class Channel:
    """The methods of a channel, without its base class."""

    async def start(self, calls: Calls) -> None: ...

    def wake(self) -> None: ...

    def abort(self, messages: Collection[Message]) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


def test_an_application_that_is_neither_a_function_nor_a_channel_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"Channel object at .* is neither a function nor an AppChannel"):
        Member(MemberSettings(group="g"), Channel())


def test_a_channel_has_its_four_methods_and_defaults_for_the_rest() -> None:
    with pytest.raises(TypeError, match="abstract methods abort, start, stop, wake"):
        AppChannel()

    class Inherited(Channel, AppChannel):
        pass

    member = Member(MemberSettings(group="g"), Inherited())
    member.app.withdraw([], reassigned=True)
    assert (member.app.describe(), member.app.request_position()) == ({}, False)


@pytest.mark.long
async def test_a_member_that_waits_for_its_first_connection_can_be_stopped() -> None:
    settings = MemberSettings(broker=f"amqp://guest:guest@127.0.0.1:{free_port()}/", group="g")
    member = Member(settings, Judge().handler("a"))
    asyncio.get_running_loop().call_later(0.2, member.stop)
    async with asyncio.timeout(GUARD_S), member:
        await member.run()
    assert member.index is None


@pytest.mark.process
async def test_a_member_goes_on_after_its_broker_was_killed_and_leaves_while_it_is_away(
    tmp_path: Path,
) -> None:
    judge = Judge()
    with EmbeddedBroker(tmp_path / "data") as broker:
        place = Place("embedded", broker.url, group_spec("g"))
        await declare_group(broker.url, place.spec)
        async with (
            # A grace that nothing here may use up: there is nobody to hand anything over to.
            Member(place.settings("a", shutdown_grace_s=10 * GUARD_S), judge.handler("a")) as member,
            load_on(broker.url, "g") as load,
        ):
            await load.publish(100)
            await load.all_seen(judge)
            broker.kill()
            await until(lambda: member.index is None)
            broker.start()
            await load.publish(100)
            await load.all_seen(judge)
            assert member.index == 0
            broker.kill()
            await until(lambda: member.index is None)
            async with asyncio.timeout(GUARD_S):
                member.stop()
                await member.run()
    assert not judge.inversions


@pytest.mark.process
async def test_a_refused_login_is_one_clear_error_that_shows_no_password(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        url = broker.url.replace("guest:guest", "guest:sesame")
        settings = MemberSettings(broker=url, group="g")
        with pytest.raises(AuthenticationError) as caught:
            await Member(settings, Judge().handler("a")).__aenter__()
    assert "sesame" not in str(caught.value)
    assert "sesame" not in repr(settings)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", 0),
        ("prefetch", 0),
        ("prefetch", 70_000),
        ("call_timeout_s", 0),
        ("max_attempts", 0),
        ("order", "none"),
        ("index", -1),
        ("rebalance_delay_s", -1),
        ("broker", ()),
    ],
)
def test_a_bad_setting_is_named(field: str, value: object) -> None:
    with pytest.raises(SettingsError, match=field):
        MemberSettings(group="g", **{field: value})
