"""The pages of the console in a browser: a broker with two groups, `lbg console` in front of it, and one Chromium."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from lbgroup import Group, Publisher, connect_admin
from testing.broker.embedded import PASSWORD, USER, EmbeddedBroker
from testing.command_line import clean_environment
from testing.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page, Route

HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>`\'\u202e'
"""A key, a body and a name that are code, or turn the direction, where they are not text."""

VIOLATIONS = (
    "addEventListener('securitypolicyviolation', e => console.error(e.violatedDirective, e.blockedURI))"
)
SERVERS = "#map .server"
SHOWN = HOSTILE.replace("\u202e", "\\u202e")
"""The hostile text as a person reads it."""

pytestmark = pytest.mark.browser


def expect(place: Any) -> Any:
    """Playwright's assertions about a place of a page. Only `make test-browser` installs it."""
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=30_000)
    return expected(place)


@contextmanager
def lbg(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`lbg ARGUMENTS` as a process, for the length of the block."""
    command = [sys.executable, "-m", "lbgroup", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=clean_environment()
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@dataclass(frozen=True)
class Site:
    """Two consoles of one broker, by their addresses. `members`: processes of group `orders`, by their names."""

    url: str
    read_only_url: str
    members: dict[str, subprocess.Popen[str]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def site(embedded: EmbeddedBroker) -> Iterator[Site]:
    asyncio.run(_fill(embedded))
    broker = ("--broker", embedded.url)
    with ExitStack() as processes:

        def started(*arguments: str) -> subprocess.Popen[str]:
            return processes.enter_context(lbg(*arguments, *broker))

        member = ("consume", "--group", "orders", "--rebalance-delay", "0")
        members = {name: started(*member, "--name", name) for name in ("a", HOSTILE)}
        console = ("console", "--listen", "127.0.0.1:0", "--management", embedded.management_url)
        consoles = [started(*console, *more) for more in ((), ("--read-only",))]
        yield Site(*map(_address, consoles), members)


def _address(console: subprocess.Popen[str]) -> str:
    assert console.stderr is not None
    line = next(line for line in console.stderr if line.startswith("the console is at "))
    return line.split()[4].rstrip("/")


async def _fill(broker: EmbeddedBroker) -> None:
    async with connect_admin(broker.url, broker.management_url) as admin:
        for name in ("orders", "unserved"):
            await admin.create_group(Group(name, hash_count=8, queue_count=4, queue_size_mb=8))
    async with Publisher(broker.url, group="unserved") as publisher:
        await publisher.publish(key=HOSTILE, body=HOSTILE.encode())


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[Browser]:
    """Debian's Chromium. It comes after `site`: while it is there, this thread has an event loop that runs."""
    executable = shutil.which("chromium")
    assert executable is not None, "chromium is missing: `make test-browser` installs it"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable)
        yield browser
        browser.close()


def sign_in(page: Page, url: str) -> None:
    page.goto(f"{url}/login")
    page.get_by_label("User").fill(USER)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{url}/")


