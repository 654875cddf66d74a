"""Frozen words: everything that a rename of code must not touch, held against frozen_words.toml.

Users, stored bytes and other versions of LBG depend on these words: variables, options, exit codes, names on the wire,
JSON, journals, tables, metrics, conditions, paths, schemas, fields. They are collected from the running product.

    PYTHONPATH=tests .venv/bin/python tests/docs/test_frozen_words.py

adds new words to frozen_words.toml, of the families that are named behind it or of all. It never removes one: delete a
word by hand, with an entry in CHANGELOG.md.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import enum
import importlib
import inspect
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest


def import_product() -> None:
    """All imports of the product and of tests/support, made when the first test runs: collection stays fast."""
    global autoscaler, broker_objects, cloudevents, commands, commit_log, conditions, Credentials
    global embedded, Engine, finalizer, group_objects, journal_files, journal_record, keda, management
    global crds, member_encoding, member_messages, message_json, metrics_api, names, on_broker
    global operator_probes, operator_series, operator_settings, publish_api, publisher, run_command
    global sample_manifests, session_end, sidecar, sidecar_measures, sidecar_metrics, sidecar_routes
    global sidecar_settings, sidecar_stream, spec, state_file, state_identity, store_schema
    global SequenceSet, stream_protocol, stream_tables, topology
    import lbg_sidecar as sidecar
    from lbg_broker import journal as journal_files
    from lbg_broker import publisher
    from lbg_broker.client import Credentials
    from lbg_broker.group import Engine, SequenceSet, journal_record, names, spec, topology
    from lbg_broker.publisher import resume as state_file
    from lbg_broker.publisher import resume as state_identity
    from lbg_broker.server.management import server as management
    from lbg_broker.server.store import schema as store_schema
    from lbg_operator import crds
    from lbg_operator import settings as operator_settings
    from lbg_operator.metrics_api import server as metrics_api
    from lbg_operator.reconcile import desired as group_objects
    from lbg_operator.reconcile import group_deletion as finalizer
    from lbg_operator.reconcile import scale as session_end
    from lbg_operator.resources import autoscaler
    from lbg_operator.resources import autoscaler as keda
    from lbg_operator.resources import embedded_broker as broker_objects
    from lbg_operator.runtime import probes as operator_probes
    from lbg_operator.status import conditions
    from lbg_pipeline.verify import tables as stream_tables
    from lbg_sidecar import commit_log
    from lbg_sidecar.app import cloudevents
    from lbg_sidecar.app import cloudevents as message_json
    from lbg_sidecar.app import websocket as sidecar_stream
    from lbg_sidecar.app import websocket_protocol as stream_protocol
    from lbg_sidecar.core import protocol as member_encoding
    from lbg_sidecar.core import protocol as member_messages
    from lbg_sidecar.process import http as sidecar_routes
    from lbg_sidecar.process import metrics as sidecar_measures
    from lbg_sidecar.process import metrics as sidecar_metrics
    from lbg_sidecar.process import settings as sidecar_settings
    from lbg_sidecar.publish_api import http as publish_api
    from lbgroup.__main__ import cli as commands
    from lbgroup.commands import run as run_command
    from support.admin import group_on_broker as on_broker
    from support.broker import embedded
    from support.kubernetes import manifests as sample_manifests
    from support.operator import metrics as operator_series


ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("frozen_words.toml")
REFRESH = "PYTHONPATH=tests .venv/bin/python tests/docs/test_frozen_words.py"
TABLES_TIMEOUT_S = 900
"""Five Spark jobs, one after the other, on a machine that may be busy with others."""

Words = dict[str, set[str]]
"""By subject: a command, a table, an object."""


# --- Comparison -------------------------------------------------------------------------------------------------


def differences(family: str, frozen: Words, found: Words) -> tuple[list[str], list[str]]:
    """A line for each word that is gone, and a line for each word that is new. A change is one of both."""
    return listed(f"REMOVED {family}", frozen, found), listed(f"added {family}", found, frozen)


def listed(head: str, words: Words, others: Words) -> list[str]:
    """A line for each of `words` that `others` lacks, with the first subjects that have it."""
    subjects: dict[str, list[str]] = {}
    for subject in words:
        for word in words[subject] - others.get(subject, set()):
            subjects.setdefault(word, []).append(subject)
    return [
        f"{head}: {', '.join(places[:2])}{f' and {len(places) - 2} more' if places[2:] else ''}: {word}"
        for word, places in sorted(subjects.items())
    ]


def failure(family: str, frozen: Words, found: Words) -> str:
    """What a test fails with; empty if nothing differs."""
    gone, added = differences(family, frozen, found)
    if gone:
        gone.append("Users and stored data depend on these words: restore them.")
    if added:
        added.append(f"If the additions are meant, freeze them: {REFRESH} '{family}'")
    return "\n".join(gone + added)


def read_frozen() -> dict[str, Words]:
    found = tomllib.loads(FILE.read_text())
    return {
        family: {subject: set(words) for subject, words in subjects.items()}
        for family, subjects in found.items()
    }


def written(families: Mapping[str, Words]) -> str:
    lines = [
        "# Words that users, stored data and other versions of LBG depend on. Additions: see test_frozen_words.py."
    ]
    for family, subjects in sorted(families.items()):
        lines += ["", f"[{json.dumps(family)}]"]
        for subject, words in sorted(subjects.items()):
            lines.append(f"{json.dumps(subject)} = [")
            lines += [f"    {json.dumps(word, ensure_ascii=False)}," for word in sorted(words)]
            lines.append("]")
    return "\n".join(lines) + "\n"


# --- Collectors: a function for each family ---------------------------------------------------------------------


def environment(place: Path) -> Words:
    """Variables that a process reads, or an application finds."""
    told = RecordingEnvironment()
    operator_settings.OperatorSettings.from_environment(told)
    options = {name for _, command in walked() for option in command.params for name in envvars(option)}
    in_help = set(re.findall(r"\bLBG_[A-Z_]*[A-Z]\b", "".join(help_of(command) for _, command in walked())))
    return {
        "command line": options | in_help,
        "command line, as read": asked_by_commands(),
        "sidecar": {row.variable for row in sidecar_settings.table().values()},
        "operator": {name for name in told.asked if name.startswith("LBG_")},
        "containers of consumers": {
            variable["name"]
            for made in cluster_objects()
            for container in containers_in(made)
            for variable in container.get("env", ())
        },
    }


class RecordingEnvironment(dict[str, str]):
    """An environment that has every variable that must be there, and records all that is asked for."""

    def __init__(self, there: Mapping[str, str] | None = None) -> None:
        super().__init__(there or {})
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return "registry/image:1" if name.endswith("_IMAGE") else super().get(name, default)

    def __getitem__(self, name: str) -> str:
        return str(self.get(name))


def asked_by_commands() -> set[str]:
    """What a command that fails and one that makes a user read beside their options."""
    import click

    def fail() -> None:
        raise RuntimeError("a bug")

    nowhere = ["--broker", "amqp://127.0.0.1:1/", "--management", "http://127.0.0.1:1"]
    counts = ["--hash-count", "4", "--queue-count", "2", "--queue-size-mb", "1", "--hash-prefix", "orders"]
    told = RecordingEnvironment(os.environ)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "environ", told)
        run_command(click.Command("lbg", callback=fail), [])
        run_command(commands, ["group", "create", "orders", *counts, *nowhere])
    return {name for name in told.asked if name.startswith("LBG_")}


def command_line(place: Path) -> Words:
    """Every command with its options, arguments and choices."""
    found: Words = {
        "executables": {one.name for one in entry_points(group="console_scripts") if one.name == "lbg"}
    }
    for path, command in walked():
        above, _, name = path.rpartition(" ")
        found.setdefault(above or "executables", set()).add(name)
        for option in command.params:
            is_option = option.param_type_name == "option"
            spelled = [*option.opts, *option.secondary_opts] if is_option else [f"argument {option.nargs}"]
            choices = {f"{spelled[0]}={choice}" for choice in getattr(option.type, "choices", ())}
            found.setdefault(path, set()).update(choices, spelled)
    return found


def exit_codes(place: Path) -> Words:
    import click

    def failing(error: BaseException) -> click.Command:
        def callback() -> None:
            raise error

        return click.Command("lbg", callback=callback)

    outcomes = {
        "success": click.Command("lbg", callback=lambda: None),
        "failure": failing(OSError("no such file")),
        "internal error": failing(RuntimeError("a bug")),
        "wrong command line": failing(click.UsageError("no such option")),
        "interrupted": failing(KeyboardInterrupt()),
        "verdict": click.Command("lbg", callback=lambda: 1),
    }
    return {"lbg": {f"{outcome}: {run_command(command, [])}" for outcome, command in outcomes.items()}}


def broker_objects_of_a_group(place: Path) -> Words:
    """Exchanges, queues, bindings and permissions on each engine, as declared."""
    found: Words = {}
    for engine in ("LBG 0.1.0", "RabbitMQ 3.10.8", "RabbitMQ 4.0.5", "RabbitMQ 4.3.6"):
        product, _, version = engine.partition(" ")
        parsed = Engine.parse(product, version)
        for mode in ("Exclusive", "Partitioned", "MessageGroups", "Sessions"):
            made = topology.topology_of(sample_spec(mode), parsed)
            words = found.setdefault(f"{engine}, {mode}", set())
            for exchange in made.exchanges:
                words.add(f"exchange {exchange.name} {exchange.type} {arguments(exchange)}".rstrip())
            for queue in made.queues:
                words.add(f"queue {queue.name} {arguments(queue)}".rstrip())
            for binding in made.bindings:
                words.add(f"binding {binding.exchange} -> {binding.queue}: {binding.routing_key}")
            granted = made.permissions
            words.update(f"{right} {getattr(granted, right)}" for right in ("configure", "write", "read"))
    orders = names.Names("orders")
    mailbox, bindings = topology.mailbox_of(orders, 3)
    found["members"] = {
        f"queue {mailbox.name}",
        *(f"{one.exchange} -> {one.routing_key}" for one in bindings),
    }
    found["all names"] = {
        getattr(orders, name)
        for name, member in inspect.getmembers(type(orders))
        if isinstance(member, property)
    }
    return found


def headers(place: Path) -> Words:
    """Headers of messages, wherever they are given; and the routing keys."""
    constants = {value for value in vars(names).values() if isinstance(value, str)}
    return {
        "message": {value for value in constants if re.fullmatch(r"(lbg|x)-[a-z-]+", value)},
        "routing key": {names.binding_key("orders", 7), names.routing_key("orders", 7, "a.b")},
    }


def group_record(place: Path) -> Words:
    """The JSON of a group's attributes on its broker."""
    records = [
        sample_spec(mode).to_record() for mode in ("Exclusive", "Partitioned", "MessageGroups", "Sessions")
    ]
    records += [
        sample_spec("Exclusive").to_unfinished(),
        sample_spec("Partitioned", hash_function="murmur2").to_record(),
    ]
    return {"record": {word for record in records for word in paths(json.loads(record))}}


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


