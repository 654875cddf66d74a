"""Messages a second with and without traces: published, and handled by a coroutine.

A publisher and a member in this process, on the embedded broker, with and without a tracer provider. Its spans are
batched, encoded for OTLP and thrown away, so that no collector is measured. The two ways take turns.
`python -m bench.tracing --messages 20000 --rounds 3`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from lbg_core.tracing import Tracing
from lbg_sidecar.member import Member, MemberSettings
from lbg_sidecar.message import Message
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker

KEYS = 1000


class Encoding(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


async def measured(broker: str, group: str, messages: int) -> tuple[float, float]:
    """Messages a second, published and handled."""
    async with GroupPublisher(broker, group=group) as publisher:
        began = time.perf_counter()
        for number in range(messages):
            await publisher.publish(key=f"k{number % KEYS}", body=b"x" * 256, topic="t")
        await publisher.flush()
        published = messages / (time.perf_counter() - began)
    left, done = messages, asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    began = time.perf_counter()
    async with Member(MemberSettings(broker=broker, group=group), handle):
        await done.wait()
        return published, messages / (time.perf_counter() - began)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Encoding(), max_queue_size=1 << 18))
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker(Path(directory)) as broker:
        spec = GroupSpec("traced", "traced", queue_count=8, queue_size_mb=100, client_username="guest")
        await declare_group(broker.url, spec)
        for _ in range(arguments.rounds):
            for is_traced in (False, True):

                def tracing(client: str, is_traced: bool = is_traced) -> Tracing | None:
                    return Tracing(provider.get_tracer("bench"), client) if is_traced else None

                with (
                    patch("lbg_core.publisher.publisher.tracing", tracing),
                    patch("lbg_sidecar.member.tracing", tracing),
                ):
                    found[is_traced].append(await measured(broker.url, "traced", arguments.messages))
    for is_traced, rates in found.items():
        published, handled = (statistics.median(one) for one in zip(*rates, strict=True))
        print(
            f"{'traced' if is_traced else 'not traced'}: published {published:,.0f}/s, handled {handled:,.0f}/s"
        )


if __name__ == "__main__":
    asyncio.run(main())
