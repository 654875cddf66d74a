"""Identities that are made at random: wide enough that no two are ever the same."""

from __future__ import annotations

import random

from lbg_core.admin.dead_letters.letter import LetterStamper
from lbg_core.admin.queue_changes import repartition_done
from lbg_core.group import EMBEDDED, Engine, GroupSpec
from lbg_core.publisher import Identity
from lbg_sidecar import MemberSettings
from lbg_sidecar.io.startup import Group, machine_of

SPEC = GroupSpec("g", "g", hash_count=5, queue_count=2, queue_size_mb=1, client_username="u")
BITS = 128


def bits_of(text: str) -> int:
    return 4 * len(text) if set(text) <= set("0123456789abcdef") else 0


def test_every_identity_has_128_random_bits() -> None:
    incarnations = [
        Identity("p").incarnation,
        LetterStamper(SPEC).publisher.removeprefix("dead-"),
    ]
    incarnations.append(repartition_done("g", 3).message.sender.incarnation)
    settings = MemberSettings(broker="amqp://localhost/", group="g")
    group = Group(SPEC, Engine.parse(EMBEDDED, "1.0"))
    machine = machine_of(settings, group, concurrency=1, chance=random.Random(1))
    machine.connected(0, 0.0)
    assert machine.roster.me is not None
    incarnations.append(machine.roster.me.incarnation)
    assert [bits_of(each) for each in incarnations] == [BITS] * len(incarnations)
    assert len(set(incarnations)) == len(incarnations)


def test_an_identity_of_an_older_publisher_is_accepted() -> None:
    assert Identity("p", incarnation="0a1b2c3d").publisher == "p-0a1b2c3d"