def parquet_tables(place: Path) -> Words:
    """Columns and types of what every job of the pipeline writes, and the words in columns of words."""
    import pyarrow.parquet

    made = subprocess.run(
        [sys.executable, str(Path(__file__)), "--jobs", str(place)],
        capture_output=True,
        text=True,
        timeout=TABLES_TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])},
    )
    assert made.returncode == 0, made.stdout + made.stderr
    found: Words = {}
    for file in sorted(place.glob("*-out/**/*.parquet")):
        out, table, *_ = file.relative_to(place).parts
        job = out.removesuffix("-out")
        rows = pyarrow.parquet.read_table(file)
        words = found.setdefault(f"{job} {table}", set())
        words.update(f"{column.name} {column.type}" for column in rows.schema)
        for name in {"kind", "view", "verdict", "unit", "scope", "metric"} & set(rows.schema.names):
            words.update(f"{name}={value}" for value in rows[name].to_pylist() if value is not None)
    for name, table in stream_tables.FOUND.items():  # not each of them has rows here
        columns = {f"{column.name} {column.type}" for column in table.arrow}
        found.setdefault(f"validate --stream {name}", set()).update(columns)
    for file in sorted(place.glob("*-out/*.*")):
        found.setdefault("files", set()).add(f"{file.parts[-2].removesuffix('-out')}: {file.name}")
    return found


