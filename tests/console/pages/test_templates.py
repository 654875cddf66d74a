"""Templates of the pages: the order of their headings, one message open at a time, and numbers of one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lbg_console.messages import MessageList
from lbg_console.views import PAGES, templates

ACT = {"act": "discard", "title": "Discard it", "href": "/x", "fields": [], "is_final": True}
GROUP = {"group": "orders", "acts_offered": [{**ACT, "fields": ["queues"]}]}
EVERY_PAGE: dict[str, Any] = {
    "title": "A page",
    "status": 200,
    "me": {"username": "guest", "is_administrator": True},
    "csrf": "token",
    "is_read_only": False,
    "broker": "amqp://localhost",
    "version": "0",
    "name": "orders",
    "acts_offered": [ACT],
}


def message(number: int) -> dict[str, Any]:
    fields = dict.fromkeys(("key", "content_type", "body_base64"))
    texts = {"state": "parked", "at": "m1", "routing_key": "orders.1", "reason": "no account", "body": "text"}
    return {"id": f"p-{number}", "attempts": 3, "redelivered": False, "age_s": 1.0, "body_bytes": 1} | {
        **fields,
        **texts,
        "acts": [ACT],
    }


def found_key(messages: int, rows: int, *, before: int) -> dict[str, Any]:
    place = {"hash": 1, "hash_count": 8, "queue": 1, "word": "queue", "status": "Ready", "member": "m1"}
    lane = {"publishers": ["p"], "header": ["TIME", "Fate"], "rows": [["1", "done"]] * rows, "reach": "all"}
    return {
        **place,
        **lane,
        "rows_before": before,
        "rows_shown": 6,
        "is_shared": False,
        "text": "1 message",
        "messages": list(map(message, range(messages))),
    }


def parked_key(reason: str | None, age_s: float | None) -> dict[str, Any]:
    return {"key": "a", "state": "parked", "messages": 1, "bytes": 5, "age_s": age_s, "reason": reason}


PAGES_SHOWN: dict[str, dict[str, Any]] = {
    "overview.html": {"overview": {}},
    "group.html": {"group": GROUP},
    "key.html": {"key": "a", "error": "", "found": found_key(9, 20, before=14)},
    "parked.html": {
        "found": MessageList([parked_key("no account", 90.0), parked_key(None, None)], ["a note"])
    },
    "dead.html": {
        "found": MessageList([{**message(one), "key": "a"} for one in range(3)], ["a note"], 3),
        "key": "",
        "reason": "x",
        "limit": 50,
    },
    "confirm.html": {
        "question": "Discard it?",
        "consequences": ["It is gone."],
        "error": "it is busy",
        "fields": [{"name": "queues", "type": "number", "label": "Queues", "value": "", "required": True}],
        "action": "/x",
        "after": 0,
        "back": "/",
        "button": "Discard",
        "is_final": True,
        "command": "lbg group show orders",
    },
    "error.html": {"message": "there is no such page", "remedy": "Go back.", "status": 404},
    "login.html": {"error": "wrong", "other_url": "https://x", "next": "/", "username": "", "notice": ""},
}


def rendered(template: str, **more: Any) -> str:
    made = templates()
    made.globals["static"] = lambda path: f"/static/{path}"
    return made.get_template(template).render({**EVERY_PAGE, **PAGES_SHOWN[template], **more})


def test_each_template_of_a_page_is_walked() -> None:
    names = {path.name for path in (PAGES / "templates").glob("*.html")}
    assert PAGES_SHOWN.keys() == names - {"base.html", "_message.html"}


@pytest.mark.parametrize("template", PAGES_SHOWN)
def test_headings_begin_with_the_first_and_leave_out_none(template: str) -> None:
    levels = [int(one) for one in re.findall(r"<h([1-6])\b", rendered(template))]
    assert levels.count(1) == 1
    assert all(level <= before + 1 for before, level in zip([0, *levels], levels, strict=False))


def test_no_script_makes_a_heading() -> None:
    """It would be outside of the order that the templates have."""
    scripts = "".join(path.read_text() for path in (PAGES / "static").glob("*.js"))
    assert re.findall(r"""element\(["']h[1-6]|<h[1-6]""", scripts) == []


@pytest.mark.parametrize("template", ["key.html", "dead.html"])
def test_one_message_is_open_and_has_the_only_acts_that_are_shown(template: str) -> None:
    page = rendered(template)
    exclusive = re.findall(r'<details class="fold" name="message"( open)?>', page)
    assert exclusive.count(" open") == 1
    assert len(exclusive) == page.count("Discard it</a>")
    folds = re.split(r"<details\b", page)
    assert "Discard it" not in folds[0], "an act is in a fold"
    assert all(one.count("Discard it</a>") <= 1 for one in folds)


def test_the_page_of_a_key_folds_what_is_beyond_a_page() -> None:
    page = rendered("key.html")
    assert "<summary>14 earlier rows</summary>" in page
    assert "later row" not in page
    assert "<summary>5 more messages</summary>" in page
    page = rendered("key.html", found=found_key(5, 9, before=1))
    assert "<summary>1 earlier row</summary>" in page
    assert "<summary>2 later rows</summary>" in page
    assert "<summary>1 more message</summary>" in page
    assert "<dd>1 byte</dd>" in page
    page = rendered("key.html", found=found_key(1, 1, before=0))
    assert "earlier row" not in page
    assert "more message" not in page


def test_a_parked_key_has_its_age_and_its_reason() -> None:
    page = rendered("parked.html")
    assert re.findall(r'<td class="number">(90 s|unknown)</td>', page) == ["90 s", "unknown"]
    assert re.findall(r'<td class="key" data-visible>(.*)</td>', page) == ["no account", "not read"]


@pytest.mark.parametrize("template", PAGES_SHOWN)
def test_a_page_has_no_act_that_is_not_offered(template: str) -> None:
    page = rendered(template, acts_offered=[])
    offered = {"key.html": 9, "dead.html": 3}.get(template, 0)
    assert page.count('class="button final"') == offered, "those of single messages"
