"""Environment and file into settings, and what a person is told of a bad one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbg_core.client.settings import Credentials
from lbg_sidecar.process.settings import ConfigurationError, configure

LEAST = {"LBG_GROUP": "orders", "LBG_COMMAND": "./handle"}


def test_environment_counts_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.toml"
    file.write_text('group = "payments"\nconcurrency = 4\nprefetch = 7\n')
    settings = configure({**LEAST, "LBG_CONCURRENCY": "8"}, file)
    assert (settings.member.group, settings.member.concurrency, settings.member.prefetch) == ("orders", 8, 7)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("LBG_CONCURRENCY", "many", "LBG_CONCURRENCY is 'many', but must be a whole number"),
        ("LBG_CONCURRENCY", "0", "must be a whole number of at least 1"),
        ("LBG_ORDER", "size", "must be one of key, queue"),
        ("LBG_REPUBLISH", "perhaps", "must be true or false"),
        ("LBG_LOCAL", "8750", "must be HOST:PORT or unix:/PATH"),
        ("LBG_CONCURENCY", "8", "LBG_CONCURENCY is not a setting of a sidecar"),
        ("LBG_COMMAND", "", "LBG_COMMAND is missing"),
        ("LBG_CAFILE", "/nowhere", "need an amqps:// address"),
    ],
)
def test_a_bad_setting_is_named_with_its_rule(variable: str, value: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^[^\n]*$") as raised:
        configure({**LEAST, variable: value})
    assert said in str(raised.value)
    assert variable in str(raised.value) or variable == "LBG_CAFILE"


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ConfigurationError, match="LBG_GROUP is missing"):
        configure({"LBG_COMMAND": "./handle"})


def test_sidecars_start_at_any_of_several_addresses_with_the_member_and_the_publisher() -> None:
    several = {**LEAST, "LBG_BROKER": "amqp://a/,amqp://b/,amqp://c/"}
    read = [configure(several) for _ in range(100)]
    members = [tuple(place.host for place in settings.member.addresses) for settings in read]
    publishers = [tuple(place.host for place in settings.publisher) for settings in read]
    assert {hosts[0] for hosts in members} == {hosts[0] for hosts in publishers} == {"a", "b", "c"}
    assert {tuple(sorted(hosts)) for hosts in [*members, *publishers]} == {("a", "b", "c")}


def test_an_unknown_name_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.toml"
    file.write_text("colour = 1\n")
    with pytest.raises(ConfigurationError, match=r"colour in .* is not a setting"):
        configure(LEAST, file)


def test_what_kubernetes_says_of_services_is_no_setting() -> None:
    service = {
        "LBG_BROKER_SERVICE_HOST": "10.0.0.7",
        "LBG_BROKER_SERVICE_PORT_AMQP": "5672",
        "LBG_BROKER_PORT": "tcp://10.0.0.7:5672",
        "LBG_BROKER_PORT_5672_TCP_ADDR": "10.0.0.7",
    }
    assert configure({**LEAST, **service}).member.group == "orders"


@pytest.mark.parametrize(
    "url", ["amqp://u:s3cret@host:5672/", "amqp://u:s3cret@host:bad/", "http://u:s3cret@h/"]
)
def test_a_password_shows_neither_in_settings_nor_in_errors(url: str) -> None:
    try:
        shown = repr(configure({**LEAST, "LBG_BROKER": url}))
    except ConfigurationError as error:
        shown = str(error)
    assert "s3cret" not in shown


def test_an_http_application_needs_an_address() -> None:
    http = {"LBG_GROUP": "orders", "LBG_APP": "http"}
    for target in ({}, {"LBG_TARGET": ""}):
        with pytest.raises(ConfigurationError) as missing:
            configure({**http, **target})
        assert str(missing.value) == (
            "LBG_TARGET is missing: with LBG_APP=http it is the address to which messages are sent, as "
            "http://127.0.0.1:8080/"
        )
    with pytest.raises(ConfigurationError) as wrong:
        configure({**http, "LBG_TARGET": "localhost:8080"})
    assert str(wrong.value) == (
        "LBG_TARGET is 'localhost:8080', but must be http://HOST:PORT/PATH, or unix:/PATH/TO.sock:/URL-PATH"
    )
    told = configure({"LBG_GROUP": "orders", "LBG_APP": "http", "LBG_TARGET": "http://127.0.0.1:8080/on"})
    assert told.process.target == "http://127.0.0.1:8080/on"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("SIZE", 0, "a whole number of at least 1"),
        ("REQUESTS", 0, "a whole number of at least 1"),
        ("LINGER_MS", -1, "a number of at least 0"),
    ],
)
def test_batches_that_cannot_work_are_refused(name: str, value: int, rule: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        configure({**LEAST, f"LBG_BATCH_{name}": str(value)})
    assert str(refused.value) == f"LBG_BATCH_{name} is '{value}', but must be {rule}"


def test_a_path_of_positions_begins_with_a_slash() -> None:
    told = {
        "LBG_GROUP": "orders",
        "LBG_APP": "http",
        "LBG_TARGET": "http://127.0.0.1:1/",
        "LBG_POSITIONS_PATH": "positions",
    }
    with pytest.raises(
        ConfigurationError, match=r"^LBG_POSITIONS_PATH is 'positions', but must start with /$"
    ):
        configure(told)


def test_the_publishing_endpoint_has_the_members_login_unless_it_has_its_own(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    with_one = configure({**LEAST, "LBG_BROKER": "amqp://orders:x@broker/"})
    assert with_one.publisher == with_one.member.addresses
    own = {"LBG_PUBLISHER_USERNAME": "orders.publisher", "LBG_PUBLISHER_PASSWORD_FILE": str(password)}
    with_two = configure({**LEAST, "LBG_BROKER": "amqp://orders:x@broker/", **own})
    (member,), (publisher,) = with_two.member.addresses, with_two.publisher
    assert publisher.credentials is not None
    assert publisher.credentials() == Credentials("orders.publisher", "secret")
    assert (member.username, publisher.address) == ("orders", member.address)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("LBG_PUBLISHER_USERNAME", "LBG_PUBLISHER_PASSWORD_FILE"),
        ("LBG_PUBLISHER_USERNAME_FILE", "LBG_PUBLISHER_PASSWORD_FILE"),
        ("LBG_PUBLISHER_PASSWORD_FILE", "LBG_PUBLISHER_USERNAME"),
    ],
)
def test_half_a_login_of_the_publishing_endpoint_is_refused(given: str, missing: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{missing} is missing"):
        configure({**LEAST, given: "/tmp/one"})