def run_jobs(place: Path) -> None:
    """The five jobs on a small journal, in a process of their own: one session of Spark for all of them."""
    from pyspark.sql import SparkSession

    SparkSession.stop = lambda session: None
    journal_place = place / "journal"
    journal_place.mkdir()
    (journal_place / "a.jsonl").write_text("".join([*sample_journal(), "no record\n"]))
    os.utime(journal_place / "a.jsonl", (1, 1))
    spark = ["--master", "local[1]"]
    for setting in (
        "spark.sql.shuffle.partitions=1",
        "spark.driver.memory=1g",
        "spark.sql.adaptive.enabled=false",
        "spark.sql.codegen.wholeStage=false",
    ):
        spark += ["--conf", setting]
    read = ["--journal", str(journal_place)]
    jobs: dict[str, list[str]] = {
        "validate": ["validate", *read],
        "validate --stream": [
            *("validate", "--stream", "--available-now", "--checkpoint", str(place / "checkpoint"), *read)
        ],
        "profile": ["profile", *read],
        "plan": ["plan", *read, "--hash-counts", "4", "--queue-counts", "2"],
        "forecast": [
            *("forecast", "--demand", str(place / "profile-out" / "demand"), "--now", "2023-11-14T22:33:00Z"),
            *(
                "--interval",
                "1m",
                "--horizon",
                "5m",
                "--backtest",
                "1",
                "--capacity",
                "5",
                "--max-replicas",
                "3",
            ),
        ],
    }
    for name, words in jobs.items():
        status = run_command(commands, ["pipeline", *words, "--out", str(place / f"{name}-out"), *spark])
        broken = 1 if name.startswith("validate") else 0
        if status != broken or not any((place / f"{name}-out").glob("*.json")):
            sys.exit(f"{name} ended with status {status}")


