"""Requests are CloudEvents: read back with the CloudEvents SDK for Python."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider

from lbg_core.tracing import CallSpan, Tracing
from lbg_sidecar import Message
from lbg_sidecar.app.cloudevents import attributes, batch_item, binary_headers, message_json
from testing.app.application_channel import delivered

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

OWN = {
    "cloudEvents:specversion": "1.0",
    "cloudEvents:id": "order-7",
    "cloudEvents:source": "/shop",
    "cloudEvents:type": "order.placed",
    "cloudEvents_region": "eu",
}


def message(seq: int = 7, **fields: Any) -> Message:
    held = delivered(seq, **fields)
    held.calls = 1
    return Message(held, "orders")


def read_binary(sent: Message) -> BaseCloudEvent:
    return from_http_event(HTTPMessage(headers=binary_headers(sent), body=sent.data))


def read_json(sent: Message) -> BaseCloudEvent:
    return JSONFormat().read(None, batch_item(sent))


@pytest.mark.parametrize("read", [read_binary, read_json])
def test_a_message_has_the_attributes_of_an_event_and_ours_as_extensions(read: Any) -> None:
    event = read(message())
    assert event.get_id() == "p-5-7"
    assert event.get_source() == "/lbg/orders"
    assert event.get_type() == "lbg.message.v1"
    assert event.get_specversion() == "1.0"
    assert event.get_subject() == "a.b"
    assert event.get_time() == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    extensions = {
        "partitionkey": "k",
        "sequence": "0000000000000000007",
        "lbgid": "p-5-7",
        "lbgpublisher": "p",
        "lbghash": "5",
        "lbgqueue": "1",
        "lbgattempt": "1",
    }
    assert {name: event.get_extension(name) for name in extensions} == extensions


@pytest.mark.parametrize("read", [read_binary, read_json])
@pytest.mark.parametrize("key", ["ключ", 'a "b" 100%', "line\r\nbreak", "🗝", "%41"])
def test_any_key_comes_back_as_it_was(read: Any, key: str) -> None:
    assert read(message(key=key)).get_extension("partitionkey") == key


def test_what_is_no_utf_8_reaches_the_application_as_text() -> None:
    """No HTTP header can have a surrogate, so such a message could never be pushed."""
    sent = message(content_type="text/\udcff", headers={"\udcfe": {"\udcfd": 1}})
    sent.delivery.routing_key = "pre.5.\udcfc"
    assert binary_headers(sent)["Content-Type"] == r"text/\xff"
    assert read_binary(sent).get_subject() == read_json(sent).get_subject() == r"\xfc"
    assert json.loads(batch_item(sent))["datacontenttype"] == r"text/\xff"
    fields = json.loads(message_json(sent))
    assert fields == sent.as_json()
    assert (fields["topic"], fields["headers"][r"\xfe"]) == (r"\xfc", {r"\xfd": 1})
    json.dumps(fields, ensure_ascii=False).encode()


def test_sequences_sort_as_text() -> None:
    texts = [read_binary(message(seq)).get_extension("sequence") for seq in (9, 10, 100, 2)]
    assert sorted(texts) == [texts[3], texts[0], texts[1], texts[2]]


def test_the_body_of_binary_mode_is_the_message_and_its_type_goes_with_it() -> None:
    sent = message(body=b"<a/>", content_type="application/xml")
    assert binary_headers(sent)["Content-Type"] == "application/xml"
    assert binary_headers(message())["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("body", "content_type", "field"),
    [
        (b'{"n": 1.10}', "application/json", '"data":{"n": 1.10}'),
        (b"[1]", "application/vnd.a+json; charset=utf-8", '"data":[1]'),
        (b"NaN", "application/json", '"data_base64":"TmFO"'),
        (b"{", "application/json", '"data_base64":"ew=="'),
        ("grüße".encode(), "text/plain", '"data":"gr\\u00fc\\u00dfe"'),
        (b"h\xff", None, '"data_base64":"aP8="'),
        (b"", None, '"data":""'),
    ],
)
def test_data_is_json_text_or_base64(body: bytes, content_type: str | None, field: str) -> None:
    item = batch_item(message(body=body, content_type=content_type))
    assert item.endswith(f",{field}}}")
    assert json.loads(item)["datacontenttype"] == content_type or content_type is None


@pytest.mark.parametrize("read", [read_binary, read_json])
def test_an_event_keeps_the_attributes_it_was_published_with(read: Any) -> None:
    event = read(message(headers=OWN | {"cloudEvents:lbgid": "forged", "cloudEvents:Bad-Name": "x"}))
    assert (event.get_id(), event.get_source(), event.get_type()) == ("order-7", "/shop", "order.placed")
    assert event.get_extension("region") == "eu"
    assert event.get_extension("lbgid") == "p-5-7"
    assert event.get_extension("partitionkey") == "k"


def test_half_an_event_is_none() -> None:
    half = {name: value for name, value in OWN.items() if not name.endswith("source")}
    assert read_binary(message(headers=half)).get_id() == "p-5-7"


def test_trace_context_goes_into_the_event_and_the_request() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = message(headers={"traceparent": parent, "tracestate": "a=1,b=2"})
    headers = binary_headers(sent)
    assert (headers["traceparent"], headers["tracestate"]) == (parent, "a=1,b=2")
    event = read_binary(sent)
    assert (event.get_extension("traceparent"), event.get_extension("tracestate")) == (parent, "a=1,b=2")


def test_who_sent_it_last_is_the_requests_parent_and_who_made_it_the_events() -> None:
    made, sent_last = "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "00-" + "a" * 32 + "-" + "c" * 16 + "-01"
    own = {**OWN, "cloudEvents:traceparent": made, "cloudEvents:tracestate": "made=1"}
    headers = binary_headers(message(headers={**own, "traceparent": sent_last, "baggage": "user=7"}))
    assert (headers["traceparent"], headers["ce-traceparent"]) == (sent_last, made)
    assert "tracestate" not in headers, "that of another parent"
    assert headers["baggage"] == "user=7"
    alone = binary_headers(message(headers=own))
    assert (alone["traceparent"], alone["tracestate"]) == (made, "made=1")


@pytest.fixture
def process_span() -> CallSpan:
    traced = Tracing(TracerProvider().get_tracer("tests"), "m")
    known = {"queue": 1, "id": "p-5-7", "key": "k", "size": 4}
    return traced.process("orders", {}, **known, attempt=1)


@pytest.mark.parametrize("headers", [{}, {"traceparent": PARENT, "tracestate": "a=1", "baggage": "k=v"}])
def test_a_traced_call_hands_its_own_context_on_in_each_form(
    process_span: CallSpan, headers: dict[str, Any]
) -> None:
    sent = message(headers=headers)
    sent.span = process_span
    own = process_span.headers["traceparent"]
    assert read_binary(sent).get_extension("traceparent") == own
    assert read_json(sent).get_extension("traceparent") == own
    assert binary_headers(sent)["traceparent"] == own
    assert json.loads(message_json(sent))["traceparent"] == own
    assert json.loads(message_json(sent)) == sent.as_json()
    if headers:
        assert binary_headers(sent)["baggage"] == "k=v"
        assert sent.headers["traceparent"] == PARENT, "the headers are as they were sent"


def test_an_event_with_a_context_of_its_own_keeps_it_in_a_traced_call(process_span: CallSpan) -> None:
    sent = message(headers=OWN | {"cloudEvents:traceparent": PARENT})
    sent.span = process_span
    assert read_binary(sent).get_extension("traceparent") == PARENT
    assert binary_headers(sent)["traceparent"] == process_span.headers["traceparent"]


def test_baggage_of_a_batch_is_an_attribute() -> None:
    assert json.loads(batch_item(message(headers={"baggage": "user=7"})))["baggage"] == "user=7"


def test_what_would_make_a_server_refuse_the_request_is_left_out() -> None:
    headers = binary_headers(message(headers={"baggage": "a" * 8193, "tracestate": "a=1"}))
    assert not headers.keys() & {"baggage", "tracestate", "traceparent"}


def test_no_header_can_be_smuggled_in() -> None:
    sent = message(content_type="a/b\r\nX-Evil: 1", headers={"traceparent": "a=1\r\nX-Evil: 1"})
    headers = binary_headers(sent)
    assert "traceparent" not in headers
    assert not any("\r" in value or "\n" in value for value in headers.values())


@given(
    key=st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    seq=st.integers(0, 2**62),
    published_at_us=st.integers(-(2**62), 2**62),
    topic=st.sampled_from(["", ".a", ".a.b", '."%\\']),
    is_stamped=st.booleans(),
)
def test_what_is_written_by_template_is_what_the_attributes_say(
    key: str | None, seq: int, published_at_us: int, topic: str, is_stamped: bool
) -> None:
    sent = message(seq, key=key)
    sent.delivery.routing_key = f"pre.5{topic}"
    sent.in_flight.published_at_us = published_at_us
    if not is_stamped:
        sent.in_flight.identity = None
    item = json.loads(batch_item(sent))
    assert (item.pop("data"), item.pop("datacontenttype")) == ("hello", "application/octet-stream")
    assert item == attributes(sent)
    assert list(item) == list(attributes(sent))
