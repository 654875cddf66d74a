"""The quick reading of a delivery's headers says what the full one says, or nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbg_core.amqp import BasicProperties
from lbg_core.client import Delivery
from lbg_core.group import KEY_HEADERS
from lbg_core.publisher.stamper import HeaderEncoder, MessageOptions, StampedMessage
from lbg_sidecar.message import Stamp, full_stamp, quick_stamp, stamp_of

texts = st.text(max_size=20) | st.sampled_from(["\x07lbg-seql", "lbg-publisher", ""])
numbers = st.integers(0, 2**62)
values = texts | numbers | st.booleans() | st.none() | st.binary(max_size=5) | st.floats()


def delivery(header: bytes) -> Delivery:
    made = Delivery.__new__(Delivery)
    made.header = header
    return made


def quickly(header: bytes) -> Stamp | None:
    found = quick_stamp(header)
    return None if found is None else found[0]


@given(
    key=st.none() | texts.filter(bool),
    publisher=texts,
    seq=numbers,
    at_us=numbers,
    content_type=texts,
    extra=st.none()
    | st.builds(MessageOptions, headers=st.dictionaries(st.sampled_from(["traceparent", "lbg-seq"]), texts)),
)
def test_what_our_publisher_writes_is_read_quickly(
    key: str | None, publisher: str, seq: int, at_us: int, content_type: str, extra: MessageOptions | None
) -> None:
    message = StampedMessage(
        key=key,
        hash=3,
        queue=0,
        seq=seq,
        position=0,
        routing_key="r",
        body=b"",
        digest=0,
        sent_at_us=at_us,
        extra=extra,
    )
    header = HeaderEncoder(publisher, content_type).of(message)
    assert quickly(header) == (key, publisher, seq, at_us) == full_stamp(delivery(header))


@given(
    st.dictionaries(st.sampled_from(["lbg-key", "lbg-publisher", "lbg-seq", "lbg-ts", "other"]), values),
    st.booleans(),
)
def test_what_others_write_is_read_the_same_or_in_full(headers: dict[str, object], typed: bool) -> None:
    properties = BasicProperties(headers=headers, content_type="text/plain" if typed else None)
    header = properties.encode()
    quick = quickly(header)
    assert quick is None or quick == full_stamp(delivery(header))


def entry(name: str, value: object) -> bytes:
    return BasicProperties(headers={name: value}).encode()[6:]


@given(
    ours=st.booleans(),
    ours_key=st.none() | texts | st.binary(max_size=5),
    others=st.lists(st.tuples(st.sampled_from([*KEY_HEADERS, "other"]), values), max_size=4),
    at=st.sampled_from(["front", "behind"]),
    mode=st.none() | st.just(2),
)
def test_the_key_is_the_same_in_any_layout(
    ours: bool,
    ours_key: str | bytes | None,
    others: list[tuple[str, object]],
    at: str,
    mode: int | None,
) -> None:
    """Also where a name is there twice, and where other headers are in front of our publisher's or behind them."""
    stamp = [("lbg-publisher", "p"), ("lbg-seq", 2**40), ("lbg-ts", 2**50)] if ours else []
    stamped = [*([] if ours_key is None else [("lbg-key", ours_key)]), *stamp]
    fields = [*others, *stamped] if at == "front" else [*stamped, *others]
    table = b"".join(entry(name, value) for name, value in fields)
    rest = BasicProperties(delivery_mode=mode, correlation_id="lbg-key", message_id="\x07lbg-keyS").encode()
    header = bytes((rest[0] | 0x20,)) + rest[1:2] + len(table).to_bytes(4, "big") + table + rest[2:]
    quick = quickly(header)
    full = full_stamp(delivery(header))
    assert quick is None or quick == full
    assert stamp_of(delivery(header))[0][0] == full[0]
    if ours and at == "behind" and not isinstance(ours_key, bytes) and ours_key != "":
        assert quick is not None


@given(st.binary(max_size=80))
def test_no_bytes_make_it_fail(header: bytes) -> None:
    quick = quickly(header)
    assert quick is None or quick == full_stamp(delivery(header))