def sample_journal() -> Iterator[str]:
    """Twenty minutes of three keys, with something out of order, something repeated and an overlap."""
    published, delivered = get_args(journal_record.Record)
    for number in range(40):
        at_us = 1_700_000_000_000_000 + number * 30_000_000
        lane, sequence, member = number % 3, number // 3, number % 2
        if number in (3, 6):  # the second and third message of key 0 change places
            sequence = 3 - sequence
        common = {"publisher": "p-1", "key": f"k{lane}", "hash_": lane, "queue": lane % 2, "seq": sequence}
        common |= {"published_at_us": at_us, "group": "orders", "body_bytes": 10}
        yield journal_record.encode(published(**common, confirmed_at_us=at_us + 1000))
        took_us = (
            120_000_000 if number == 20 else 4000
        )  # and meets the next one of its key at the other member
        times = {"delivered_at_us": at_us + 2000, "started_at_us": at_us + 3000}
        times |= {"finished_at_us": at_us + took_us, "settled_at_us": at_us + took_us + 1000}
        whose = {"member": member, "member_name": f"m{member}", "incarnation": "i", "redelivered": False}
        end = {"attempts": 1, "verdict": "ack"}
        for again in range(2 if number == 30 else 1):
            delivery = 2 * number + again
            yield journal_record.encode(delivered(**common, **times, **whose, **end, delivery=delivery))


def metrics(place: Path) -> Words:
    """Names, kinds and labels."""
    operator = operator_series.series_of_operator()
    return {
        part: {f"{name} {kind} {{{', '.join(labels)}}}" for name, (kind, _, labels) in series.items()}
        for part, series in (("sidecar", sidecar_metrics.SERIES), ("operator", operator))
    }


def condition_words(place: Path) -> Words:
    """Types, and the reasons of each status."""
    found: Words = {
        "types": {str(one) for one in conditions.Type},
        "statuses": {str(one) for one in conditions.State},
    }
    for reason in conditions.Reason:
        told = conditions.Condition(reason).as_json(generation=1, since="")
        found.setdefault(told["type"], set()).add(f"{told['status']} {told['reason']}")
        found.setdefault("fields", set()).update(told)
    return found


