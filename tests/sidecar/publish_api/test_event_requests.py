from __future__ import annotations

import json
from typing import Any

import pytest

from lbg_core.group import key_of
from lbg_sidecar.app.cloudevents import BATCH_CONTENT_TYPE as BATCH
from lbg_sidecar.publish_api.request import STRUCTURED, Refused, read_events

EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order"}


def structured(**more: Any) -> bytes:
    return json.dumps(EVENT | more).encode()


def refused(body: bytes, headers: dict[str, str]) -> Refused:
    with pytest.raises(Refused) as caught:
        read_events(body, headers, {})
    return caught.value


def test_binary_mode_keeps_attributes_extensions_trace_and_content_type() -> None:
    headers = {f"ce-{name}": value for name, value in EVENT.items()}
    headers |= {"ce-partitionkey": "Z%C3%BCrich", "ce-subject": "a.b", "ce-tenant": "t"}
    headers |= {"content-type": "text/plain", "traceparent": "00-1-2-01", "accept": "*/*"}
    (event,) = read_events(b"body", headers, {})
    assert (event.key, event.topic, event.body) == ("Zürich", "a.b", b"body")
    assert event.extra.content_type == "text/plain"
    assert event.extra.headers == {f"cloudEvents:{name}": value for name, value in EVENT.items()} | {
        "cloudEvents:partitionkey": "Zürich",
        "cloudEvents:subject": "a.b",
        "cloudEvents:tenant": "t",
        "traceparent": "00-1-2-01",
    }


def test_an_event_that_knows_its_trace_is_sent_with_it_unless_the_request_has_another() -> None:
    event = structured(traceparent="00-1-2-01", tracestate="a=1")
    (made,) = read_events(event, {"content-type": STRUCTURED}, {})
    assert (made.extra.headers["traceparent"], made.extra.headers["tracestate"]) == ("00-1-2-01", "a=1")
    (sent,) = read_events(
        event, {"content-type": STRUCTURED, "traceparent": "00-1-3-01", "baggage": "u=7"}, {}
    )
    assert sent.extra.headers["traceparent"] == "00-1-3-01"
    assert sent.extra.headers["cloudEvents:traceparent"] == "00-1-2-01"
    assert sent.extra.headers["baggage"] == "u=7"
    assert "tracestate" not in sent.extra.headers


def test_structured_data_becomes_the_body() -> None:
    def body(**more: Any) -> tuple[bytes, str | None]:
        (event,) = read_events(structured(**more), {"content-type": STRUCTURED}, {})
        return event.body, event.extra.content_type

    assert body(data={"a": [1, 2**70]}) == (b'{"a":[1,1180591620717411303424]}', "application/json")
    assert body(data="text") == (b'"text"', "application/json")
    assert body(data="text", datacontenttype="text/plain") == (b"text", "text/plain")
    assert body(data_base64="AP8=", datacontenttype="image/png") == (b"\x00\xff", "image/png")
    assert body() == (b"", None)


def test_a_plain_body_has_the_key_of_query_or_header_and_no_id() -> None:
    (event,) = read_events(b"x", {"content-type": "text/csv", "lbg-key": "h"}, {"topic": "t"})
    assert (event.key, event.topic, event.id, event.extra.content_type) == ("h", "t", None, "text/csv")
    (event,) = read_events(b"x", {"lbg-key": "h"}, {"key": "q"})
    assert event.key == "q"


@pytest.mark.parametrize(
    ("given", "key"),
    [("1", "1"), (1, "1"), (True, "true"), ("", None), (None, None), (2**70, str(2**70)), ("\xff", "\xff")],
)
def test_the_key_of_an_event_is_the_text_of_its_partitionkey(given: object, key: str | None) -> None:
    (event,) = read_events(structured(partitionkey=given), {"content-type": STRUCTURED}, {})
    assert event.key == key
    if key is not None:
        assert key_of(event.extra.headers) == key


def test_a_retry_may_have_another_time_and_trace_and_not_another_body() -> None:
    headers = {"content-type": STRUCTURED}
    (first,) = read_events(structured(data=1, time="a"), headers, {})
    (again,) = read_events(structured(data=1, time="b"), headers | {"traceparent": "t"}, {})
    (other,) = read_events(structured(data=2, time="a"), headers, {})
    assert first.id == again.id == other.id
    assert first.content == again.content != other.content


@pytest.mark.parametrize(
    ("body", "media_type", "status", "told"),
    [
        (b"{", STRUCTURED, 400, "not JSON"),
        (b"[" * 100_000, STRUCTURED, 400, "not JSON"),
        (b"[]", STRUCTURED, 400, "JSON object"),
        (b"{}", BATCH, 400, "JSON array"),
        (b'{"specversion":"1.0"}', STRUCTURED, 400, "attribute id is missing"),
        (structured(specversion="0.3"), STRUCTURED, 400, "specversion"),
        (structured(Tenant="x"), STRUCTURED, 400, "'Tenant'"),
        (structured(tenant=1.5), STRUCTURED, 400, "attribute tenant"),
        (structured(tenant="\ud800"), STRUCTURED, 400, "surrogates"),
        (structured(data="\ud800", datacontenttype="text/plain"), STRUCTURED, 400, "surrogates"),
        (structured()[:-1] + b',"data":{"a":[1e400]}}', STRUCTURED, 400, "range of a double"),
        (structured(partitionkey=1.0), STRUCTURED, 400, "attribute partitionkey"),
        (structured()[:-1] + b',"partitionkey":1e400}', STRUCTURED, 400, "attribute partitionkey"),
        (structured(partitionkey="\ud800"), STRUCTURED, 400, "surrogates"),
        (structured(data=1, data_base64=""), STRUCTURED, 400, "not both"),
        (structured(data_base64="?"), STRUCTURED, 400, "Base64"),
        (structured(tenant="x" * 70_000), STRUCTURED, 400, "attributes take"),
        (structured(datacontenttype="x" * 200), STRUCTURED, 400, "180 bytes"),
        (b"", "application/cloudevents+avro", 415, "avro"),
    ],
)
def test_what_is_no_event_is_refused_with_one_line(
    body: bytes, media_type: str, status: int, told: str
) -> None:
    error = refused(body, {"content-type": media_type})
    assert error.status == status
    assert told in error.detail
    assert "\n" not in error.detail


def test_a_batch_says_which_event_is_wrong() -> None:
    body = b"[" + structured() + b',{"id":"2"}]'
    assert refused(body, {"content-type": BATCH}).index == 1


def test_a_header_that_is_not_percent_encoded_text_is_named() -> None:
    assert "ce-id" in refused(b"", {"ce-id": "%FF"}).detail
