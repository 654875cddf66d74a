"""docs/rabbitmq.md: its first commands work on a node, and the tests that the facts about RabbitMQ name are there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from testing import ROOT
from testing.rabbitmq.node import RabbitNode
from testing.terminal import Terminal

PAGE = (ROOT / "docs/rabbitmq.md").read_text()
TEST = re.compile(r"((?:[a-z_]+/)+test_[a-z_]+\.py)::(test_[a-z0-9_]+)")


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(PAGE + (ROOT / "docs/internals/rabbitmq.md").read_text())
    assert len(named) >= 18
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), (file, test)


AS_ADMINISTRATOR = "--username lbg-admin --password-file admin.password"
ADMINISTERED = (
    "lbg group list",
    "lbg group show orders",
    "lbg group create orders --no-user",
    "lbg group rotate orders --client-username orders-b --write-password b.password",
    "lbg group rotate orders --finish",
    "lbg group publisher orders --only --write-password publisher-2.password",
    "lbg group repartition orders --queues 5",
    "lbg validate --group orders --idle-timeout 1",
    "lbg dead list orders",
    "lbg dead replay orders --all --limit 1",
    "lbg dead discard orders --all --yes",
)
"""Commands of the page's administrator, after the first ones."""
DROP = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"], "verdict": "drop"}), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_administered", [False, True], ids=["alone", "and-an-administrators"])
def test_the_first_commands_lead_from_nothing_to_handled_messages(
    is_administered: bool, rabbitmq: RabbitNode, tmp_path: Path
) -> None:
    """Only the node, its ports and the virtual host are others. At the end the administrator does what it is for."""
    script = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)[0]
    removal = re.findall(r"`(lbg group delete .*?)`", PAGE, re.S)[0]
    assert script.index("apt-get") < script.index("lbg ")
    vhost = urlsplit(rabbitmq.new_vhost()).path[1:]
    for shown, here in {
        "amqp://127.0.0.1/": f"amqp://127.0.0.1:{rabbitmq.port}/{vhost}",
        "http://127.0.0.1:15672": f"http://127.0.0.1:{rabbitmq.management_port}",
        "rabbitmqctl set_permissions": f"rabbitmqctl set_permissions -p {vhost}",
    }.items():
        assert shown in script
        script = script.replace(shown, here)
    (tmp_path / "drop.py").write_text(DROP)
    dead = (
        "lbg publish --group orders --key account orders.jsonl",
        f"{{ lbg consume --group orders -- {sys.executable} drop.py & member=$!; }}",
        f"until lbg dead list orders {AS_ADMINISTRATOR} | grep -q anna; do sleep 1; done",
        "{ kill $member; wait $member; }",
    )
    administered = [f"{command} {AS_ADMINISTRATOR}" for command in ADMINISTERED]
    # RabbitMQ lists the member's connections for a moment after they have ended.
    finish = ADMINISTERED.index("lbg group rotate orders --finish")
    administered[finish] = f"until {administered[finish]}; do sleep 1; done"
    commands = [*dead, *administered] if is_administered else []
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "apt-get": "exit 0",
        "lbg": f'exec {sys.executable} -m lbgroup "$@"',
        **{name: rabbitmq.script(name) for name in ("rabbitmqctl", "rabbitmq-plugins")},
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    before = users(rabbitmq)  # of other tests
    terminal = Terminal(tmp_path, programs)
    try:
        terminal.type(script)
        terminal.shows(lambda _: len(terminal.handled) == 6)
        terminal.interrupt()
        for command in (*commands, f"{removal} --force --yes"):
            terminal.type(f"{command} || exit\n")
        terminal.leave()
    finally:
        terminal.close()
        left = users(rabbitmq) - before
        for user in left:
            rabbitmq.control("delete_user", user)
    for key in ("anna", "ben"):
        assert [json.loads(one["data"])["n"] for one in terminal.handled if one["key"] == key] == [1, 2, 3]
    assert left == {"lbg-admin"}, "the group's are deleted with it"


def users(rabbitmq: RabbitNode) -> set[str]:
    return {one["user"] for one in json.loads(rabbitmq.control("list_users", "--formatter=json"))}
