"""Opening a connection, and every way in which it does not open."""

import asyncio
import gc
import socket
import ssl

import pytest
import trustme

from lbg_core.amqp import MethodEvent
from lbg_core.amqp.methods import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionSecure,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from lbg_core.client import (
    AuthenticationError,
    ConnectError,
    ConnectionSettings,
    ConnectRefused,
    SettingsError,
    TlsError,
    connect,
)
from testing.amqp.fake_broker import FakeBroker


async def test_the_login_and_the_wishes_are_sent(fake):
    connection = await connect(fake.url + "team?heartbeat=7", name="orders-3", client_properties={"more": 1})
    session = await fake.accepted.get()
    start_ok = (await session.seen(ConnectionStartOk)).method
    assert start_ok.mechanism == "PLAIN"
    assert start_ok.response == b"\0guest\0s3cret"
    assert start_ok.client_properties["connection_name"] == "orders-3"
    assert start_ok.client_properties["more"] == 1
    capabilities = start_ok.client_properties["capabilities"]
    for name in (
        "publisher_confirms",
        "consumer_cancel_notify",
        "connection.blocked",
        "basic.nack",
        "authentication_failure_close",
        "lbg.ordered_refusal",
    ):
        assert capabilities[name] is True
    assert (await session.seen(ConnectionTuneOk)).method.heartbeat == 7
    assert (await session.seen(ConnectionOpen)).method.virtual_host == "team"
    assert connection.is_open
    assert connection.heartbeat_s == 7
    assert "s3cret" not in repr(connection)
    await connection.close()
    assert not connection.is_open


async def test_the_heartbeat_given_to_connect_goes_before_the_address(fake):
    connection = await connect(fake.url + "?heartbeat=7", heartbeat_s=3)
    assert connection.heartbeat_s == 3
    await connection.close()


async def test_what_the_server_says_of_itself_can_be_read(fake):
    fake.start = ConnectionStart(server_properties={"product": "Fake", "version": "1"})
    connection = await connect(fake.url)
    assert connection.server_properties["product"] == "Fake"
    await connection.close()


async def test_nobody_listening_is_a_connect_error_that_names_the_address():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(ConnectError, match=f"amqp://guest@127.0.0.1:{port}/: .*efused") as caught:
            await connect(f"amqp://guest:s3cret@127.0.0.1:{port}")
    assert caught.value.retryable
    assert "s3cret" not in str(caught.value)


async def test_a_host_that_does_not_exist_is_a_connect_error():
    with pytest.raises(ConnectError, match=r"no-such-host\.invalid"):
        await connect("amqp://no-such-host.invalid")


async def test_a_wrong_address_is_a_settings_error():
    with pytest.raises(SettingsError):
        await connect("amqp://broker?heartbeat=x")


async def test_a_refused_login_is_an_authentication_error(fake):
    fake.answers[ConnectionStartOk] = lambda _: [ConnectionClose(403, "ACCESS_REFUSED - no s3cret for you")]
    with pytest.raises(AuthenticationError, match="ACCESS_REFUSED") as caught:
        await connect(fake.url)
    assert not caught.value.retryable
    assert "s3cret" not in str(caught.value)


async def test_a_broker_that_hangs_up_on_the_login_has_refused_it(fake):
    def hang_up(_):
        fake.sessions[0].transport.close()
        return []

    fake.answers[ConnectionStartOk] = hang_up
    with pytest.raises(AuthenticationError, match="after the login"):
        await connect(fake.url)


@pytest.mark.parametrize("last", [ConnectionStartOk, ConnectionOpen])
async def test_a_broker_that_would_have_said_so_and_hangs_up_was_killed(fake, last):
    capabilities = {"authentication_failure_close": True}
    fake.start = ConnectionStart(server_properties={"capabilities": capabilities}, mechanisms=b"PLAIN")

    def hang_up(_):
        fake.sessions[0].transport.close()
        return []

    fake.answers[last] = hang_up
    with pytest.raises(ConnectError, match="before the connection was open") as caught:
        await connect(fake.url)
    assert caught.value.retryable


async def test_a_broker_that_hangs_up_after_it_took_the_login_has_not_refused_it(fake):
    def hang_up(_):
        fake.sessions[0].transport.close()
        return []

    fake.answers[ConnectionOpen] = hang_up
    with pytest.raises(ConnectError) as caught:
        await connect(fake.url)
    assert caught.value.retryable


async def test_a_challenge_is_more_than_this_client_can_answer(fake):
    fake.answers[ConnectionStartOk] = lambda _: [ConnectionSecure(b"?")]
    with pytest.raises(AuthenticationError):
        await connect(fake.url)


async def test_a_missing_virtual_host_is_refused_with_its_code(fake):
    fake.answers[ConnectionOpen] = lambda _: [ConnectionClose(530, "NOT_ALLOWED - vhost x not found")]
    with pytest.raises(ConnectRefused, match="530 NOT_ALLOWED") as caught:
        await connect(fake.url)
    assert caught.value.reply_code == 530


async def test_a_mechanism_the_broker_does_not_offer_is_named(fake):
    fake.start = ConnectionStart(mechanisms=b"EXTERNAL AMQPLAIN")
    with pytest.raises(ConnectError, match="offers EXTERNAL AMQPLAIN, not PLAIN"):
        await connect(fake.url)


