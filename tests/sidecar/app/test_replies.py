from __future__ import annotations

import pytest

from lbg_sidecar import ACK, drop, retry
from lbg_sidecar.app.http_client import (
    Reply,
    parse_target,
    retry_after_s,
    verdict_of_reply,
    verdicts_of_reply,
)
from lbg_sidecar.errors import SettingsError
from lbg_sidecar.message import Kind, Verdict

NOW_S = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("status", "body", "retry_after", "verdict"),
    [
        (200, b"", None, ACK),
        (204, b"", None, ACK),
        (200, b"thanks", None, ACK),
        (200, b'{"id": 7}', None, ACK),
        (200, b'{"verdict": "ack"}', None, ACK),
        (200, b'{"verdict": "retry", "reason": "busy", "after_s": 2}', None, retry("busy", after_s=2.0)),
        (200, b'{"verdict": "retry"}', "3", retry(after_s=3.0)),
        (200, b'{"verdict": "drop", "reason": "no"}', None, drop("no")),
        (200, b'{"status": "SUCCESS"}', None, ACK),
        (200, b'{"status": "RETRY"}', None, retry()),
        (200, b'{"status": "DROP"}', None, drop("")),
        (200, b'{"status": "ok"}', None, ACK),
        (200, b'{"status": "success"}', None, ACK),
        (200, b'{"verdict": "OK"}', None, ACK),
        (200, b'{"status": "Retry"}', "3", retry(after_s=3.0)),
        (200, b'{"verdict": "Drop"}', None, drop("")),
        (422, b"no such\norder", None, drop("no such order")),
        (422, b"", None, drop("HTTP 422")),
        (404, b"", None, retry("HTTP 404")),
        (302, b"log in", None, retry("HTTP 302: log in")),
        (500, b"oops \xff", None, retry("HTTP 500: oops \ufffd")),
        (503, b"", "5", retry("HTTP 503", after_s=5.0)),
        (429, b"", "soon", retry("HTTP 429")),
    ],
)
def test_a_reply_is_a_verdict(status: int, body: bytes, retry_after: str | None, verdict: Verdict) -> None:
    assert verdict_of_reply(Reply(status, body, retry_after), now_s=NOW_S) == verdict


@pytest.mark.parametrize(
    "body",
    [
        b'{"verdict": "maybe"}',
        b'{"status": "FAILED"}',
        b'{"verdict": null}',
        b'{"status": 200}',
        b'{"status": "\\ud800"}',
    ],
)
def test_a_word_nobody_knows_is_no_ack_and_reported(body: bytes) -> None:
    verdict = verdict_of_reply(Reply(200, body, None), now_s=NOW_S)
    assert (verdict.kind, verdict.is_unreadable) == (Kind.RETRY, True)
    assert "must be ack (or ok, success), retry or drop" in verdict.reason


@pytest.mark.parametrize("body", [b"", b'{"verdict": "retry"}', b'{"status": "ok"}'])
def test_an_answer_is_not_reported(body: bytes) -> None:
    assert not verdict_of_reply(Reply(200, body, None), now_s=NOW_S).is_unreadable


def test_a_reason_has_no_surrogates() -> None:
    verdict = verdict_of_reply(
        Reply(200, b'{"verdict": "drop", "reason": "\\ud800 \xc3\xa9"}', None), now_s=NOW_S
    )
    assert verdict == drop("\\ud800 é")
    assert retry("\udcff").reason == "\\udcff"


@pytest.mark.parametrize("body", [b'{"verdict": "drop", "reason": "', b' {"text": "'])
def test_an_object_that_is_cut_is_no_ack_for_a_verdict_may_be_behind_the_cut(body: bytes) -> None:
    verdict = verdict_of_reply(Reply(200, body, "3", is_cut=True), now_s=NOW_S)
    assert (verdict.kind, verdict.after_s) == (Kind.RETRY, 3.0)
    assert f"longer than {len(body)} bytes" in verdict.reason


def test_a_long_reply_that_is_no_object_says_what_its_status_says() -> None:
    assert verdict_of_reply(Reply(200, b"<html>", None, is_cut=True), now_s=NOW_S) == ACK
    assert verdict_of_reply(Reply(422, b"no", None, is_cut=True), now_s=NOW_S) == drop("no")


def test_a_reply_to_a_batch_that_is_cut_acknowledges_nothing() -> None:
    verdicts = verdicts_of_reply(Reply(200, b'{"verdicts": [', None, is_cut=True), now_s=NOW_S)
    assert verdicts.of("any").kind is Kind.RETRY
    assert "longer than 14 bytes" in verdicts.of("any").reason


def test_a_reason_is_cut_off() -> None:
    assert len(verdict_of_reply(Reply(500, b"x" * 100_000, None), now_s=NOW_S).reason) < 600


@pytest.mark.parametrize(
    ("value", "after_s"),
    [
        ("0", 0.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        ("9999999999999", 86_400.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0),
        ("Fri, 31 Dec 99999999999999999999 23:59:59 GMT", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, after_s: float | None) -> None:
    assert retry_after_s(value, now_s=NOW_S) == after_s


@pytest.mark.parametrize(
    ("value", "url", "socket"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/", None),
        ("http://app:80/orders?v=1", "http://app:80/orders?v=1", None),
        ("unix:/run/app.sock:/orders", "http://localhost/orders", "/run/app.sock"),
    ],
)
def test_a_target_is_an_address_or_a_socket_with_a_path(value: str, url: str, socket: str | None) -> None:
    target = parse_target(value)
    assert (target.base + target.path, target.socket) == (url, socket)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "app:80",
        "ftp://app/",
        "http://",
        "http://app:x/",
        "http://u:p@app/",
        "unix:app.sock:/",
        "unix:/a.sock",
    ],
)
def test_what_is_no_target_is_refused_with_the_form(value: str) -> None:
    with pytest.raises(SettingsError, match="must be http://HOST:PORT/PATH"):
        parse_target(value)
