"""Methods: each declared as the specification numbers it, there and back, and as pamqp sees them."""

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, frame

from lbg_core.amqp import METHODS, DecodeError, EncodeError, PeerError, Role
from lbg_core.amqp.frames import encode_frame
from lbg_core.amqp.methods import (
    AccessRequest,
    BasicConsume,
    BasicPublish,
    BasicRevoke,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionUpdateSecret,
    ExchangeDeclare,
    QueueBind,
    QueueDeclare,
    decode_method,
)
from testing.amqp.wire import ALL_METHODS, any_method, methods_of, short_strings, tables_of
from testing.exploration import example_count

NAMES_IN_PAMQP = {
    "type": "exchange_type",
    "global_": "globally",
    "failing_class_id": "class_id",
    "failing_method_id": "method_id",
}

# What pamqp writes and reads as we do: it writes floats in single precision and knows bytes as bytearray only.
pamqp_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
)
# pamqp refuses names that RabbitMQ takes, so these stay with what both allow.
words = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.:", max_size=30)
names = words | st.just("x" * 120)

PAMQP_VALUES = {
    "shortstr": names,
    "longstr": names.map(str.encode),
    "table": tables_of(pamqp_scalars, words),
    "longlong": st.integers(0, 2**63 - 1),  # pamqp reads it as signed
}


@given(any_method)
def test_any_method_survives_encoding_and_decoding(method):
    assert decode_method(method.encode()) == method


def test_every_method_of_the_protocol_and_of_rabbitmq_is_there():
    ours = set(METHODS)
    assert ours >= set(commands.INDEX_MAPPING)
    # basic.recover-ok is in pamqp; the obsolete access class and our own extensions are only here.
    only_here = {METHODS[number].NAME for number in ours - set(commands.INDEX_MAPPING)}
    assert {name for name in only_here if not name.startswith("access.")} == {
        "basic.capacity",
        "basic.revoke",
        "basic.revoke-ok",
    }


@pytest.mark.parametrize("cls", ALL_METHODS, ids=lambda cls: cls.NAME)
def test_every_method_can_be_made_from_defaults(cls):
    assert decode_method(cls().encode()) == cls()


@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")
@pytest.mark.parametrize("number", sorted(commands.INDEX_MAPPING), ids=lambda number: METHODS[number].NAME)
def test_pamqp_and_we_agree(number):
    cls, theirs = METHODS[number], commands.INDEX_MAPPING[number]
    assert theirs.name.lower().replace(".", "") == cls.NAME.replace(".", "").replace("-", "")

    @settings(max_examples=example_count(25))
    @given(methods_of(cls, **PAMQP_VALUES))
    def agree(method):
        _, channel, decoded = frame.unmarshal(encode_frame(1, 7, method.encode()))
        assert channel == 7
        assert type(decoded) is theirs
        expected = {in_pamqp(item.name, theirs): getattr(method, item.name) for item in fields(method)}
        for name, value in expected.items():
            assert as_text(getattr(decoded, name)) == as_text(value)
        try:
            made = theirs(**{name: as_text(value) for name, value in expected.items()})
            encoded = made.marshal()
        except ValueError:
            return  # a value that pamqp's own rules forbid, such as a virtual host over 127 characters
        assert decode_method(number.to_bytes(4, "big") + encoded) == method

    agree()


def in_pamqp(name, theirs):
    return name if name in theirs.attributes() else NAMES_IN_PAMQP[name]


def as_text(value):
    return value.decode() if isinstance(value, bytes) else value


def test_reserved_arguments_are_written_as_zeros_and_never_shown():
    assert BasicPublish("e", "k").encode() == b"\x00\x3c\x00\x28" + b"\x00\x00" + b"\x01e\x01k\x00"
    assert BasicPublish("e", "k") == decode_method(b"\x00\x3c\x00\x28" + b"\x12\x34" + b"\x01e\x01k\x00")


def test_bits_next_to_each_other_share_an_octet():
    assert AccessRequest("r", True, False, False, False, True).encode()[-1] == 0b10001
    declare = ExchangeDeclare("e", "topic", durable=True, internal=True)
    assert declare.encode()[-5] == 0b01010
    assert BasicConsume("q", "t", exclusive=True).encode()[-5] == 0b0100


@pytest.mark.parametrize(
    "method",
    [
        QueueDeclare("q" * 256),
        QueueBind("q", "e", "é" * 128),
        QueueDeclare("q", arguments={"k": object()}),
        QueueDeclare(5),
        BasicConsume("q", arguments=None),
    ],
)
def test_a_value_that_does_not_fit_is_our_error_and_names_the_argument(method):
    with pytest.raises(EncodeError, match=r"queue\.|basic\.consume"):
        method.encode()


@given(short_strings)
def test_a_short_string_takes_255_bytes_of_utf8(text):
    assert QueueDeclare(text).encode()[7 : 7 + len(text.encode())] == text.encode()


@settings(max_examples=example_count(300))
@given(st.sampled_from(ALL_METHODS), st.binary(max_size=80))
def test_random_arguments_are_a_method_or_an_error(cls, data):
    number = (cls.class_id << 16 | cls.method_id).to_bytes(4, "big")
    try:
        method = decode_method(number + data, "strict")
    except DecodeError:
        return
    assert decode_method(method.encode()) == method


@given(any_method, st.data())
def test_a_method_cut_short_or_made_longer_is_an_error(method, data):
    payload = method.encode()
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(DecodeError):
        decode_method(payload[:cut])
    with pytest.raises(DecodeError):
        decode_method(payload + b"\x00")


def test_the_tags_of_a_revoke_are_64_bit_numbers_in_a_long_string():
    payload = BasicRevoke("c", True, (1, 2**40)).encode()
    assert payload == b"\x00\x3c\x01\x2c" + b"\x01c\x01" + b"\x00\x00\x00\x10" + (
        (1).to_bytes(8, "big") + (2**40).to_bytes(8, "big")
    )


def test_a_piece_of_a_tag_is_an_error():
    with pytest.raises(DecodeError, match="no whole number of delivery tags"):
        decode_method(b"\x00\x3c\x01\x2d" + b"\x00" + b"\x00\x00\x00\x09" + b"\x00" * 9)


def test_an_unknown_number_is_not_implemented():
    with pytest.raises(PeerError) as caught:
        decode_method(b"\x00\x3c\x00\x63")
    assert caught.value.reply_code == 540


def test_text_that_is_not_utf8_is_refused_by_a_server_and_carried_by_a_client():
    payload = b"\x00\x32\x00\x0b\x01\xff" + b"\x00" * 8
    with pytest.raises(DecodeError, match="UTF-8"):
        decode_method(payload, "strict")
    assert decode_method(payload).encode() == payload


@pytest.mark.parametrize(
    "method",
    [
        ConnectionStartOk(response=b"\0guest\0s3cret"),
        ConnectionSecureOk(b"s3cret"),
        ConnectionUpdateSecret(b"s3cret", "renewed"),
    ],
)
def test_secrets_are_not_shown(method):
    assert "s3cret" not in repr(method)


def test_only_the_named_role_sends_a_method():
    senders = {cls.NAME: cls.SENDER for cls in ALL_METHODS}
    assert senders["basic.publish"] is Role.CLIENT
    assert senders["basic.deliver"] is Role.SERVER
    both = {name for name, sender in senders.items() if sender is None}
    assert both == {
        "connection.close",
        "connection.close-ok",
        "channel.flow",
        "channel.flow-ok",
        "channel.close",
        "channel.close-ok",
        "basic.ack",
        "basic.nack",
        "basic.cancel",
        "basic.cancel-ok",
    }
