"""Addresses: what they may hold, and errors that name what is wrong without ever showing the password."""

import pytest

from lbg_core.client import ConnectionSettings, SettingsError, TlsSettings
from lbg_core.client.settings import warn_unverified


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://", ConnectionSettings()),
        ("amqp://broker", ConnectionSettings("broker")),
        ("amqp://broker/", ConnectionSettings("broker")),
        ("amqp://broker:5673", ConnectionSettings("broker", 5673)),
        ("amqp://user:pass@broker", ConnectionSettings("broker", username="user", password="pass")),
        ("amqp://user@broker", ConnectionSettings("broker", username="user")),
        ("amqp://u%40x:p%2Fa%3As@broker", ConnectionSettings("broker", username="u@x", password="p/a:s")),
        ("amqp://broker/%2F", ConnectionSettings("broker")),
        ("amqp://broker/team-a", ConnectionSettings("broker", vhost="team-a")),
        ("amqp://broker/a%2Fb", ConnectionSettings("broker", vhost="a/b")),
        ("amqp://[::1]:5673/v", ConnectionSettings("::1", 5673, vhost="v")),
        ("amqp://broker?heartbeat=7", ConnectionSettings("broker", heartbeat_s=7)),
        ("amqp://broker?heartbeat=0", ConnectionSettings("broker", heartbeat_s=0)),
        (
            "amqp://broker/?connection_timeout=3&channel_max=9&frame_max=8192",
            ConnectionSettings("broker", connect_timeout_s=3, channel_max=9, frame_max_bytes=8192),
        ),
        ("amqps://broker", ConnectionSettings("broker", 5671, tls=TlsSettings())),
        (
            "amqps://broker?cacertfile=/ca&certfile=/c&keyfile=/k&auth_mechanism=external",
            ConnectionSettings("broker", 5671, tls=TlsSettings("/ca", "/c", "/k"), mechanism="EXTERNAL"),
        ),
        (
            "amqps://broker?verify=verify_none&server_name_indication=other",
            ConnectionSettings("broker", 5671, tls=TlsSettings(verify=False, server_name="other")),
        ),
    ],
)
def test_an_address_is_read(url, expected):
    assert ConnectionSettings.parse(url) == expected


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "amqp://"),
        ("broker:5672", "amqp://"),
        ("http://user:s3cret@broker", "scheme is http"),
        ("s3cret@broker", "amqp://"),
        ("amqp://user:s3cret@broker:port", "port"),
        ("amqp://user:s3cret@broker:99999", "port"),
        ("amqp://user:s3cret@broker:0", "port 0"),
        ("amqp://user:s3/cret@broker", "percent-encoded"),
        ("amqp://user:s3?cret@broker", "percent-encoded"),
        ("amqp://user:s3#cret@broker", "percent-encoded"),
        ("amqp://user:s3cret@[::1", "host"),
        ("amqp://user:s3cret@broker/a/b", "virtual host"),
        ("amqp://user:s3cret@broker/v#frag", "#"),
        ("amqp://user:s3cret@broker?heartbeat=soon", "heartbeat=soon"),
        ("amqp://user:s3cret@broker?heartbeat=-1", "heartbeat=-1"),
        ("amqp://user:s3cret@broker?heartbeat=70000", "heartbeat=70000"),
        ("amqp://user:s3cret@broker?frame_max=100", "frame_max=100"),
        ("amqp://user:s3cret@broker?frame_max=8191", "frame_max=8191"),
        ("amqp://user:s3cret@broker?hearbeat=5", "'hearbeat'"),
        ("amqp://user:s3cret@broker?cafile=/ca", "amqps://"),
        ("amqps://user:s3cret@broker?verify=maybe", "verify=maybe"),
        ("amqp://user:s3cret@broker?auth_mechanism=KERBEROS", "auth_mechanism=KERBEROS"),
    ],
)
def test_a_wrong_address_is_told_apart_and_its_password_is_not_shown(url, complaint):
    with pytest.raises(SettingsError) as caught:
        ConnectionSettings.parse(url)
    assert complaint in str(caught.value)
    for piece in ("s3cret", "s3", "cret"):
        assert piece not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_password_is_never_shown():
    settings = ConnectionSettings.parse("amqp://user:s3cret@broker:5673/a%2Fb")
    assert "s3cret" not in repr(settings)
    assert settings.address == "amqp://user@broker:5673/a%2Fb"


def test_an_address_shows_that_it_is_over_tls():
    settings = ConnectionSettings("broker", tls=TlsSettings("ca", "cert", "key"))
    assert settings.address.startswith("amqps://")


@pytest.mark.parametrize(
    ("tls", "complaint"),
    [
        (TlsSettings(cafile="/no/such/ca"), "cafile /no/such/ca"),
        (TlsSettings(certfile="/no/such/cert"), "certfile /no/such/cert"),
        (TlsSettings(keyfile="/no/such/key"), "keyfile is given without certfile"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tls, complaint):
    with pytest.raises(SettingsError, match=complaint):
        tls.context()


def test_an_unchecked_certificate_is_warned_of_once(caplog):
    warn_unverified.cache_clear()
    for _ in range(2):
        ConnectionSettings.parse("amqps://broker?verify=verify_none").tls.context()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cafile=FILE" in caplog.text
    ConnectionSettings.parse("amqps://broker").tls.context()
    assert len(caplog.records) == 1
