"""The login is read at each attempt to connect, so that it can be changed under a running client."""

import os
from pathlib import Path

import pytest

from lbg_core.amqp.methods import ConnectionClose, ConnectionStartOk, ConnectionTune
from lbg_core.client import (
    AuthenticationError,
    Backoff,
    ConnectError,
    ConnectionSettings,
    CredentialFiles,
    Credentials,
    CredentialsUnreadable,
    SettingsError,
    TlsSettings,
    connect,
    connect_any,
    reconnect_loop,
)
from testing.amqp.fake_broker import FakeBroker
from testing.waiting import GUARD_S

AT_ONCE = Backoff(first_s=0, max_s=0)


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("first\nnot the password\n")
    return file


def settings(fake: FakeBroker, credentials) -> ConnectionSettings:
    return ConnectionSettings("127.0.0.1", fake.port, credentials=credentials)


def logins(fake: FakeBroker) -> list[str]:
    """Logins of the connections, as `user:password`."""
    found: list[str] = []
    accept = fake.answers[ConnectionStartOk]

    def answer(start_ok: ConnectionStartOk):
        found.append(start_ok.response[1:].replace(b"\0", b":").decode())
        return accept(start_ok)

    fake.answers[ConnectionStartOk] = answer
    return found


async def test_a_password_file_is_read_again_for_each_connection(fake, password):
    seen = logins(fake)
    connections = reconnect_loop(settings(fake, CredentialFiles("orders", password)), backoff=AT_ONCE)
    await anext(connections)
    password.write_text("second")
    connection = await anext(connections)
    assert seen == ["orders:first", "orders:second"]
    await connection.close()


async def test_what_a_connection_says_of_itself_names_the_user_and_can_connect_again(fake, tmp_path):
    user = tmp_path / "username"
    user.write_text("orders-a\n")
    seen = logins(fake)
    connection = await connect(settings(fake, CredentialFiles(user, "secret")))
    assert connection.settings.address == f"amqp://orders-a@127.0.0.1:{fake.port}/"
    user.write_text("orders-b\n")
    again = await connect(connection.settings)
    assert seen == ["orders-a:secret", "orders-b:secret"]
    assert "secret" not in repr(connection.settings) + repr(CredentialFiles("u", "secret"))
    await connection.close()
    await again.close()


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), ("\nlater\n", "first line is empty")],
    ids=["gone", "empty"],
)
async def test_a_file_that_cannot_be_read_is_named_and_ends_a_first_attempt(fake, tmp_path, content, words):
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
    place = settings(fake, CredentialFiles("orders", file))
    with pytest.raises(CredentialsUnreadable, match=rf"{file}.*{words}"):
        await anext(reconnect_loop(place))


async def test_a_file_that_is_gone_for_a_while_is_waited_for_once_there_was_a_connection(fake, password):
    told = []

    def put_back(error: ConnectError, wait_s: float) -> None:
        told.append(type(error))
        password.write_text("back")

    seen = logins(fake)
    place = settings(fake, CredentialFiles("orders", password))
    connections = reconnect_loop(place, backoff=AT_ONCE, on_failure=put_back)
    await anext(connections)
    password.unlink()
    connection = await anext(connections)
    assert (told, seen) == ([CredentialsUnreadable], ["orders:first", "orders:back"])
    await connection.close()


async def test_an_old_password_is_tried_until_the_new_one_is_there(fake, password):
    def renew(error: ConnectError, wait_s: float) -> None:
        assert isinstance(error, AuthenticationError)
        password.write_text("second")

    def answer(start_ok: ConnectionStartOk):
        if start_ok.response.endswith(b"\0" + valid):
            return [ConnectionTune(2047, 131072, 0)]
        return [ConnectionClose(403, "ACCESS_REFUSED")]

    valid = b"first"
    fake.answers[ConnectionStartOk] = answer
    place = settings(fake, CredentialFiles("orders", password))
    connections = reconnect_loop(place, backoff=AT_ONCE, on_failure=renew)
    await anext(connections)
    valid = b"second"
    connection = await anext(connections)
    assert connection.is_open
    await connection.close()


async def test_a_function_may_give_the_login_and_its_failure_is_told(fake):
    def fails() -> Credentials:
        raise RuntimeError("the vault is sealed")

    seen = logins(fake)
    connection = await connect(settings(fake, lambda: Credentials("u", "p")))
    assert seen == ["u:p"]
    await connection.close()
    with pytest.raises(CredentialsUnreadable, match="cannot be read: the vault is sealed"):
        await connect(settings(fake, fails))


async def test_certificates_that_do_not_fit_are_waited_for_once_there_was_a_connection(fake, tmp_path):
    plain = ConnectionSettings("127.0.0.1", fake.port)
    broken = ConnectionSettings("127.0.0.1", fake.port, tls=TlsSettings(certfile=str(tmp_path / "none")))
    told: list[str] = []
    with pytest.raises(SettingsError):
        await anext(reconnect_loop([broken, plain], backoff=AT_ONCE))
    connections = reconnect_loop(
        [plain, broken], backoff=AT_ONCE, on_failure=lambda error, _: told.append(str(error))
    )
    await anext(connections)
    connection = await anext(connections)
    assert len(told) == 1
    assert f"certfile {tmp_path / 'none'}: {os.strerror(2)}" in told[0]
    await connection.close()


async def test_the_first_of_several_places_that_answers_is_taken(fake):
    nobody = ConnectionSettings("127.0.0.1", 1)
    connection = await connect_any([nobody, ConnectionSettings("127.0.0.1", fake.port)])
    assert connection.settings.port == fake.port
    await connection.close()


async def test_when_no_place_answers_each_is_named(fake):
    fake.answers[ConnectionStartOk] = lambda _: [ConnectionClose(403, "no")]
    nobody = ConnectionSettings("127.0.0.1", 1)
    with pytest.raises(
        AuthenticationError, match=rf"127\.0\.0\.1:1/: .*; amqp://guest@127\.0\.0\.1:{fake.port}/: no"
    ):
        await connect_any([nobody, ConnectionSettings("127.0.0.1", fake.port)])


async def test_a_place_is_tried_again_for_as_long_as_asked(fake):
    attempts = []

    def answer(start_ok: ConnectionStartOk):
        attempts.append(start_ok)
        code = 541 if len(attempts) < 3 else None
        return [ConnectionClose(code, "booting")] if code else [ConnectionTune(2047, 131072, 0)]

    fake.answers[ConnectionStartOk] = answer
    place = ConnectionSettings("127.0.0.1", fake.port)
    connection = await connect_any([place], within_s=GUARD_S, backoff=AT_ONCE)
    assert len(attempts) == 3
    await connection.close()