def http_paths(place: Path) -> Words:
    """Methods and paths of every listener."""
    nothing: Any = None
    defined = {
        "sidecar, local": sidecar_routes.local_routes(nothing, nothing, nothing),
        "sidecar, observed": sidecar_routes.observed_routes(nothing, nothing, nothing),
        "sidecar, publish": publish_api.routes(nothing),
    }
    found = {part: {f"{one.method} {one.path}" for one in routes} for part, routes in defined.items()}
    found["sidecar, local"].add(f"GET {sidecar_stream.PATH} {stream_protocol.SUBPROTOCOL}")
    found["embedded broker, management"] = served(management.application(nothing))
    api = metrics_api.application(nothing, nothing, within_s=1.0, now=nothing)
    found["operator, external metrics"] = served(api)
    found["operator, probes"] = asyncio.run(probes_of_operator())
    return found


async def probes_of_operator() -> set[str]:
    from aiohttp import web
    from prometheus_client import CollectorRegistry

    made: list[web.Application] = []

    class Recorded(web.AppRunner):
        def __init__(self, app: web.Application, **settings: Any) -> None:
            made.append(app)
            super().__init__(app, **settings)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(web, "AppRunner", Recorded)
        serving = operator_probes.health_server(
            CollectorRegistry(), dead=lambda: "", unready=lambda: "", host="127.0.0.1", port=0
        )
        async with serving:
            (app,) = made
            return served(app)


def served(app: Any) -> set[str]:
    return {
        f"{route.method} {route.resource.canonical}"
        for route in app.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }


