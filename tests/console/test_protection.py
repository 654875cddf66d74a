"""The console is safe: sign-in, sessions, other pages, names, forms, limits, headers."""

from __future__ import annotations

import asyncio
from http.cookies import SimpleCookie

import pytest

from lbg_console.application import public_url
from lbg_console.protection import CONTENT_SECURITY_POLICY, local_path
from lbg_console.sessions import (
    ATTEMPTS_MAX,
    ATTEMPTS_S,
    CHECKS_MAX,
    SESSION_S,
    SESSIONS_MAX,
    STREAMS_MAX,
    WAITING_MAX,
    LoginGate,
    Sessions,
    places_of,
)
from lbg_core.admin.actions import DeleteUser
from lbg_core.admin.errors import Denied
from lbg_core.client import BrokerAddress
from lbg_core.group import GroupSpec
from testing.admin.place import Place
from testing.console import Client, client_of, console_of, cookie_of
from testing.waiting import until
from tests.console.conftest import PASSWORD

PAGES = (
    "/",
    "/groups/orders",
    "/groups/orders/key?key=a",
    "/groups/orders/parked",
    "/groups/orders/dead",
    "/groups/orders/acts/pause",
    "/groups/orders/acts/discard",
)
DATA = ("/events", "/groups/orders/events", "/groups/orders/timeline")


async def test_nothing_of_the_broker_is_shown_without_a_sign_in(client: Client) -> None:
    for path in (*PAGES, *DATA):
        page = await client.get(path)
        assert page.status == 303, path
        assert page.headers["Location"].startswith("/login?next=/")
        answer = await client.get(path, Accept="application/json", Cookie="lbg-console-1=made-up")
        assert answer.status == 401, path


@pytest.mark.long
async def test_a_group_that_the_user_may_not_see_is_as_one_that_is_not_there(client: Client) -> None:
    await client.sign_in("orders", PASSWORD)
    assert (await client.get("/groups/orders")).status == 200
    for path in (*PAGES[1:], *DATA[1:]):
        other = await client.get(path.replace("orders", "payments"))
        nowhere = await client.get(path.replace("orders", "nowhere"))
        assert other.status == nowhere.status == 404
        assert other.text.replace("payments", "nowhere") == nowhere.text
    assert (await client.act("/groups/payments/acts/pause")).status == 404
    async with client.events("/events") as events:
        overview = await events.next("overview", lambda data: data["groups"])
    assert [row["group"] for row in overview["groups"]] == ["orders"]


@pytest.mark.long
async def test_a_login_that_the_broker_refuses_opens_no_session(lone_client: Client) -> None:
    for username, password in (("guest", "wrong"), ("nobody", "guest"), ("", "guest"), ("guest", "")):
        answer = await lone_client.sign_in(username, password)
        assert answer.status == 401
        assert "Set-Cookie" not in answer.headers
    assert (await lone_client.get("/")).status == 303


async def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(lone_client: Client) -> None:
    answer = await lone_client.sign_in()
    cookie = SimpleCookie(cookie_of(answer))
    (morsel,) = cookie.values()
    assert morsel["httponly"]
    assert morsel["samesite"] == "Strict"
    assert morsel["path"] == "/"
    assert not morsel["domain"]
    assert "guest" not in morsel.value
    assert int(morsel["max-age"]) == SESSION_S


async def test_a_sign_in_gives_a_new_session_and_ends_the_former_one(lone_client: Client) -> None:
    first = SimpleCookie(cookie_of(await lone_client.sign_in()))
    second = SimpleCookie(cookie_of(await lone_client.sign_in()))
    (name,) = first
    assert first[name].value != second[name].value
    async with client_of(lone_client.console) as other:
        other.session.cookie_jar.update_cookies({name: first[name].value})
        assert (await other.get("/")).status == 303


@pytest.mark.long
async def test_a_link_signs_one_browser_in_once_as_the_login_of_the_console(
    place: Place, groups: tuple[GroupSpec, GroupSpec]
) -> None:
    login = {"username": "orders", "password": PASSWORD}
    async with console_of(place, groups=("orders",), signs_in=True, **login) as console:
        await until(lambda: "orders" in console.survey.groups, what="the survey")
        link = console.sign_in_url.removeprefix(console.url)
        async with client_of(console) as first, client_of(console) as second:
            for wrong in ("", "x", "%E2%82%AC"):
                assert (await first.get(f"/login?token={wrong}")).status == 401
            answer = await first.get(link)
            assert (answer.status, answer.headers["Location"]) == (303, "/groups/orders")
            assert (await first.get("/groups/orders")).status == 200
            used = await second.get(link)
            assert (used.status, "this link was used" in used.text) == (401, True)
            assert (await second.get("/groups/orders")).status == 303
    async with console_of(place) as console, client_of(console) as client:
        assert (await client.get("/login?token=")).status == 401, "there is no link"


