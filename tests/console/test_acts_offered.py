"""Acts that a user may not do are not offered: by the user's tags, and by the permissions of a group's own user."""

from __future__ import annotations

import re
from functools import partial

import pytest

from lbg_console.acts import ACTS, OF_ADMINISTRATORS, OF_GROUPS_USER, allowed_acts
from lbg_console.application import Console
from lbg_console.sessions import Session
from lbg_core.group import GroupSpec
from testing.admin.place import Place
from testing.console import Client, client_of, console_of
from testing.waiting import until
from tests.console.conftest import PASSWORD
from tests.console.test_messages import App, acting, hrefs_of, member_of, publish

FIELDS = {"repartition": {"queues": "4"}, "skip": {"id": "p-1"}, "replay-one": {"key": "a"}}


def is_shown(console: Console) -> bool:
    group = console.survey.groups.get("orders")
    return group is not None and group.observed.row is not None


def session(username: str, tags: set[str] | None) -> Session:
    return Session("id", username, "", True, 0.0, 0.0, tags=None if tags is None else frozenset(tags))


@pytest.mark.parametrize(
    ("username", "tags", "allowed"),
    [
        ("guest", {"administrator"}, ACTS.keys()),
        ("orders", {"administrator"}, ACTS.keys()),
        ("ops", {"monitoring"}, ACTS.keys() - OF_ADMINISTRATORS),
        ("ops", None, ACTS.keys()),
        ("orders", {"monitoring"}, OF_GROUPS_USER),
        ("orders", set(), OF_GROUPS_USER),
        ("orders", None, OF_GROUPS_USER),
    ],
)
def test_acts_are_allowed_by_tags_and_by_the_group(
    orders: GroupSpec, username: str, tags: set[str] | None, allowed: set[str]
) -> None:
    assert allowed_acts(session(username, tags), orders) == allowed


@pytest.mark.long
async def test_a_groups_user_is_offered_what_the_broker_allows_it(
    place: Place, groups: tuple[GroupSpec, GroupSpec], client: Client
) -> None:
    app = App()
    await client.sign_in("orders", PASSWORD)
    async with member_of(place, "orders", app, "block") as member, acting(client, "orders") as run:
        await publish(place, "orders", "a", b"drop a0", b"bad a1", b"a2")
        await until(lambda: member.state()["counts"]["poisoned"] == 1)
        for path in ("", "/key?key=a", "/dead", "/parked"):
            page = await client.get(f"/groups/orders{path}")
            assert page.status == 200
            offered = set(re.findall(r'(?:href|action)="[^"]+/acts/([\w-]+)', page.text))
            assert offered == ({"skip"} if "key" in path else set()), path
        for name, act in ACTS.items():
            if name in OF_GROUPS_USER:
                continue
            fields = FIELDS.get(name, {})
            assert fields.keys() >= {act.needs} - {""}
            query = "&".join("=".join(one) for one in fields.items())
            assert (await run(f"/groups/orders/acts/{name}?{query}")).startswith("failed: "), name
        (skip,) = hrefs_of(await client.get("/groups/orders/key?key=a"), "skip")
        assert (await run(skip)).startswith("done: ")


@pytest.mark.long
async def test_an_administrator_is_offered_acts_unless_the_console_is_read_only(
    place: Place, groups: tuple[GroupSpec, GroupSpec]
) -> None:
    async with member_of(place, "orders", App(), "block"):
        await publish(place, "orders", "a", b"drop a0")
        for is_read_only in (False, True):
            async with (
                console_of(place, is_read_only=is_read_only) as console,
                client_of(console) as client,
            ):
                await until(partial(is_shown, console), what="the group")
                await client.sign_in()
                for path in ("", "/key?key=a", "/dead"):
                    page = await client.get(f"/groups/orders{path}")
                    assert ("/acts/" in page.text) is not is_read_only, path
