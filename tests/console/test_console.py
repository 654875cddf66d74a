"""The console on a broker: what it shows of members and keys, its streams, its acts."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest

from lbg_core.admin.groups import create_group, delete_group, show_group
from lbg_core.admin.record import CLAIM_BY_HAND, Claim, kubernetes_owner
from lbg_core.client import connect
from lbg_core.group import TO_ALL, GroupSpec, Names
from lbg_core.group.names import default_group_name
from lbg_core.publisher import GroupPublisher
from testing.admin.faked_member import FakedMember
from testing.admin.place import Place
from testing.console import Client, address_of, client_of, live_member
from testing.waiting import until
from tests.console.conftest import PASSWORD

HOSTILE = "<script>alert(1)</script>\"'&\u202e/../\x00"


async def publish(place: Place, group: str, key: str, *bodies: bytes) -> None:
    async with GroupPublisher(address_of(place).urls[0], group=group) as publisher:
        for body in bodies:
            await publisher.publish(key=key, body=body)


@pytest.mark.long
async def test_a_member_whose_connection_ends_is_gone_for_all_who_look(
    place: Place, orders: GroupSpec, client: Client
) -> None:
    await client.sign_in()
    async with client.events("/groups/orders/events") as one, client.events("/events") as all_:
        async with live_member(place, orders, 0), live_member(place, orders, 1) as member:
            group = await one.next("group", lambda data: len(data.get("members") or ()) == 2)
            assert [row["name"] for row in group["members"]] == ["m0", "m1"]
            await member.connection.close()  # as the kernel does it for a process that is killed
            crash = await one.next("change", lambda data: data["kind"] == "crashed")
            assert crash["member"] == "m1"
            await one.next("group", lambda data: [row["name"] for row in data["members"]] == ["m0"])
            overview = await all_.next(
                "overview", lambda data: any(row["crashed_at"] for row in data["groups"])
            )
            (row,) = [row for row in overview["groups"] if row["group"] == "orders"]
            assert row["members"] == 1
        await one.next("group", lambda data: data["members"] == [])
    timeline = (await client.get("/groups/orders/timeline")).json()
    assert [event["kind"] for event in timeline["events"]].count("crashed") == 2
    assert [one["number"] for one in timeline["queues"]] == [0, 1]


@pytest.mark.long
async def test_members_are_asked_for_their_reports_as_long_as_the_console_runs(
    place: Place, orders: GroupSpec, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_console.survey.WATCH_AGAIN_S", 0.1)
    asked: list[dict[str, object]] = []
    connection = await connect(place.settings)
    try:
        channel = await connection.open_channel()
        queue = (await channel.queue_declare("", exclusive=True)).queue
        await channel.consume(
            queue, lambda some: asked.extend(json.loads(one.body) for one in some), no_ack=True
        )
        await channel.queue_bind(queue, Names(orders.name).members, TO_ALL)
        await until(lambda: len(asked) > 2, what="requests for reports")
    finally:
        await connection.close()
    assert {(one["type"], one["keys"]) for one in asked} == {("watch", False)}


@pytest.mark.long
async def test_a_stream_goes_on_after_the_last_event_that_came(
    place: Place, orders: GroupSpec, client: Client
) -> None:
    await client.sign_in()
    groups = client.console.survey.groups.values()
    await until(lambda: all(one.has_listened and one.row for one in groups), what="both groups")
    async with client.events("/events") as events:
        assert (await events.next("overview"))["full"]
        id_ = events.last_id
    async with live_member(place, orders):
        async with client.events("/events", **{"Last-Event-ID": id_}) as events:
            changed = await events.next("overview", lambda data: data["groups"])
            assert (changed["full"], [row["group"] for row in changed["groups"]]) == (False, ["orders"])
        for other in ("made-up", "x-1", f"{id_}-1", f"{id_.partition('-')[0]}-99999999", "-", "9" * 5000):
            async with client.events("/events", **{"Last-Event-ID": other}) as events:
                whole = await events.next("overview")
                assert (whole["full"], len(whole["groups"])) == (True, 2), other


@pytest.mark.long
async def test_a_group_that_is_deleted_is_gone(place: Place, client: Client) -> None:
    await client.sign_in()
    async with client.events("/groups/payments/events") as one, client.events("/events") as all_:
        await one.next("group")
        await all_.next("overview")
        async with place.administered() as admin:
            await delete_group(admin, "payments")
        await one.next("gone")
        assert (await all_.next("overview", lambda data: data["gone"]))["gone"] == ["payments"]
    assert (await client.get("/groups/payments")).status == 404


@pytest.mark.long
async def test_texts_from_outside_are_no_html(place: Place, orders: GroupSpec, client: Client) -> None:
    await publish(place, "orders", HOSTILE, HOSTILE.encode(), b"\xff<b>")
    await client.sign_in()
    await until(lambda: client.console.survey.groups["orders"].row, what="the group")
    async with client.session.get(
        client.console.url + "/groups/orders/key", params={"key": HOSTILE}, headers={"Accept": "text/html"}
    ) as answer:
        page = await answer.text()
    assert answer.status == 200
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 2, "the key and the body"
    assert page.count("<article") == 2
    for path in (f"/groups/{'%3Cscript%3E'}", "/%3Cscript%3E", "/login?next=/%22%3E%3Cscript%3E"):
        assert "<script>" not in (await client.get(path)).text
    login = await client.post("/login", {"username": '"><script>', "password": "x"})
    assert "<script>" not in login.text


@pytest.mark.long
async def test_a_key_is_shown_with_its_place_and_its_messages(
    place: Place, orders: GroupSpec, client: Client
) -> None:
    await publish(place, "orders", "acme", b"one", b"two")
    await client.sign_in()
    async with live_member(place, orders):
        await until(lambda: (row := client.console.survey.groups["orders"].row) and row["served"] == 2)
        page = await client.get("/groups/orders/key?key=acme")
    assert page.status == 200
    assert re.search(r"<dt>Member</dt><dd><bdi>m0</bdi>", page.text)
    assert (await client.get(f"/groups/orders/key?key={'x' * 4097}")).status == 400
    assert (await client.get("/groups/orders/key")).status == 200


@pytest.mark.long
async def test_the_name_of_a_kubernetes_object_leads_to_its_group(place: Place, client: Client) -> None:
    async with place.administered() as admin:
        named = Claim(kubernetes_owner("cluster", "object"), object_name="shop/payments")
        for name in (default_group_name("shop", "orders"), "team-orders", "of-all"):
            spec = GroupSpec(name, name, hash_count=8, queue_count=2, queue_size_mb=10)
            await create_group(admin, spec, claim=named if name == "of-all" else CLAIM_BY_HAND)
    assert (await client.get("/kubernetes/shop/orders")).headers["Location"].startswith("/login?next=")
    await client.sign_in()
    groups = client.console.survey.groups
    # A survey in the middle of a create sees the group before the object that it is of.
    await until(lambda: len(groups) == 5 and groups["of-all"].object_name, what="the survey")
    nowhere = f"/groups/{default_group_name('team', 'nothing')}"
    for path, leads_to in (
        ("shop/orders", f"/groups/{default_group_name('shop', 'orders')}"),
        ("team/orders", "/groups/team-orders"),
        ("shop/payments", "/groups/of-all"),
        ("team/nothing", nowhere),
    ):
        answer = await client.get(f"/kubernetes/{path}")
        assert (answer.status, answer.headers["Location"]) == (303, leads_to)
    assert (await client.get(nowhere)).status == 404
    assert "\n" not in (await client.get("/kubernetes/a/%0d%0ab%2f..")).headers["Location"]
    async with client_of(client.console) as other:
        await other.sign_in("orders", PASSWORD)
        hidden = (await other.get("/kubernetes/shop/payments")).headers["Location"]
        assert hidden == f"/groups/{default_group_name('shop', 'payments')}"
        answer = await other.get("/kubernetes/team/orders")
        assert answer.headers["Location"] == f"/groups/{default_group_name('team', 'orders')}", (
            "as if there were none"
        )


async def test_a_time_that_is_none_is_refused(client: Client) -> None:
    await client.sign_in()
    for text in ("x", "1.5", "--1", "9" * 400, "NaN"):
        assert (await client.get(f"/groups/orders/timeline?from={text}")).status == 400, text
    assert (await client.get("/groups/orders/timeline?from=5&to=1")).json()["events"] == []


@pytest.mark.long
async def test_an_act_is_confirmed_done_with_the_users_rights_and_logged(
    place: Place, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lbg.console.audit")
    await client.sign_in()
    async with client.events("/groups/orders/events") as events:
        group = await events.next("group", lambda data: data["acts_offered"])
        hrefs = {one["act"]: one["href"] for one in group["acts_offered"]}
        page = await client.get(hrefs["pause"])
        assert "lbg group pause orders" in page.text
        assert (await client.act(hrefs["pause"])).headers["Location"] == "/groups/orders"
        done = await events.next("group", lambda data: data["acts"] and data["acts"][0]["state"] == "done")
        assert (done["acts"][0]["by"], done["acts"][0]["act"]) == ("guest", "pause")
        await events.next("group", lambda data: "resume" in {one["act"] for one in data["acts_offered"]})
    async with place.administered() as admin:
        assert (await show_group(admin, "orders")).is_paused
    (line,) = [one.getMessage() for one in caplog.records if "act=" in one.getMessage()]
    assert line == (
        'user="guest" from="127.0.0.1" group="orders" act="pause" detail="" result=done text="paused"'
    )


@pytest.mark.long
async def test_an_act_that_the_broker_refuses_to_the_user_fails(client: Client) -> None:
    await client.sign_in("orders", PASSWORD)
    async with client.events("/groups/orders/events") as events:
        assert (await client.act("/groups/orders/acts/repartition", queues="4")).status == 303
        group = await events.next(
            "group", lambda data: data["acts"] and data["acts"][0]["state"] != "running"
        )
    assert group["acts"][0]["state"] == "failed"
    assert group["acts"][0]["detail"] == "4 queues"
    assert PASSWORD not in str(group)


@pytest.mark.long
async def test_dead_letters_and_parked_keys_of_nothing_are_acts_that_say_so(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lbg.console.audit")
    await client.sign_in()
    async with client.events("/groups/orders/events") as events:
        for act, key, state in (("replay", "a\nb", "done"), ("release", "acme", "failed")):
            page = await client.get(f"/groups/orders/acts/{act}?key={key.encode().hex()}")
            assert f"lbg {'dead' if act == 'replay' else 'park'} {act} orders --key" in page.text
            assert (await client.act(f"/groups/orders/acts/{act}", key=key)).status == 303
            group = await events.next(
                "group",
                lambda data, act=act: (
                    data["acts"] and data["acts"][0]["act"] == act and data["acts"][0]["text"]
                ),
            )
            assert group["acts"][0]["state"] == state
    lines = [one.getMessage() for one in caplog.records if "act=" in one.getMessage()]
    assert len(lines) == 2
    assert not any("\n" in line for line in lines)
    assert 'detail="key a\\\\nb"' in lines[0]


@pytest.mark.long
async def test_acts_on_a_group_are_one_after_the_other_and_values_are_checked(client: Client) -> None:
    await client.sign_in()
    for queues in ("", "0", "-1", "x", "1e9", "65536", "\u0663"):
        answer = await client.act("/groups/orders/acts/repartition", queues=queues)
        assert answer.status == 400, queues
    answers = [await client.act("/groups/orders/acts/pause") for _ in range(2)]
    assert [one.status for one in answers] == [303, 409]
    assert (await client.act("/groups/orders/acts/made-up")).status == 404


@pytest.mark.long
async def test_an_act_that_was_confirmed_before_another_one_ended_is_not_done(client: Client) -> None:
    await client.sign_in()
    path = "/groups/orders/acts/pause-ingress"

    async def mark() -> str:
        found = re.search(r'name="after" value="([^"]+)"', (await client.get(path)).text)
        assert found is not None
        return found[1]

    before = await mark()
    async with client.events("/groups/orders/events") as events:
        assert (await client.act("/groups/orders/acts/pause", after=before)).status == 303
        during = await client.act(path, after=before)
        assert during.status == 409
        assert "another act on this group runs (guest: pause: running): wait for its end" in during.text
        await events.next("group", lambda data: data["acts"] and data["acts"][0]["state"] == "done")
        late = await client.act(path, after=before)
        assert late.status == 409
        assert "meanwhile guest: pause: paused. Confirm this again" in late.text
        assert (await client.act(path, after=await mark())).status == 303
        await events.next("group", lambda data: data["acts"][0]["act"] == "pause-ingress")


@pytest.mark.long
async def test_an_act_of_a_session_that_is_over_leads_back_to_its_confirmation(client: Client) -> None:
    answer = await client.act("/groups/orders/acts/release", key="a b", csrf="made-up")
    assert answer.status == 303
    leads_to = answer.headers["Location"]
    assert leads_to == "/login?next=/groups/orders/acts/release?key%3Da%2Bb&over=act"
    page = await client.get(leads_to)
    assert "Your session was over, and nothing was done." in page.text
    assert (await client.post("/groups/orders/acts/pause", {}, Accept="*/*")).status == 401
    await client.sign_in()
    confirmation = await client.get("/groups/orders/acts/release?key=a+b")
    assert "lbg park release orders --key &#39;a b&#39;" in confirmation.text


@pytest.mark.long
async def test_names_of_a_member_and_a_key_put_no_command_on_a_page(
    place: Place, orders: GroupSpec, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    bait, fields_of = "w1 `lbg group pause payments`", FakedMember.fields
    poisoned = {"poisoned": 1, "poisoned_keys": [bait], "poisoned_ids": ["p-1"]}

    def fields(member: FakedMember) -> dict[str, Any]:
        report = fields_of(member)
        return report | {"name": bait, "queues": [one | poisoned for one in report["queues"][:1]]}

    monkeypatch.setattr(FakedMember, "fields", fields)
    await client.sign_in()
    async with live_member(place, orders), client.events("/groups/orders/events") as events:
        group = await events.next("group", lambda data: data.get("problems"))
        page = (await client.get("/groups/orders")).text
    (state,) = re.findall(r'<script[^>]*id="state"[^>]*>(.*?)</script>', page)
    assert json.loads(state)["problems"] == group["problems"]
    (problem,) = group["problems"]
    assert (problem["subject"]["members"], problem["subject"]["keys"]) == ([bait], [bait])
    assert problem["remedy"]["commands"] == [["lbg", "group", "skip", "orders", "p-1"]]
    assert problem["remedy"]["text"] == "lbg group skip orders p-1 skips it"
    assert "lbg group pause payments" not in page.replace(state, "")
