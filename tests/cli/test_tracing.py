"""Traces that commands export by the standard variables, as a collector receives them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from testing.broker.embedded import free_port
from testing.command_line import Lbg, Where, clean_environment, end_started, start_lbg
from testing.rabbitmq.node import wait_until
from testing.waiting import GUARD_S

HANDLER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    with open(sys.argv[1], "a") as noted:
        noted.write(message["traceparent"] + chr(10))
    print(json.dumps({"id": message["id"], "verdict": "ack"}), flush=True)
"""


class Collector:
    """An OTLP receiver over HTTP. `spans`: (service, span)."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        self.applied: list[dict[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path == "/v1/traces":
                    packed = self.headers.get("Content-Encoding") == "gzip"
                    collector.take(gzip.decompress(body) if packed else body)
                else:
                    collector.applied.append({name.lower(): value for name, value in self.headers.items()})
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, body: bytes) -> None:
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in of_resource.resource.attributes}
            for scope in of_resource.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]

    def of(self, service: str, name: str) -> list[Span]:
        return [span for of, span in self.spans if (of, span.name) == (service, name)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    end_started()
    collector.close()


@pytest.fixture
def group(lbg: Lbg, broker: Where, unique: str) -> str:
    assert lbg("group", "create", unique, "--no-user", *broker.options).status == 0
    return unique


def published(broker: Where, group: str, tmp_path: Path, environment: dict[str, str]) -> str:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"key": f"k{number}"}) + "\n" for number in range(5)))
    process = start_lbg(
        *("publish", "--group", group, "--key", "key", "--broker", broker.broker, str(rows)),
        environment=environment,
    )
    out, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0, err
    return out + err


@pytest.mark.process
def test_publish_consume_and_the_command_are_one_trace_each_message(
    broker: Where, group: str, collector: Collector, tmp_path: Path
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    handler, noted = tmp_path / "handler.py", tmp_path / "noted"
    handler.write_text(HANDLER)
    published(broker, group, tmp_path, environment)
    member = start_lbg(
        *("consume", "--group", group, "--broker", broker.broker, "--name", "m"),
        *("--", sys.executable, str(handler), str(noted)),
        environment={**environment, "OTEL_SERVICE_NAME": "orders"},
    )
    wait_until(lambda: len(collector.of("orders", f"process {group}")) == 5, timeout_s=GUARD_S)
    member.terminate()
    assert member.wait(GUARD_S) == 0
    sent = {span.span_id: span for span in collector.of("lbg-publish", f"send {group}")}
    assert len(sent) == 5
    calls = collector.of("orders", f"process {group}")
    assert {span.parent_span_id for span in calls} == sent.keys()
    assert all(span.trace_id == sent[span.parent_span_id].trace_id for span in calls)
    assert sorted(line[:-3] for line in noted.read_text().split()) == sorted(
        f"00-{span.trace_id.hex()}-{span.span_id.hex()}" for span in calls
    )


@pytest.mark.process
def test_a_sidecar_traces_what_it_publishes_and_pushes(
    broker: Where, group: str, collector: Collector, lbg: Lbg
) -> None:
    local, observed = free_port(), free_port()
    environment = {
        "LBG_BROKER": broker.broker,
        "LBG_GROUP": group,
        "LBG_APP": "http",
        "LBG_TARGET": f"{collector.url}/app",
        "LBG_LOCAL": f"127.0.0.1:{local}",
        "LBG_OBSERVED": f"127.0.0.1:{observed}",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces",
    }
    sidecar = start_lbg("sidecar", environment=environment)
    request = urllib.request.Request(
        f"http://127.0.0.1:{local}/v1/publish/{group}?key=acme",
        data=b"{}",
        headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    )

    def is_accepted() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=GUARD_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_until(is_accepted, timeout_s=GUARD_S)
    wait_until(lambda: bool(collector.applied), timeout_s=GUARD_S)
    sidecar.terminate()
    assert sidecar.wait(GUARD_S) == 0, "the last spans are flushed"
    (sent,) = collector.of("lbg-sidecar", f"send {group}")
    (called,) = collector.of("lbg-sidecar", f"process {group}")
    assert (sent.trace_id.hex(), sent.parent_span_id.hex()) == (
        "0af7651916cd43dd8448eb211c80319c",
        "b7ad6b7169203331",
    )
    assert (called.trace_id, called.parent_span_id) == (sent.trace_id, sent.span_id)
    expected = f"00-{called.trace_id.hex()}-{called.span_id.hex()}-01"
    assert collector.applied[0]["traceparent"] == expected
    assert collector.applied[0]["ce-traceparent"] == expected


@pytest.mark.process
def test_a_collector_that_is_away_costs_a_line_and_no_message(
    broker: Where, group: str, tmp_path: Path
) -> None:
    said = published(
        broker, group, tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    )
    assert "confirmed" in said
    assert "Traceback" not in said
    assert said.count("traces are not exported") <= 1


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            "OTEL_TRACES_EXPORTER is 'zipkin', but it must be otlp, console or none",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', but it must be http/protobuf: traces are exported over HTTP",
        ),
    ],
)
@pytest.mark.process
def test_what_cannot_be_followed_is_one_line(environment: dict[str, str], words: str, tmp_path: Path) -> None:
    consumer = start_lbg("consume", "--group", "g", environment=environment)
    _, err = consumer.communicate(timeout=GUARD_S)
    assert consumer.returncode == 2
    assert err.splitlines()[-1] == f"lbg: error: {words}"
    sidecar = start_lbg("sidecar", environment={**environment, "LBG_GROUP": "g", "LBG_COMMAND": "cat"})
    _, err = sidecar.communicate(timeout=GUARD_S)
    assert sidecar.returncode == 2
    assert err.splitlines()[-1] == f"lbg: error: {words}"


USED = """
import asyncio, sys
from lbg_core.publisher import GroupPublisher
from lbg_core.tracing import exporting
from lbg_sidecar import Member, MemberSettings
url, group = sys.argv[1:]

async def main():
    done = asyncio.Event()
    async def handle(message):
        done.set()
    async with Member(MemberSettings(broker=url, group=group), handle), GroupPublisher(url, group=group) as publisher:
        await publisher.publish(key="k", body=b"", topic="t")
        await done.wait()

with exporting("x", {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}):
    asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


@pytest.mark.process
def test_nothing_is_imported_unless_it_is_asked_for(broker: Where, group: str) -> None:
    used = subprocess.run(
        [sys.executable, "-c", USED, broker.broker, group],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=GUARD_S,
    )
    assert (used.stdout, used.returncode) == ("[]\n", 0), used.stderr