@pytest.mark.long
@pytest.mark.parametrize("muted", [ConnectionStart, ConnectionStartOk, ConnectionTuneOk, ConnectionOpen])
async def test_a_broker_that_stops_answering_is_given_up_in_time(fake, muted):
    fake.mute = {muted, ConnectionOpen} if muted is ConnectionTuneOk else {muted}
    settings = ConnectionSettings.parse(fake.url)
    # Long enough for the socket to be accepted: a loop that stood still for so long would connect to nobody.
    quick = ConnectionSettings(settings.host, settings.port, connect_timeout_s=1.0)
    with pytest.raises(ConnectError, match=r"within 1 s"):
        await connect(quick)
    session = await fake.accepted.get()
    await session.lost


async def test_cancelling_a_connect_drops_the_socket(fake):
    fake.mute = {ConnectionStart}
    attempt = asyncio.ensure_future(connect(fake.url))
    session = await fake.accepted.get()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    await session.lost


@pytest.mark.parametrize(
    "greeting", [b"AMQP\x00\x01\x00\x00", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"AMQ"]
)
async def test_something_that_is_no_amqp_broker_is_a_connect_error(greeting):
    async def serve(reader, writer):
        await reader.read(8)
        writer.write(greeting)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectError):
        await connect(f"amqp://127.0.0.1:{port}")
    server.close()
    await server.wait_closed()


async def test_a_method_out_of_place_is_a_connect_error(fake):
    fake.answers[ConnectionStartOk] = lambda _: []
    attempt = asyncio.ensure_future(connect(fake.url))
    session = await fake.accepted.get()
    await session.seen(ConnectionStartOk)
    session.transport.write(b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x3d\xce")  # connection.unblocked
    with pytest.raises(ConnectError, match="unblocked"):
        await attempt


@pytest.mark.long
async def test_no_failed_attempt_leaves_an_error_that_nobody_read(fake, caplog):
    fake.answers[ConnectionStartOk] = lambda _: [ConnectionClose(403, "no")]
    gc.collect()  # what other tests have left
    await asyncio.sleep(0)
    caplog.clear()
    for _ in range(3):
        with pytest.raises(AuthenticationError):
            await connect(fake.url)
    gc.collect()
    await asyncio.sleep(0)
    assert not caplog.records


# TLS


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def server_context(authority, *names, client_certificates=False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    if client_certificates:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture
def cafile(authority, tmp_path):
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


async def test_tls_with_a_known_authority(authority, cafile):
    async with FakeBroker(server_context(authority, "localhost")) as broker:
        connection = await connect(broker.url + f"?cacertfile={cafile}")
        assert connection.is_open
        await connection.close()


async def test_an_unknown_authority_is_refused_by_default(authority):
    async with FakeBroker(server_context(authority, "localhost")) as broker:
        with pytest.raises(TlsError, match="certificate") as caught:
            await connect(broker.url)
        assert not caught.value.retryable


async def test_a_certificate_for_another_name_is_refused(authority, cafile):
    async with FakeBroker(server_context(authority, "elsewhere.example")) as broker:
        with pytest.raises(TlsError, match="localhost"):
            await connect(broker.url + f"?cacertfile={cafile}")
        named = broker.url + f"?cacertfile={cafile}&server_name_indication=elsewhere.example"
        connection = await connect(named)
        await connection.close()


async def test_verification_can_be_turned_off_in_so_many_words(authority):
    async with FakeBroker(server_context(authority, "elsewhere.example")) as broker:
        connection = await connect(broker.url + "?verify=verify_none")
        assert connection.is_open
        await connection.close()


async def test_a_client_certificate_can_be_the_login(authority, cafile, tmp_path):
    certificate = authority.issue_cert("member@example.org")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = server_context(authority, "localhost", client_certificates=True)
    async with FakeBroker(context) as broker:
        files = f"?cacertfile={cafile}&certfile={tmp_path / 'cert.pem'}&keyfile={tmp_path / 'key.pem'}"
        connection = await connect(broker.url + files + "&auth_mechanism=EXTERNAL")
        session = await broker.accepted.get()
        start_ok = (await session.seen(ConnectionStartOk)).method
        assert (start_ok.mechanism, start_ok.response) == ("EXTERNAL", b"")
        assert session.transport.get_extra_info("peercert")
        await connection.close()


async def test_a_broker_that_wants_a_certificate_refuses_a_client_without(authority, cafile):
    context = server_context(authority, "localhost", client_certificates=True)
    async with FakeBroker(context) as broker:
        with pytest.raises(ConnectError):
            await connect(broker.url + f"?cacertfile={cafile}")


async def test_plain_amqp_to_a_tls_port_is_a_connect_error(authority):
    async with FakeBroker(server_context(authority, "localhost")) as broker:
        with pytest.raises(ConnectError):
            await connect(broker.url.replace("amqps", "amqp"))


async def test_tls_to_a_plain_port_is_a_tls_error(fake):
    with pytest.raises(TlsError):
        await connect(fake.url.replace("amqp:", "amqps:"))


async def test_a_heartbeat_of_the_brokers_wish_is_taken_when_shorter(fake):
    fake.answers[ConnectionStartOk] = lambda _: [ConnectionTune(10, 8192, 2)]
    connection = await connect(fake.url)
    session = await fake.accepted.get()
    answer = await session.seen(ConnectionTuneOk)
    assert isinstance(answer, MethodEvent)
    assert answer.method == ConnectionTuneOk(10, 8192, 2)
    await connection.close()
