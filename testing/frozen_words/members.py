"""Words of members: what they send each other, write down, store and hand to an application."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, get_args

import lbg_sidecar as sidecar
from lbg_core import journal as journal_files
from lbg_core import publisher
from lbg_core.group import SequenceSet, journal_record
from lbg_core.publisher import resume as state_file
from lbg_core.publisher import resume as state_identity
from lbg_sidecar import commit_log
from lbg_sidecar.app import cloudevents
from lbg_sidecar.app import cloudevents as message_json
from lbg_sidecar.app import websocket_protocol as stream_protocol
from lbg_sidecar.core import message_codec as member_encoding
from lbg_sidecar.core import protocol as member_messages
from lbg_sidecar.process import metrics as sidecar_measures
from lbg_sidecar.process import metrics as sidecar_metrics
from testing.admin import group_on_broker as on_broker
from testing.broker import embedded
from testing.frozen_words.samples import SAMPLE_TEXT, paths, sample_spec, samples, texts
from testing.frozen_words.words import Words
from testing.waiting import GUARD_S


def messages_between_members(place: Path) -> Words:
    """JSON of every message, with every word of an enumeration."""
    found: Words = {"probe": paths(json.loads(member_encoding.LOOK))}
    for kind in get_args(member_messages.Message):
        for sample in samples(kind):
            body = member_encoding.encode(sample)
            assert member_encoding.decode(body) == sample
            fields = json.loads(body)
            words = found.setdefault(fields["type"], {f"v={fields['v']}"})
            words |= paths(fields)
            words |= {
                f"{name}={value}" for name, value in texts(fields) if value != SAMPLE_TEXT and name != "type"
            }
    return found


def journal(place: Path) -> Words:
    file = journal_files.open_name("p-1", opened_at_us=1_700_000_000_000_001, number=2)
    closed = journal_files.closed_path(Path(file)).name
    found: Words = {"verdicts": set(journal_record.VERDICTS), "files": {file, closed}}
    for kind in get_args(journal_record.Record):
        (sample, *_) = samples(kind, verdict="ack")
        line = journal_record.encode(sample)
        assert journal_record.decode(line) == sample
        fields = json.loads(line)
        found[fields["kind"]] = {f"v={fields['v']}"} | {
            f"{name} {type(value).__name__}" for name, value in fields.items()
        }
    return found


def stored_bytes(place: Path) -> Words:
    """Files that a process leaves and the next one reads, byte by byte."""
    slot_epoch = state_file.SlotEpoch(5, bytes(range(16)))
    slot = state_file.Slot(
        1, 2, 3, state_file.Totals(1, 2, 3, 4, 5, 6), [7], [8], slot_epoch, 9, state_file.Blob(10, 11, 12)
    )
    identity = state_identity.Identity("p", "0" * 32, 1)
    head = state_file.packed_head(b"{}")
    numbers = SequenceSet([(0, 3), (6, 7)])
    name = commit_log.packed_name(1, 2, b"p-1")
    log = commit_log.packed_head()
    return {
        "publisher's state file": {
            f"head {head.rstrip(bytes(1)).hex()}",
            f"head of {len(head)} bytes",
            f"mark {state_file.packed_mark(state_file.Mark(1, 2, bytes(range(8)))).hex()}",
            f"mark at {state_file.MARK_AT}, slots at {state_file.SLOTS_AT}, ended at {state_file.ended_at(100)}",
            f"slot {state_file.packed_slot(slot).hex()}",
            f"tag {slot_epoch.tag.hex()}",
            *(f"json {word}" for word in paths(json.loads(identity.to_json(sample_spec("Exclusive"))))),
        },
        "commit log": {
            f"head {log.hex()}",
            f"slots at {commit_log.SLOTS_AT}, of {commit_log.SLOT_BYTES} bytes, records of {commit_log.RECORD_BYTES}",
            f"name {name.hex()}",
            f"record {commit_log.packed_record(name, 4, numbers).hex()}",
        },
    }


def application(place: Path) -> Words:
    """Output of a live member, and a message of each channel to its application."""
    return asyncio.run(one_message(place))


async def one_message(place: Path) -> Words:
    """From a member that consumes one message of a group on an embedded broker."""
    found: Words = {"frames of the stream": paths(json.loads(stream_protocol.messages_frame(1, ["{}"])))}
    done = asyncio.Event()

    async def handle(received: Any) -> None:
        line = json.loads(message_json.message_json(received))
        assert line == received.as_json()
        found["command and stream"] = paths(line)
        found["CloudEvents, batch"] = paths(json.loads(cloudevents.batch_item(received)))
        found["CloudEvents, binary"] = set(cloudevents.binary_headers(received))
        found["CloudEvents, binary"].add(cloudevents.attributes(received)["type"])
        done.set()

    async with embedded.in_process(place / "data") as server:
        url = f"amqp://{embedded.USER}:{embedded.PASSWORD}@127.0.0.1:{server.port}/"
        group = sample_spec("Exclusive")
        await on_broker.declare_group(url, group)
        settings = sidecar.MemberSettings(broker=url, group=group.name)
        async with sidecar.Member(settings, handle) as member, asyncio.timeout(GUARD_S):
            running = asyncio.ensure_future(member.run())
            async with publisher.GroupPublisher(url, group=group.name) as publishing:
                await publishing.publish(key="k", body=b"{}", topic="t")
                await done.wait()
            state = json.loads(json.dumps(member.state(), default=str))
            found["state"] = paths(state)
            measured = sidecar_measures.Measures(lambda: 0.0)
            exposed = sidecar_metrics.exposition(state, measured, version="sample").decode()
            labels = re.findall(r'(\w+)="([^"]*)"', exposed)
            found["values of metrics' labels"] = {
                f"{label}={value}" for label, value in labels if label not in ("le", "group")
            }
            member.stop("done")
            await running
    return found
