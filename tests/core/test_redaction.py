"""Passwords in addresses, also where they should have been escaped."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.redaction import redacted, without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://user:pass@host/v", "amqp://user:***@host/v"),
        ("amqp://user:pa/ss@host/v", "amqp://user:***@host/v"),
        ("amqp://user:p@a?s#s@host", "amqp://user:***@host"),
        ("amqp://user:pa://ss@host", "amqp://user:***@host"),
        ("amqp://:pass@host", "amqp://:***@host"),
        ('amqp://user:pa"ss@host', "amqp://user:***@host"),
        ("amqp://a:b/c@one,amqps://a:b/c@two:5671/", "amqp://a:***@one,amqps://a:***@two:5671/"),
        ("amqp://one:5672,amqp://a:b/c@two", "amqp://one:5672,amqp://a:***@two"),
        ("at https://u:p%40ss@h:1 and amqps://a:b@c", "at https://u:***@h:1 and amqps://a:***@c"),
        ("amqp://user@host:5672/", "amqp://user@host:5672/"),
        ("http://host:8080/path of a@b", "http://host:8080/path of a@b"),
        ("amqp://user:***@host", "amqp://user:***@host"),
        ("://", "://"),
        ("nothing here", "nothing here"),
    ],
)
def test_the_password_of_each_address_is_replaced(text: str, shown: str) -> None:
    assert redacted(text) == shown


@given(st.text(st.characters(exclude_categories=("Z", "C"))))
def test_no_character_of_a_password_is_left(password: str) -> None:
    address = f"amqp://user:{password}@host:5672/orders"
    assert redacted(f"before {address} after") == "before amqp://user:***@host:5672/orders after"


@given(st.text(st.characters(exclude_categories=("Z", "C"))))
def test_json_without_passwords_is_still_json(password: str) -> None:
    dumped = json.dumps({"url": f"amqp://user:{password}@host", "more": "a@b"})
    assert json.loads(redacted(dumped)) == {"url": "amqp://user:***@host", "more": "a@b"}


def test_an_environment_is_left_without_our_passwords() -> None:
    environment = {
        "HOME": "/root",
        "OTHERS_URL": "amqp://user:pass@host",
        "LBG_CLIENT_PASSWORD": "pass",
        "LBG_BROKER": "amqp://one:5672,amqp://user:pa/ss@two",
        "LBG_MANAGEMENT": "http://user:pa ss@host:15672",
        "LBG_PASSWORD_FILE": "/run/secrets/password",
        "LBG_GROUP": "orders",
    }
    assert set(without_passwords(environment)) == {"HOME", "OTHERS_URL", "LBG_PASSWORD_FILE", "LBG_GROUP"}


def test_an_address_without_a_password_stays_in_the_environment() -> None:
    environment = {"LBG_BROKER": "amqps://orders@one:5671,amqps://orders@two:5671"}
    assert without_passwords(environment) == environment
