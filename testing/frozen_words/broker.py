"""Words on a broker: objects of a group, headers, records, and the embedded broker's store."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import re
import sqlite3
from pathlib import Path

import aiohttp
from yarl import URL

from lbg_broker import Address
from lbg_broker.store import schema as store_schema
from lbg_core.group import Engine, names, topology
from testing.broker import embedded
from testing.frozen_words.samples import arguments, paths, sample_spec
from testing.frozen_words.words import Words


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


def sqlite_store(place: Path) -> Words:
    """The schema, and the JSON of what is defined; by a broker that has one of everything durable."""
    asyncio.run(define_everything(place / "data"))
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


async def define_everything(data_dir: Path) -> None:
    """A broker with one of everything durable, ended when it has it."""
    async with embedded.in_process(data_dir, management=Address("127.0.0.1", 0)) as server:
        login = base64.b64encode(f"{embedded.USER}:{embedded.PASSWORD}".encode()).decode()
        async with aiohttp.ClientSession(headers={"Authorization": f"Basic {login}"}) as client:

            async def define(path: str, body: object, *, method: str = "PUT") -> None:
                url = URL(f"http://{server.management_address}/api/{path}", encoded=True)
                async with client.request(method, url, json=body) as answer:
                    assert answer.status in (201, 204), path

            await define("exchanges/%2F/e", {"type": "topic", "durable": True})
            await define("queues/%2F/plain", {"durable": True})
            for kind, extra in (("partitioned", {"x-partition-count": 2}), ("sessions", {})):
                arguments = {"x-queue-type": kind, **extra}
                await define(f"queues/%2F/{kind}", {"durable": True, "arguments": arguments})
            await define("queues/%2F/grouped", {"durable": True, "arguments": {"x-group-header": "lbg-key"}})
            await define("bindings/%2F/e/e/q/plain", {"routing_key": "a"}, method="POST")
            await define("users/u", {"password": "p", "tags": ""})
            await define("permissions/%2F/u", {"configure": "", "write": "", "read": ""})