class Tab:
    """A page, and what its console has of errors and of violations of the content security policy."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.add_init_script(VIOLATIONS)
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._close)

    def _close(self, dialog: Dialog) -> None:
        self.errors.append(dialog.message)
        dialog.dismiss()

    def expect_errors(self, text: str) -> None:
        """Errors so far, which the test has brought about, have this text."""
        assert [error for error in self.errors if text not in error] == []
        self.errors.clear()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, site: Site) -> Tab:
    """The tab of an administrator, with cookies of both consoles."""
    tab = Tab(browser.new_page())
    for url in (site.url, site.read_only_url):
        sign_in(tab.page, url)
    return tab


@pytest.fixture
def tab(signed_in: Tab) -> Iterator[Tab]:
    """For one test, which may not leave an error in it."""
    yield signed_in
    signed_in.page.unroute_all()
    signed_in.expect_errors("no error is expected")


def test_a_login_leads_to_the_page_and_signing_out_ends_all_tabs(site: Site, browser: Browser) -> None:
    with browser.new_context() as context:
        tab, other = Tab(context.new_page()), Tab(context.new_page())
        page = tab.page
        page.goto(f"{site.url}/groups/orders")
        page.get_by_label("User").fill(USER)
        page.get_by_label("Password").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("refuse")
        tab.expect_errors("401")
        expect(page.get_by_label("User")).to_have_value(USER)
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{site.url}/groups/orders")
        other.page.goto(site.url)
        expect(other.page.locator("#connection")).to_have_text("live")
        page.get_by_role("button", name="Sign out").click()
        expect(page).to_have_url(f"{site.url}/login")
        expect(other.page).to_have_url(f"{site.url}/login?next=%2F&over=session")
        assert tab.errors + other.errors == []


def test_texts_of_others_are_text(site: Site, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{site.url}/groups/unserved")
    page.get_by_label("Key", exact=True).fill(HOSTILE)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(f"Key {SHOWN}")
    expect(page.locator(".body")).to_have_text(SHOWN)

    page.goto(f"{site.url}/groups/orders")
    expect(page.locator(SERVERS, has_text="<img").first).to_be_visible()
    document = json.loads(page.locator("#state").text_content() or "")
    assert len(document["services"]) == 4
    document["hot_keys"] = [{"key": "", "text": ""}]
    document["problems"] = [
        {"kind": "", "subject": {}, "text": "", "remedy": {"text": "", "commands": [[""]]}}
    ]
    document["acts"] = [{"id": "1", "at": 0, "by": "", "act": "", "detail": "", "state": "", "text": ""}]
    change = {"id": 1, "at": document["at"], "kind": "joined", "text": ""}
    answer_events(page, lambda _: [("group", hostile(document)), ("change", hostile(change))])
    page.reload()
    expect(page.get_by_text(SHOWN, exact=True).nth(5)).to_be_attached()
    expect(page.locator("#problems code")).to_have_text(shlex.quote(HOSTILE))
    row = {
        "group": HOSTILE,
        "strip": "",
        "servers": [],
        "services": 0,
        "served": 0,
        "members": 0,
        "rate": 0.0,
    }
    row |= dict.fromkeys(
        ("publish_rate", "ready", "unacked", "lag", "oldest_s", "dead_letters", "crashed_at")
    )
    row |= {"mode": HOSTILE, "has_older": False, "problems": 1, "problem": HOSTILE}
    answer_events(page, lambda _: [("overview", overview([row], error=HOSTILE, missing=HOSTILE))])
    page.goto(site.url)
    expect(page.locator("#groups a", has_text="<img")).to_have_text(SHOWN)
    assert page.locator("main img, main script:not([type])").count() == 0


def test_an_act_is_reached_by_keyboard_and_waits_for_a_confirmation(site: Site, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{site.url}/groups/orders")
    states = page.locator("#states")
    press_tab_until(page, "Pause consumption")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("Pause consumption")
    page.get_by_role("link", name="Cancel").click()
    expect(page.locator("#facts dt").first).to_be_visible()
    expect(states).not_to_contain_text("paused")
    press_tab_until(page, "Pause consumption")
    page.keyboard.press("Enter")
    expect(page.locator(".command code")).to_have_text("lbg group pause orders")
    press_tab_until(page, "Pause consumption")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{site.url}/groups/orders")
    expect(states).to_contain_text("paused")
    expect(page.locator("#acts li.done").first).to_contain_text("guest: pause")
    page.get_by_role("link", name="Resume consumption").click()
    page.get_by_role("button", name="Resume consumption").click()
    expect(states).not_to_contain_text("paused")


def test_groups_with_the_worst_problems_come_first(site: Site, tab: Tab) -> None:
    """`unserved` has a message that waits for a member; `orders`, whose name comes before, has no problem."""
    page = tab.page
    page.goto(site.url)
    names = page.locator("#groups tbody th a")
    expect(names).to_have_text(["unserved", "orders"])
    expect(page.locator("#groups tbody tr").first.locator("td").nth(5)).to_have_text("1")
    page.get_by_label("Sort by").select_option("name")
    expect(names).to_have_text(["orders", "unserved"])


def test_parked_keys_are_among_all_groups_and_announced(site: Site, tab: Tab) -> None:
    counts = {"members": 1, "rate": 0.0, "ready": 0, "unacked": 0, "lag": 0, "dead_letters": 0, "problems": 0}
    more = {
        "publish_rate": None,
        "oldest_s": None,
        "has_older": False,
        "problem": "",
        "crashed_at": None,
        "mode": "Exclusive",
    }
    row = {"group": "orders", "strip": "R", "servers": [0], "served": 1, "services": 1, **counts, **more}
    parked: list[dict[str, int | None]] = [
        {"parked": None, "parked_keys": None},
        {"parked": 7, "parked_keys": 2},
        {"parked": 7, "parked_keys": None},
    ]
    shown = 0
    answer_events(
        tab.page, lambda _: [("overview", overview([{**row, **parked[shown]}], is_full=shown == 0))]
    )
    page = tab.page
    page.goto(site.url)
    chip = page.locator("#groups .chip")
    expect(page.locator("#groups tbody tr")).to_have_count(1)
    expect(chip).to_be_hidden()
    shown = 1
    expect(chip).to_have_text("2 keys parked")
    expect(page.locator("#news[aria-live]")).to_have_text("orders: 2 keys parked")
    expect(page.locator("#facts")).to_contain_text("Parked7 messages")
    shown = 2
    expect(chip).to_have_text("7 messages parked")
    press_tab_until(page, "7 messages parked")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{site.url}/groups/orders/parked")


def test_a_console_behind_tls_keeps_a_session_at_localhost(
    embedded: EmbeddedBroker, browser: Browser
) -> None:
    """Of `kubectl port-forward`: Chromium takes the secure cookie by plain HTTP from this machine."""
    public = "https://console.example.org"
    url = f"http://127.0.0.1:{free_port()}"
    options = ("--listen", url.removeprefix("http://"), "--url", public, "--broker", embedded.url)
    with (
        lbg("console", *options, "--management", embedded.management_url) as console,
        browser.new_context() as context,
    ):
        assert _address(console) == public
        page = context.new_page()
        sign_in(page, url)
        expect(page.locator("#connection")).to_have_text("live")
        page.reload()
        expect(page.get_by_role("button", name="Sign out")).to_be_visible()


def test_read_only_pages_have_no_acts(site: Site, tab: Tab) -> None:
    for url, count in ((site.url, 1), (site.read_only_url, 0)):
        page = tab.page
        page.goto(f"{url}/groups/orders")
        expect(page.locator(SERVERS)).to_have_count(4)
        expect(page.get_by_text("read-only")).to_have_count(1 - count)
        expect(page.get_by_role("link", name="Pause consumption")).to_have_count(count)
        assert page.locator("form[method=post]").count() == 1, "that of Sign out"


def test_only_what_changed_is_written(site: Site, tab: Tab) -> None:
    def row(number: int, ready: int) -> dict[str, Any]:
        cells = {
            "strip": "R" * 16,
            "servers": [place % 5 for place in range(16)],
            "served": 16,
            "services": 16,
        }
        counts = {"members": 5, "rate": 1.0, "ready": ready, "unacked": 0, "lag": ready, "dead_letters": 0}
        rest = {
            "publish_rate": 1.0,
            "oldest_s": None,
            "has_older": False,
            "problems": 0,
            "problem": "",
            "crashed_at": None,
        }
        return {"group": f"group-{number}", "mode": "Exclusive", **cells, **counts, **rest}

    page = tab.page
    is_watched = False

    def events(answer: int) -> list[tuple[str, Any]]:
        if answer == 0:
            return [("overview", overview([row(number, 1) for number in range(200)]))]
        changed = [row(number, 2 if number == 7 else 1) for number in range(200)]
        return [("overview", overview(changed, is_full=False))] if is_watched else []

    answer_events(page, events)
    page.goto(f"{site.url}/?sort=name")
    expect(page.locator("#groups tbody .strip span")).to_have_count(3200)
    page.evaluate(
        """() => {
            window.written = [];
            const watched = {subtree: true, childList: true, characterData: true, attributes: true};
            new MutationObserver(records => written.push(...records)).observe(groups.tBodies[0], watched);
        }"""
    )
    is_watched = True
    seventh = page.locator("#groups tr", has=page.get_by_role("link", name="group-7", exact=True))
    expect(seventh.locator("td").nth(5)).to_have_text("2")
    rows = page.evaluate(
        "written.map(one => one.target.parentElement.closest('tr').querySelector('a').textContent)"
    )
    assert set(rows) == {"group-7"}
    assert len(rows) <= 2, "the number, and its colour"


def test_a_lost_connection_is_shown_until_it_is_back(site: Site, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{site.url}/groups/orders")
    line = page.locator("#connection")
    expect(line).to_have_text("live")
    page.route("**/events", lambda route: route.abort())
    page.reload()
    expect(line).to_contain_text("connection lost since")
    expect(page.locator("body.old")).to_have_count(1)
    page.unroute_all()
    expect(line).to_have_text("live")
    expect(page.locator("body.old")).to_have_count(0)
    tab.expect_errors("ERR_FAILED")


def test_pages_fit_a_phone_and_follow_the_colour_scheme(site: Site, tab: Tab) -> None:
    page = tab.page
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": 360, "height": 740})
    for path in (
        "/",
        "/groups/orders",
        "/groups/unserved/key?key=k",
        "/groups/orders/acts/repartition?queues=8",
    ):
        page.goto(f"{site.url}{path}")
        expect(page.locator("h1")).to_be_visible()
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            paper = page.evaluate(
                "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
            )
            assert (sum(paper) < 300) == (scheme == "dark")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    page.set_viewport_size(size)


def test_a_killed_member_leaves_the_map_and_stays_in_the_past(site: Site, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{site.url}/groups/orders")
    killed = page.locator(SERVERS, has_text="<img")
    expect(killed).to_have_count(2)
    expect(page.locator(SERVERS)).to_have_count(4)
    expect(page.locator("#members tbody tr")).to_have_count(2)
    site.members[HOSTILE].kill()
    expect(killed).to_have_count(0)
    expect(page.locator(SERVERS, has_text="a")).to_have_count(4)
    expect(page.locator("#members tbody tr")).to_have_count(1)
    expect(page.locator("#events .crashed")).to_contain_text("<img")
    expect(page.locator("#timeline")).to_have_attribute("aria-label", re.compile(r"[1-9]\d* moves, 1 crash;"))
    expect(page.locator(".chart canvas")).to_have_count(2)

    page.locator("#events .crashed button").click()
    expect(page.locator("#moment")).to_contain_text("As it was at")
    page.get_by_role("slider", name="Moment").focus()
    for _ in range(3):  # a step is a second; the crash and the moves are of the same one
        page.keyboard.press("ArrowLeft")
    expect(killed).to_have_count(2)
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#moment")).to_be_hidden()
    expect(killed).to_have_count(0)


def past_of(site: Site, page: Page) -> dict[str, Any]:
    """Answers the timeline of `orders`: two minutes ago `gone` served all queues, `a` does now, and `gone` has crashed.
    Returns the group as it is now."""
    page.goto(f"{site.url}/groups/orders")
    expect(page.locator(SERVERS)).to_have_count(4)
    document: dict[str, Any] = json.loads(page.locator("#state").text_content() or "")
    now = document["at"]
    then = now - 120_000
    crash = {"id": 1, "at": now - 60_000, "kind": "crashed", "text": "gone is gone", "member": "gone"}
    events = [
        crash,
        {"id": 2, "at": now - 50_000, "kind": "paused", "text": "consumption is paused"},
        {"id": 3, "at": now - 40_000, "kind": "resumed", "text": "consumption is resumed"},
    ]
    spans = [
        {"from": then - 60_000, "to": now - 60_000, "member": "gone", "cause": "", "pause_s": None},
        {"from": now - 60_000, "to": None, "member": "a", "cause": "crash", "pause_s": None},
    ]
    columns = {"rate": (7.0, 1.0), "ready": (111, 5), "unacked": (22, 6), "oldest_s": (33.0, 1.0)}
    columns |= {"publish_rate": (8.0, 2.0), "members": (2, 1), "dead_letters": (44, 9)}
    samples = {"at": [*range(then - 10_000, then + 11_000, 5000), now - 1000]}
    samples |= {name: [past] * 5 + [present] for name, (past, present) in columns.items()}
    timeline = {
        "group": "orders",
        "from": then - 60_000,
        "to": now,
        "at": now,
        "known_from": then - 60_000,
        "queues": [{"number": one, "known_from": then, "spans": spans} for one in range(4)],
        "events": events,
        "samples": samples,
    }
    page.route("**/timeline", lambda route: route.fulfill(json=timeline))
    return document | {"dead_letters": 9, "hot_keys": [{"key": "hot", "text": "1/s"}], "at": now}


def test_a_chosen_moment_is_that_of_all_the_page(site: Site, tab: Tab) -> None:
    page = tab.page
    document = past_of(site, page)
    problem = {"kind": "Poisoned", "severity": "Stands", "subject": {}, "text": "now!", "remedy": None}
    document["problems"] = [problem]
    ready = 0

    def events(answer: int) -> list[tuple[str, Any]]:
        return [
            (
                "group",
                {**document, "ready": ready + answer, "problems": [{**problem, "text": f"now {answer}"}]},
            )
        ]

    answer_events(page, events)
    page.reload()
    expect(page.locator("#problems")).to_contain_text("now")
    expect(page.locator("#hot")).to_contain_text("hot")
    expect(page.locator("#events .crashed")).to_have_count(1)
    page.evaluate("at => document.querySelector('#window').value = '900000'", None)
    slider = page.get_by_role("slider", name="Moment")
    slider.focus()
    # The window is 15 minutes in 1,000 steps: 118 s ago.
    slider.evaluate(
        "node => { node.value = 1000 - Math.round(118 / 0.9); node.dispatchEvent(new Event('input')); }"
    )
    banner = page.locator("#moment")
    expect(banner).to_contain_text("As it was at")
    expect(banner).to_contain_text("Not kept of the past: problems, keys")
    expect(page.locator(SERVERS)).to_have_text(["gone"] * 4)
    facts = page.locator("#facts")
    for text in (
        "Published8 /s",
        "Finished7 /s",
        "Ready111",
        "Unacked22",
        "Oldest33 s",
        "Members2",
        "Dead letters44",
    ):
        expect(facts).to_contain_text(text)
    expect(facts.locator("dt")).to_have_count(7)
    rows = page.locator("#members tbody tr")
    expect(rows.filter(has_text="gone")).to_contain_text("0–3")
    expect(rows).to_have_count(len(document["members"]) + 1)
    expect(page.locator("#services tbody tr").first).to_contain_text("0servedgone")
    expect(page.locator(".u-value").filter(has_text="111")).to_have_count(1)
    for hidden in ("#problems", "#acts-section", "#hot", "#sequences"):
        expect(page.locator(hidden)).to_be_hidden()
    expect(page.locator("#members caption")).to_contain_text("at ")
    expect(page.locator("#events .later")).to_have_count(3)
    expect(page.locator("#at")).to_contain_text("ago")
    # News of now come on, and change nothing of it.
    ready = 1000
    page.wait_for_function("() => true")
    expect(page.locator("#connection")).to_be_visible()
    page.wait_for_timeout(500)
    expect(facts).to_contain_text("Ready111")

    page.locator("#events .paused button").click()
    expect(page.locator("#states")).to_contain_text("paused")
    expect(page.locator(SERVERS)).to_have_text(["a"] * 4)
    page.get_by_role("button", name="Live").click()
    expect(banner).to_be_hidden()
    expect(page.locator("#states")).not_to_contain_text("paused")
    expect(facts).to_contain_text("Dead letters9")
    expect(page.locator("#problems")).to_be_visible()
    tab.expect_errors("ERR_")


def wide_group(document: dict[str, Any], queues: int) -> dict[str, Any]:
    """As large as its numbers and names get."""
    names = [f"orders-consumer-7d4f9c6b5-{one}" for one in ("x2x4q", "zzzzz")]
    first, second = (
        {**document["members"][0], "name": name, "index": place} for place, name in enumerate(names)
    )
    binding = {
        "member": names[0],
        "role": "primary",
        "active": True,
        "status": "Ready",
        "progress": "Working",
    }
    standby = {
        "member": names[1],
        "role": "secondary",
        "active": False,
        "status": "Ready",
        "progress": "Idle",
    }
    service = {
        **document["services"][0],
        "member": names[0],
        "status": "Ready",
        "ready": 1_234_567,
        "rate": 12_345.0,
        "bindings": [{**binding, "in_flight": 2048}, {**standby, "in_flight": 0}],
    }
    moving = [{**service["bindings"][0], "role": "secondary"}, {**service["bindings"][1], "role": "primary"}]
    services = [
        {**service, "number": number, "bindings": moving if number % 3 == 2 else service["bindings"]}
        for number in range(queues)
    ]
    services[1] |= {"member": None, "status": "Unassigned", "severity": "Stands", "bindings": []}
    commands = [["lbg", "group", "skip", "orders", f"{names[0]}-{'0' * 32}-84-0"], ["lbg", "consume", "…"]]
    problem = {
        "kind": "MessagesPoisoned",
        "severity": "Stands",
        "subject": {"keys": []},
        "text": "it is poisoned",
    }
    wide = {"members": [first, second], "services": services}
    wide["problems"] = [{**problem, "remedy": {"text": "skip it", "commands": commands}}]
    return {**document, "word": "partition", **wide}


WRAPPED = """tiles => tiles.flatMap(tile => [...tile.querySelectorAll("span, bdi")].filter(one => {
    const range = document.createRange();
    range.selectNodeContents(one);
    const tops = new Set([...range.getClientRects()].map(each => Math.round(each.top / 4)));
    const isOutside = one.getBoundingClientRect().right > tile.getBoundingClientRect().right - 8;
    const isCut = one.clientWidth && one.scrollWidth > one.clientWidth + 1;
    return !one.querySelector("span") && (tops.size > 1 || isCut || isOutside);
}).map(one => one.textContent))"""


@pytest.mark.parametrize("queues", [12, 64])
@pytest.mark.parametrize("width", [1440, 390])
def test_no_text_of_a_tile_wraps_or_is_cut(site: Site, tab: Tab, width: int, queues: int) -> None:
    page = tab.page
    page.goto(f"{site.url}/groups/orders")
    expect(page.locator(SERVERS)).to_have_count(4)
    document = json.loads(page.locator("#state").text_content() or "")
    answer_events(page, lambda _: [("group", wide_group(document, queues))])
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": width, "height": 900})
    page.reload()
    expect(page.locator(SERVERS)).to_have_count(queues)
    assert page.locator("#map li").evaluate_all(WRAPPED) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#problems .copy").count() == 1, "what only its user can complete is not copied"
    page.set_viewport_size(size)
    tab.expect_errors("ERR_")


def test_the_focus_goes_to_a_neighbour_of_what_disappears(site: Site, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{site.url}/groups/orders")
    expect(page.locator(SERVERS)).to_have_count(4)
    document = json.loads(page.locator("#state").text_content() or "")
    keys = ["a", "b", "c"]
    text = "one"

    def events(answer: int) -> list[tuple[str, Any]]:
        subject = {"keys": ["poisoned"], "message": "p-1"}
        problem = {"kind": "MessagesPoisoned", "severity": "Stands", "subject": subject, "text": text}
        hot = [{"key": key, "rate": 1.0} for key in keys]
        problems = [{**problem, "remedy": None}] if text else []
        return [("group", {**document, "at": document["at"] + answer, "hot_keys": hot, "problems": problems})]

    answer_events(page, events)
    page.reload()
    hot = page.locator("#hot a")
    expect(hot).to_have_count(3)
    hot.nth(1).focus()
    keys = ["a", "c"]
    expect(hot).to_have_count(2)
    expect(page.locator("#hot a", has_text="c")).to_be_focused()
    skip = page.get_by_role("link", name="Skip it")
    skip.focus()
    text = "other figures"
    expect(page.locator("#problems")).to_contain_text("other figures")
    expect(skip).to_be_focused()
    text = ""
    expect(page.locator("#problems-section")).to_be_hidden()
    assert page.evaluate(
        "document.activeElement.closest('main') !== null && document.activeElement.id !== 'content'"
    )

    row = {
        "group": "first",
        "strip": "R",
        "servers": [0],
        "served": 1,
        "services": 1,
        "members": 1,
        "rate": 0.0,
        "mode": "Exclusive",
        "has_older": False,
        "problems": 0,
        "problem": "",
    }
    row |= dict.fromkeys(("ready", "unacked", "lag", "oldest_s", "dead_letters", "crashed_at"))
    groups = ["first", "second"]
    answer_events(page, lambda _: [("overview", overview([{**row, "group": one} for one in groups]))])
    page.goto(site.url)
    page.get_by_role("link", name="first", exact=True).focus()
    groups = ["second"]
    expect(page.locator("#groups tbody tr")).to_have_count(1)
    expect(page.get_by_role("link", name="second", exact=True)).to_be_focused()
    tab.expect_errors("ERR_")


def test_the_page_of_a_key_is_about_a_page_and_has_one_act_of_a_kind(site: Site, tab: Tab) -> None:
    page = tab.page
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{site.url}/groups/unserved/key?{urlencode({'key': HOSTILE})}")
    expect(page.locator("details[open] .body")).to_have_text(SHOWN)
    assert page.evaluate("document.documentElement.scrollHeight") <= 1.2 * 900
    page.set_viewport_size({"width": 390, "height": 844})
    fate = page.locator(".lane td:last-child").first
    assert fate.evaluate("one => one.getBoundingClientRect().right") <= 390
    page.set_viewport_size(size)


def answer_events(page: Page, events: Callable[[int], list[tuple[str, Any]]]) -> None:
    """Answers the page's requests for its event stream; `events` is called with the number of the answer. Each answer
    ends, so that the page connects again."""
    count = 0

    def answer(route: Route) -> None:
        nonlocal count
        lines = [f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events(count)]
        count += 1
        route.fulfill(content_type="text/event-stream", body="".join(["retry: 100\n\n", *lines]))

    page.unroute("**/events")
    page.route("**/events", answer)


def overview(
    rows: list[dict[str, Any]], *, is_full: bool = True, error: str = "", missing: str = ""
) -> dict[str, Any]:
    survey = {"at": 1, "error": error, "every_s": 2.0, "is_partial": bool(missing), "missing": missing}
    return {"full": is_full, "at": 1, "survey": survey, "gone": [], "groups": rows}


def hostile(value: Any) -> Any:
    """With the hostile text in place of every text that is not a word that the page compares."""
    match value:
        case dict():
            words = ("kind", "word", "role", "status", "progress", "rebalance", "group", "href")
            return {name: one if name in words else hostile(one) for name, one in value.items()}
        case list():
            return [hostile(one) for one in value]
        case str():
            return HOSTILE
    return value


def press_tab_until(page: Page, text: str) -> None:
    """Moves the focus by the Tab key, from where it is, to the element with this text."""
    seen: list[str] = []
    while (focused := page.evaluate("document.activeElement.textContent.trim()")) != text:
        seen.append(focused)
        assert len(seen) < 60, f"{text!r} is not reached: {seen}"
        page.keyboard.press("Tab")