async def test_behind_https_the_cookie_is_secure_and_the_public_name_is_served(place: Place) -> None:
    url = "https://console.example.org"
    async with console_of(place, url=url) as console, client_of(console) as client:
        fields = {"username": "guest", "password": "guest"}
        answer = await client.post("/login", fields, Host="console.example.org", Origin=url)
        assert answer.status == 303
        assert cookie_of(answer).startswith("__Host-")
        assert "Secure" in cookie_of(answer)
        assert "max-age" in answer.headers["Strict-Transport-Security"]
        assert (await client.get("/login", Host="other.example.org")).status == 421
        assert f'<a href="{url}/">' in (await client.get("/login")).text, (
            "where the browser keeps it in any case"
        )
        assert url not in (await client.get("/login", Host="Console.example.org")).text


async def test_a_name_that_was_made_to_resolve_here_is_not_served(lone_client: Client) -> None:
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", ""]:
        answer = await lone_client.get("/login", Host=host)
        assert answer.status in (400, 421), host
        assert 'name="password"' not in answer.text


async def test_addresses_and_localhost_are_served(lone_client: Client) -> None:
    for host in ["localhost:8780", "127.0.0.1", "[::1]:8780", "10.1.2.3:8780", "a.localhost"]:
        assert (await lone_client.get("/login", Host=host)).status == 200, host


async def test_forms_of_pages_of_other_origins_are_refused(client: Client) -> None:
    origins = (
        "https://evil.example",
        "null",
        "http://127.0.0.1:1",
        "file://",
        "http://[",
        "HTTP://127.0.0.1",
    )
    for origin in origins:
        login = await client.post("/login", {"username": "guest", "password": "guest"}, Origin=origin)
        assert login.status == 403, origin
    await client.sign_in()
    for origin in origins:
        for path in ("/groups/orders/acts/pause", "/groups/orders/acts/discard", "/logout"):
            answer = await client.post(path, {"csrf": client.csrf}, Origin=origin)
            assert answer.status == 403, (origin, path)
    assert (await client.get("/")).status == 200


async def test_a_form_without_an_origin_is_refused_unless_the_browser_says_it_is_of_here(
    lone_client: Client,
) -> None:
    fields = {"username": "guest", "password": "guest"}
    assert (await lone_client.post("/login", fields, Origin="")).status == 403
    answer = await lone_client.post("/login", fields, Origin="", **{"Sec-Fetch-Site": "cross-site"})
    assert answer.status == 403
    answer = await lone_client.post("/login", fields, Origin="", **{"Sec-Fetch-Site": "same-origin"})
    assert answer.status == 303


async def test_a_form_needs_the_token_of_its_session(client: Client) -> None:
    await client.sign_in()
    async with client_of(client.console) as other:
        await other.sign_in()
        for token in ("", "made-up", "ü", other.csrf):
            for path in ("/groups/orders/acts/pause", "/groups/orders/acts/discard", "/logout"):
                assert (await client.post(path, {"csrf": token})).status == 403
        assert (await client.post("/logout", {}, **{"X-CSRF-Token": client.csrf})).status == 303
        assert (await other.get("/")).status == 200


@pytest.mark.long
async def test_signing_out_ends_the_session_and_its_streams(lone_client: Client) -> None:
    await lone_client.sign_in()
    async with lone_client.events("/events") as events:
        await events.next("overview")
        assert (await lone_client.act("/logout")).status == 303
        await events.next("signed-out")
    assert (await lone_client.get("/")).status == 303
    assert (await lone_client.get("/events", Accept="text/event-stream")).status == 401