def sqlite_store(place: Path) -> Words:
    """The schema, and the JSON of what is defined; by a broker that has one of everything durable."""
    with embedded.EmbeddedBroker(place / "data") as broker:
        api = f"{broker.management_url}/api"
        put(api, "exchanges/%2F/e", {"type": "topic", "durable": True})
        put(api, "queues/%2F/plain", {"durable": True})
        for kind, extra in (("partitioned", {"x-partition-count": 2}), ("sessions", {})):
            put(api, f"queues/%2F/{kind}", {"durable": True, "arguments": {"x-queue-type": kind, **extra}})
        put(api, "queues/%2F/grouped", {"durable": True, "arguments": {"x-group-header": "lbg-key"}})
        put(api, "bindings/%2F/e/e/q/plain", {"routing_key": "a"}, method="POST")
        put(api, "users/u", {"password": "p", "tags": ""})
        put(api, "permissions/%2F/u", {"configure": "", "write": "", "read": ""})
    (file,) = (place / "data").glob("*.sqlite3")
    with sqlite3.connect(file) as database:
        tables = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        (owner,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        defined = database.execute("SELECT kind, key, value FROM definition").fetchall()
    found: Words = {
        "file": {file.name, f"application_id {owner:#x}", f"user_version {version}"},
        "tables": set(),
    }
    found["tables"] = {" ".join(sql.split()) for (sql,) in tables}
    found["positions"] = {f"{store_schema.POSITION_BITS} bits of a row's id"}
    for kind, key, value in defined:
        words = found.setdefault(f"definition {kind}", set())
        value = json.loads(value)
        words |= {f"value {word}" for word in (paths(value) or {type(value).__name__})}
        if key.startswith("["):
            words.add(f"key of {len(json.loads(key))} parts")
    return found


def put(api: str, path: str, body: object, *, method: str = "PUT") -> None:
    scheme, login, place = re.split(r"//|@", api)
    request = urllib.request.Request(
        f"{scheme}//{place}/{path}",
        json.dumps(body).encode(),
        {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status in (201, 204)


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


def python_names(place: Path) -> Words:
    """What programs import, with the parameters and public attributes of each."""
    found: Words = {}
    exported = {
        "lbg_sidecar": sidecar.__all__,
        "lbg_sidecar.inbox": importlib.import_module("lbg_sidecar.inbox").__all__,
        "lbg_sidecar.inbox.postgres": ["PostgresInbox"],
        "lbgroup": importlib.import_module("lbgroup").__all__,
    }
    for module, exports in exported.items():
        for export in exports:
            thing = getattr(importlib.import_module(module), export)
            if (
                module == "lbgroup" and export in sidecar.__all__
            ):  # with its attributes it is among lbg_sidecar's
                found.setdefault(module, set()).add(export)
                continue
            words = {export, *(f"{export}({parameter})" for parameter in parameters(thing))}
            if inspect.isclass(thing):
                inherited = {
                    name for base in (Exception, str) if issubclass(thing, base) for name in dir(base)
                }
                words |= {
                    f"{export}.{name}" for name in set(dir(thing)) - inherited if not name.startswith("_")
                }
            found.setdefault(module, set()).update(words - INTERNAL)
    inboxes = [getattr(importlib.import_module(path), name) for path, name in INBOXES]
    found["inbox tables"] = {
        str(one.default) for inbox in inboxes for one in inspect.signature(inbox).parameters.values()
    }
    return found


INTERNAL = {
    *(f"AppChannel.{name}" for name in ("abort", "describe", "limit", "start", "stop", "wake", "withdraw")),
    *(
        f"CommandChannel.{name}"
        for name in ("abort", "describe", "limit", "start", "stop", "wake", "withdraw")
    ),
    *("CommandChannel(down_grace_s)", "CommandChannel(uniform)"),
    *("Member(contact)", "Member(observer)", "Member.count", "Member.heard_at"),
    *(f"Group.{name}" for name in ("altered", "from_record", "from_unfinished", "parse", "limits_clients")),
    *("Group.attributes", "Group.to_record", "Group.to_unfinished", "GroupAdmin(admin)"),
    *("Publisher.failed", "Publisher.is_opened", "Publisher.publish_soon", "Publisher.require_usable"),
    *("Message(held)", "Message(group)", "Message.held", "Message.delivery"),
}
"""Of exported classes, and for the product alone."""
INBOXES = (("lbg_sidecar.inbox", "SQLiteInbox"), ("lbg_sidecar.inbox.postgres", "PostgresInbox"))


def parameters(thing: Any) -> list[str]:
    if not callable(thing) or isinstance(thing, enum.EnumMeta):
        return []
    try:
        return [name for name in inspect.signature(thing).parameters if name not in ("args", "kwargs")]
    except ValueError:  # of a class of the interpreter's own
        return []


def crd_fields(place: Path) -> Words:
    """Fields of every custom resource, with their enumerated values."""
    import yaml

    found: Words = {}
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(file.read_text())
        kinds, group = crd["spec"]["names"], crd["spec"]["group"]
        words = found.setdefault(f"{kinds['kind']}.{group}", {kinds["plural"], *kinds["shortNames"]})
        for version in crd["spec"]["versions"]:
            words.add(version["name"])
            words |= {f"column {one['name']}" for one in version["additionalPrinterColumns"]}
            words |= {f"subresource {one}" for one in version["subresources"]}
            words |= set(fields_of(version["schema"]["openAPIV3Schema"], ""))
    return found


def fields_of(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        where = f"{path}.{name}".lstrip(".")
        yield where
        yield from (f"{where}={choice}" for choice in field.get("enum", ()))
        yield from fields_of(field, where)
        items = field.get("items", {})
        yield from (f"{where}[]={choice}" for choice in items.get("enum", ()))
        yield from fields_of(items, f"{where}[]")


def kubernetes_objects(place: Path) -> Words:
    """Names, labels, annotations, keys, ports and volumes of what the operator makes: selectors and Secrets depend."""
    found: Words = {"finalizers and annotations": {finalizer.FINALIZER, session_end.ENDING}}
    for made in cluster_objects():
        metadata = made["metadata"]
        words = found.setdefault(f"{made['kind']} {metadata['name']}", set())
        words |= {f"label {name}" for name in metadata.get("labels", {})}
        words |= {f"annotation {name}" for name in metadata.get("annotations", {})}
        words |= {f"key {name}" for part in ("data", "stringData") for name in made.get(part, {})}
        for container in containers_in(made):
            words.add(f"container {container['name']}")
            words |= {f"port {one['name']}" for one in container.get("ports", ()) if "name" in one}
            words |= {f"mount {one['mountPath']}" for one in container.get("volumeMounts", ())}
            if container["name"] != "app":
                words |= {f"argument {one}" for one in container.get("args", container.get("command", ()))}
    return found


def application(place: Path) -> Words:
    """What a live member shows, and what its application gets of a message in each way to reach it."""
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

    with embedded.EmbeddedBroker(place / "data") as broker:
        group = sample_spec("Exclusive")
        await on_broker.declare_group(broker.url, group)
        settings = sidecar.MemberSettings(broker=broker.url, group=group.name)
        async with sidecar.Member(settings, handle) as member, asyncio.timeout(120):
            running = asyncio.ensure_future(member.run())
            async with publisher.GroupPublisher(broker.url, group=group.name) as publishing:
                await publishing.publish(key="k", body=b"{}", topic="t")
                await done.wait()
            state = json.loads(json.dumps(member.state(), default=str))
            found["state"] = paths(state)
            measured = sidecar_measures.Measures(lambda: 0.0)
            exposed = sidecar_metrics.exposition(state, measured, version="sample").decode()
            labels = re.findall(r'(\w+)="([^"]*)"', exposed)
            found["values of metrics' labels"] = {
                f"{label}={value}" for label, value in labels if label != "le"
            }
            member.stop("done")
            await running
    return found


FAMILIES: Mapping[str, Callable[[Path], Words]] = {
    "environment": environment,
    "command line": command_line,
    "exit codes": exit_codes,
    "objects on the broker": broker_objects_of_a_group,
    "headers": headers,
    "group record": group_record,
    "messages between members": messages_between_members,
    "journal": journal,
    "Parquet tables": parquet_tables,
    "metrics": metrics,
    "conditions": condition_words,
    "HTTP paths": http_paths,
    "SQLite store": sqlite_store,
    "stored bytes": stored_bytes,
    "Python": python_names,
    "custom resources": crd_fields,
    "Kubernetes objects": kubernetes_objects,
    "application": application,
}


# --- Samples and walks ------------------------------------------------------------------------------------------

SAMPLE_TEXT = "sample"


def samples(kind: Any, **given: object) -> list[Any]:
    """Instances of a dataclass, from its types alone: together they have every value of its enumerations and flags."""
    made = [_filled(kind, turn, given) for turn in range(8)]
    return list({repr(one): one for one in made}.values())


def _filled(kind: Any, turn: int, given: Mapping[str, object] | None = None) -> Any:
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        values = {one.name: _filled(hints[one.name], turn) for one in dataclasses.fields(kind)}
        return kind(**values | {name: value for name, value in (given or {}).items() if name in values})
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return (
            (_filled(inner[0], turn),) if inner[1:] == (...,) else tuple(_filled(one, turn) for one in inner)
        )
    if origin is dict or origin is Mapping:
        return {SAMPLE_TEXT: _filled(inner[1], turn)}
    if type(None) in inner:
        return _filled(inner[0], turn)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)[turn % len(list(kind))]
    return {bool: turn % 2 == 0, int: 1, float: 1.0, str: SAMPLE_TEXT}[kind]


def paths(value: object, path: str = "") -> set[str]:
    """Every name in JSON with the names above it; what a list has is behind []."""
    if isinstance(value, Mapping):
        found = set()
        for name, inner in value.items():
            where = f"{path}.{name}".lstrip(".")
            found |= {where} | paths(inner, where)
        return found
    if isinstance(value, list):
        return {word for inner in value for word in paths(inner, f"{path}[]")}
    return set()


def texts(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text in JSON, with the name that it stands under."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner, path)
    elif isinstance(value, str):
        yield path, value


def sample_spec(mode: str, **given: Any) -> Any:
    counts = {} if mode in ("MessageGroups", "Sessions") else {"queue_count": 2}
    settings = {"rebalance_delay_s": 7.0, "max_handoff_s": 8.0} if mode == "Partitioned" else {}
    least = {"hash_count": 4, "queue_size_mb": 64, "client_username": "orders", "max_clients": 2}
    return spec.GroupSpec("orders", "orders", mode=mode, **counts, **settings, **least, **given)


def arguments(thing: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(thing.arguments.items()))


def walked() -> Iterator[tuple[str, Any]]:
    """Every command of `lbg`, by what is typed."""
    import click

    def walk(command: Any, path: str, parent: Any) -> Iterator[tuple[str, Any]]:
        yield path, command
        context = click.Context(command, info_name=path.split()[-1], parent=parent)
        for name in command.list_commands(context) if isinstance(command, click.Group) else ():
            yield from walk(command.get_command(context, name), f"{path} {name}", context)

    return walk(commands, "lbg", None)


def envvars(option: Any) -> Sequence[str]:
    given = option.envvar
    return () if given is None else (given,) if isinstance(given, str) else given


def help_of(command: Any) -> str:
    import click

    with click.Context(command, info_name="lbg") as context:
        return str(command.get_help(context))


def cluster_objects() -> Iterator[dict[str, Any]]:
    """Objects of a group in two modes, of its autoscaling, and of a broker."""
    settings = operator_settings.OperatorSettings(sidecar_image="s", broker_image="b", namespace="lbg-system")
    scaling = {"minReplicas": 1, "maxReplicas": 3, "targetLag": 10, "targetCPUUtilizationPercentage": 70}
    scaling = {name: value for name, value in scaling.items() if name in scaling_fields()}
    for mode in ("Exclusive", "Sessions"):
        for channel in ("HTTP", "HTTPBatch"):
            told = {"mode": mode, "consumer": sample_manifests.consumer(channel)}
            told |= {"queues": {"count": 1}} if mode == "Sessions" else {"scaling": scaling}
            group = crds.GroupManifest.parse(sample_manifests.group_manifest(told))
            scalers = [one for one in (autoscaler.autoscaler_of(group),) if one is not None]
            yield from group_objects.children_of(group, settings, has_ca=True, scalers=scalers)
            scaled = keda.scaled_object_of(group, url="https://lbg")
            if scaled is not None:
                yield from (scaled, keda.authentication_of(group))
    broker = crds.BrokerManifest.parse(sample_manifests.broker_manifest())
    yield from broker_objects.embedded_of(broker, settings, login=Credentials("admin", "x"), certificate=None)


def scaling_fields() -> set[str]:
    schema = sample_manifests.schema_of("loadbalancedgroups")
    return set(schema["properties"]["spec"]["properties"]["scaling"]["properties"])


def containers_in(made: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    pod = made.get("spec", {}).get("template", {}).get("spec", {})
    yield from pod.get("initContainers", ())
    yield from pod.get("containers", ())


# --- Tests ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _product() -> None:
    import_product()


def test_every_family_is_frozen_and_none_is_empty() -> None:
    frozen = read_frozen()
    assert frozen.keys() == FAMILIES.keys()
    assert all(words for subjects in frozen.values() for words in subjects.values())


@pytest.mark.timeout(TABLES_TIMEOUT_S + 60)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_word_is_removed_or_changed(family: str, tmp_path: Path) -> None:
    message = failure(family, read_frozen().get(family, {}), FAMILIES[family](tmp_path))
    if message:
        pytest.fail(message, pytrace=False)


def test_a_removed_word_a_changed_word_and_an_added_word_have_a_line_each() -> None:
    frozen: Words = {"sidecar": {"LBG_A", "LBG_B"}, "operator": {"LBG_C"}}
    found: Words = {"sidecar": {"LBG_A", "LBG_NEW"}}
    assert failure("environment", frozen, found).splitlines() == [
        "REMOVED environment: sidecar: LBG_B",
        "REMOVED environment: operator: LBG_C",
        "Users and stored data depend on these words: restore them.",
        "added environment: sidecar: LBG_NEW",
        f"If the additions are meant, freeze them: {REFRESH} 'environment'",
    ]
    assert failure("environment", frozen, frozen) == ""


def test_the_file_is_read_as_it_was_written() -> None:
    frozen = read_frozen()
    assert written(frozen) == FILE.read_text()


def main() -> None:
    """Adds new words of the named families to the file; `--jobs DIRECTORY`: what needs a process of its own."""
    import_product()
    if sys.argv[1:2] == ["--jobs"]:
        run_jobs(Path(sys.argv[2]))
        return
    frozen = read_frozen() if FILE.exists() else {}
    for family in sys.argv[1:] or FAMILIES:
        with tempfile.TemporaryDirectory() as place:
            found = FAMILIES[family](Path(place))
        known = frozen.setdefault(family, {})
        for lines in differences(family, known, found):
            print(*lines, sep="\n", end="\n" if lines else "")
        for subject, words in found.items():
            known.setdefault(subject, set()).update(words)
    FILE.write_text(written(frozen))


if __name__ == "__main__":
    main()
