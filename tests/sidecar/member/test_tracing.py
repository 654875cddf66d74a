"""Traces of messages, from a publisher through a member to the next publisher, on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from lbg_core.publisher import GroupPublisher, MessageOptions
from lbg_core.tracing import Tracing
from lbg_sidecar import Member, Message, Verdict, drop, retry
from testing.member.place import Place
from testing.waiting import GUARD_S, until

FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[ReadableSpan]]:
    """Spans that have ended. The provider is this test's alone: that of a process is set once."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def tracing(client: str) -> Tracing:
        return Tracing(provider.get_tracer("lbgroup"), client)

    monkeypatch.setattr("lbg_core.publisher.publisher.tracing", tracing)
    monkeypatch.setattr("lbg_sidecar.member.tracing", tracing)
    return lambda: list(exporter.get_finished_spans())


def only(spans: list[ReadableSpan], name: str) -> ReadableSpan:
    (span,) = [one for one in spans if one.name == name]
    return span


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def test_a_message_is_one_trace_from_its_publisher_through_the_handler_to_the_next(
    place: Place, exported: Callable[[], list[ReadableSpan]]
) -> None:
    seen: list[Message] = []
    group = place.spec.name

    async with GroupPublisher(place.url, group=group) as publisher:

        async def handle(message: Message) -> None:
            seen.append(message)
            if message.key == "a":
                await publisher.publish(key="b", body=b"next", topic="t")

        async with Member(place.settings("m"), handle) as member:
            await publisher.publish(key="a", body=b"first", topic="t")
            await until(lambda: member.state()["counts"]["acked"] == 2)
            await publisher.flush()
    spans = exported()
    assert len(spans) == 6
    (trace_id,) = {one.context.trace_id for one in spans if one.context is not None}
    first = next(one for one in spans if one.parent is None)
    assert (first.name, first.kind) == (f"send {group}", SpanKind.PRODUCER)
    below = [one for one in spans if parent_of(one) == first.context.span_id]
    assert sorted((one.name, one.kind) for one in below) == [
        (f"deliver {group}", SpanKind.CONSUMER),
        (f"process {group}", SpanKind.CONSUMER),
    ]
    called = only(below, f"process {group}")
    (sent_next,) = [one for one in spans if parent_of(one) == called.context.span_id]
    assert (sent_next.name, sent_next.attributes["lbg.key"]) == (f"send {group}", "b")
    delivered = only(below, f"deliver {group}")
    assert delivered.end_time is not None
    assert delivered.start_time <= delivered.end_time <= called.start_time + 10**9
    message = seen[0]
    assert dict(called.attributes) == {
        "messaging.system": "lbg",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": group,
        "messaging.client.id": "m",
        "messaging.destination.partition.id": str(message.queue),
        "messaging.message.id": message.id,
        "messaging.message.body.size": 5,
        "lbg.key": "a",
        "lbg.attempt": 1,
        "lbg.redelivered": False,
        "lbg.verdict": "ack",
    }
    assert first.attributes["messaging.message.id"] == message.id
    assert message.trace["traceparent"].split("-")[1:3] == [
        f"{trace_id:032x}",
        f"{called.context.span_id:016x}",
    ], "the application gets the context of its call"
    assert message.headers["traceparent"].split("-")[2] == f"{first.context.span_id:016x}"


async def test_each_attempt_is_a_span_with_its_error(
    place: Place, exported: Callable[[], list[ReadableSpan]]
) -> None:
    async def handle(message: Message) -> Verdict | None:
        if message.attempt == 1:
            raise RuntimeError("no database")
        return retry("busy", after_s=0.01) if message.attempt == 2 else drop("never")

    async with Member(place.settings("m"), handle) as member:
        async with GroupPublisher(place.url, group=place.spec.name) as publisher:
            await publisher.publish(key=None, body=b"x", topic="t")
        await until(lambda: member.state()["counts"]["dead_lettered"] == 1)
    calls = [one for one in exported() if one.name.startswith("process ")]
    assert [
        (one.attributes["lbg.attempt"], one.attributes["error.type"], one.status.description) for one in calls
    ] == [(1, "retry", "RuntimeError: no database"), (2, "retry", "busy"), (3, "drop", "never")]
    assert {one.status.status_code for one in calls} == {StatusCode.ERROR}
    assert not any("lbg.key" in one.attributes for one in calls)
    assert len([one for one in exported() if one.name.startswith("deliver ")]) == 1


async def test_a_message_without_a_context_begins_a_trace_at_its_member(
    place: Place, exported: Callable[[], list[ReadableSpan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_core.publisher.publisher.tracing", lambda client: None)

    async def handle(message: Message) -> None:
        pass

    async with Member(place.settings("m"), handle) as member:
        async with GroupPublisher(place.url, group=place.spec.name) as publisher:
            await publisher.publish(key="a", body=b"", topic="t")
            publisher.publish_soon(
                key="a", body=b"", topic="t", extra=MessageOptions({"traceparent": FOREIGN, "baggage": "k=v"})
            )
            await publisher.flush()
        await until(lambda: member.state()["counts"]["acked"] == 2)
    without, foreign = [one for one in exported() if one.name.startswith("process ")]
    assert without.parent is None
    assert foreign.parent is not None
    assert f"{foreign.parent.trace_id:032x}-{foreign.parent.span_id:016x}" == FOREIGN[3:-3]


async def test_the_callers_context_is_the_parent_and_a_blocking_handler_has_its_span(
    place: Place, exported: Callable[[], list[ReadableSpan]]
) -> None:
    current: list[int] = []

    def handle(message: Message) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)

    async with Member(place.settings("m"), handle) as member:
        async with GroupPublisher(place.url, group=place.spec.name) as publisher:
            publisher.publish_soon(
                key="a", body=b"", topic="t", extra=MessageOptions({"traceparent": FOREIGN, "baggage": "k=v"})
            )
            await publisher.flush()
        await until(lambda: member.state()["counts"]["acked"] == 1)
    spans = exported()
    sent = next(one for one in spans if one.name.startswith("send "))
    called = next(one for one in spans if one.name.startswith("process "))
    assert sent.parent is not None
    assert f"{sent.parent.trace_id:032x}-{sent.parent.span_id:016x}" == FOREIGN[3:-3]
    assert current == [called.context.span_id]


async def test_a_message_that_is_not_confirmed_ends_its_span_with_an_error(
    place: Place, exported: Callable[[], list[ReadableSpan]]
) -> None:
    publisher = GroupPublisher(place.url, group=place.spec.name)
    async with asyncio.timeout(GUARD_S):
        await publisher.__aenter__()
        publisher.publish_soon(key="a", body=b"", topic="t")
        await publisher.close()
    sent = only(exported(), f"send {place.spec.name}")
    assert sent.attributes["error.type"] == "unconfirmed"