@pytest.mark.long
async def test_a_stream_ends_with_its_session_also_when_nothing_changes(
    lone_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_console.sessions.SESSION_S", 0.5)
    monkeypatch.setattr("lbg_console.event_streams.TICK_S", 0.1)
    await lone_client.post("/login", {"username": "guest", "password": "guest"})
    async with lone_client.events("/events") as events:
        await events.next("signed-out")
    assert (await lone_client.get("/")).status == 303


@pytest.mark.long
async def test_a_user_whom_the_broker_does_not_let_in_any_more_is_signed_out(
    place: Place, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_console.sessions.RECHECK_S", 0.0)
    await client.sign_in("orders", PASSWORD)
    async with client.events("/events") as events:
        await events.next("overview")
        async with place.administered() as admin:
            await admin.perform(DeleteUser("orders"))
        await events.next("signed-out")
    assert (await client.get("/")).status == 303


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("/groups/orders?a=b", "/groups/orders?a=b"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/\t/evil.example", "/"),
        ("/a\r\nSet-Cookie: a=b", "/"),
        ("", "/"),
    ],
)
async def test_a_sign_in_leads_to_no_other_host(path: str, leads_to: str) -> None:
    assert local_path(path) == leads_to


async def test_a_flood_of_logins_is_cut_off_and_open_sessions_go_on(
    lone_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = 0, 0

    async def check(address: BrokerAddress, username: str, password: str) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        raise Denied("the broker refuses the login")

    await lone_client.sign_in()
    async with client_of(lone_client.console) as other:
        monkeypatch.setattr("lbg_console.views.check_login", check)
        flood = 3 * (CHECKS_MAX + WAITING_MAX)
        answers = await asyncio.gather(*(other.sign_in("guest", "wrong") for _ in range(flood)))
        statuses = [one.status for one in answers]
        assert set(statuses) == {401, 429}
        assert ATTEMPTS_MAX <= statuses.count(401) <= ATTEMPTS_MAX + CHECKS_MAX + WAITING_MAX
        assert most == CHECKS_MAX
        monkeypatch.undo()
        refused = await other.sign_in("guest", "guest")
        assert refused.status == 429
        assert int(refused.headers["Retry-After"]) > 0
    assert (await lone_client.get("/")).status == 200


def test_failed_logins_count_for_an_address_and_for_a_user_name_for_a_minute() -> None:
    gate = LoginGate()
    for second in range(ATTEMPTS_MAX):
        assert gate.wait_s("10.0.0.1", "guest", second) == 0
        gate.failed("10.0.0.1", "guest", second)
    now_s = float(ATTEMPTS_MAX)
    assert gate.wait_s("10.0.0.1", "other", now_s) == ATTEMPTS_S - now_s
    assert gate.wait_s("10.0.0.2", "guest", now_s) > 0
    assert gate.wait_s("10.0.0.2", "other", now_s) == 0
    assert gate.wait_s("10.0.0.1", "guest", ATTEMPTS_S) == 0
    for number in range(5_000):  # a network of IPv6 is one address
        gate.failed(f"2001:db8::{number:x}", f"user-{number}", now_s)
    assert gate.wait_s("2001:db8::ffff:1", "new", now_s) > 0


def test_sessions_end_and_are_bounded() -> None:
    sessions = Sessions()
    first = sessions.open("a", "secret", sees_all=False, now_s=0.0)
    assert sessions.find(first.id, SESSION_S - 1) is first
    assert sessions.find(first.id, SESSION_S) is None
    assert first.is_over
    assert "secret" not in repr(first)
    opened = [sessions.open("a", "b", sees_all=False, now_s=SESSION_S) for _ in range(SESSIONS_MAX + 1)]
    assert opened[0].is_over
    assert sessions.find(opened[-1].id, SESSION_S) is opened[-1]
    assert len({one.id for one in opened} | {one.csrf for one in opened}) == 2 * len(opened)


async def test_a_session_has_a_bounded_number_of_streams(lone_client: Client) -> None:
    await lone_client.sign_in()
    opened = [await lone_client.session.get(lone_client.console.url + "/events") for _ in range(STREAMS_MAX)]
    assert {one.status for one in opened} == {200}
    assert (await lone_client.get("/events")).status == 429
    for one in opened:
        one.close()


def test_whoever_signs_in_needs_a_password_where_the_console_has_a_certificate() -> None:
    address = BrokerAddress(("amqps://console@broker.example/?auth_mechanism=EXTERNAL",))
    (place,) = places_of(address, "mallory", "guess")
    assert (place.mechanism, place.username, place.password) == ("PLAIN", "mallory", "guess")
    assert place.host == "broker.example"


async def test_every_answer_has_the_headers_that_keep_browsers_strict(lone_client: Client) -> None:
    await lone_client.sign_in()
    for path in ("/", "/login", "/nowhere", "/healthz", "/static/console.css", "/groups/nowhere"):
        headers = (await lone_client.get(path)).headers
        assert headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY, path
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        if not path.startswith("/static"):
            assert headers["Cache-Control"] == "no-store"
    async with lone_client.events("/events") as events:
        assert events.answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY


async def test_static_files_are_those_of_the_package_alone(lone_client: Client) -> None:
    for path in ("../../views.py", "..%2f..%2fviews.py", "%2e%2e/%2e%2e/views.py", "/etc/passwd", ""):
        assert (await lone_client.get(f"/static/{path}")).status == 404
    page = await lone_client.get("/login")
    (asset, *_) = [
        part.split('"')[0] for part in page.text.split('href="')[1:] if part.startswith("/static/")
    ]
    answer = await lone_client.get(asset)
    assert "immutable" in answer.headers["Cache-Control"]
    again = await lone_client.get(asset.partition("?")[0], **{"If-None-Match": answer.headers["ETag"]})
    assert (again.status, again.headers["Cache-Control"]) == (304, "no-cache")


@pytest.mark.long
async def test_a_read_only_console_serves_no_act(place: Place, groups: tuple[GroupSpec, GroupSpec]) -> None:
    async with console_of(place, is_read_only=True) as console, client_of(console) as client:
        await until(lambda: "orders" in console.survey.groups, what="the survey")
        await client.sign_in()
        async with client.events("/groups/orders/events") as events:
            group = await events.next("group")
        assert group["acts_offered"] == []
        assert (await client.get("/groups/orders/acts/pause")).status == 404
        assert (await client.act("/groups/orders/acts/pause")).status == 404


@pytest.mark.parametrize(
    "text", ["console.example.org", "ftp://a", "http://", "http://a/path", "http://u@a", "http://a?b"]
)
def test_a_public_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be http"):
        public_url(text)


def test_a_public_address_has_no_slash_at_its_end() -> None:
    assert public_url("https://Console.example.org:8443/") == "https://console.example.org:8443"
