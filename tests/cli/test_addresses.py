"""Addresses of a broker: several of them, virtual hosts of any name, logins from files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from urllib.parse import quote

import pytest

from lbg_core.admin.management import ManagementApi, ManagementSettings, path
from lbg_core.client import BrokerAddress
from lbgroup.options import management_of
from testing.command_line import Lbg, start_lbg
from testing.rabbitmq.node import RabbitNode
from testing.waiting import GUARD_S

NOBODY = "amqp://guest:guest@127.0.0.1:1/"
DOWN = "http://127.0.0.1:1"


def place(node: RabbitNode, vhost: str) -> str:
    """Make the virtual host; its AMQP address."""

    async def run() -> None:
        api = ManagementApi(ManagementSettings.parse(node.management_url))
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        await api.put(path("vhosts", vhost), {})
        await api.put(path("permissions", vhost, "guest"), everything)
        await api.close()

    asyncio.run(run())
    return node.amqp_url + quote(vhost, safe="")


@pytest.mark.parametrize("kind", ["eu/prod.1", "ü ber,all%2F"])
def test_every_command_works_in_a_virtual_host_of_any_name_at_the_first_address_that_answers(
    lbg: Lbg, rabbitmq: RabbitNode, unique: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = place(rabbitmq, f"{kind}{unique}")
    nobody = NOBODY + url.rpartition("/")[2]
    broker = ("--broker", f"{nobody},{nobody}", "--broker", url)
    management = ("--management", f"{DOWN}, {rabbitmq.management_url}")
    report, rows = tmp_path / "published.json", tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"k": {number % 5}}}\n' for number in range(40)))

    created = lbg("group", "create", unique, "--queue-count", "2", *broker, *management)
    assert created.status == 0, created.err
    monkeypatch.setenv("LBG_BROKER", f"{nobody},{url}")
    monkeypatch.setenv("LBG_MANAGEMENT", f"{DOWN},{rabbitmq.management_url}")
    published = lbg("publish", "--group", unique, "--key", "k", "--report", str(report), str(rows))
    assert published.status == 0, published.err
    environment = {"LBG_BROKER": f"{nobody},{url}"}
    validator = start_lbg(
        "validate", "--json", "--group", unique, "--expect", str(report), environment=environment
    )
    assert validator.stdout is not None
    while "listening" not in validator.stdout.readline():
        pass
    member = start_lbg("consume", "--group", unique, "--republish", "--quiet", environment=environment)
    out, err = validator.communicate(timeout=GUARD_S)
    assert (validator.returncode, json.loads(out.splitlines()[-1])["distinct"]) == (0, 40), err
    os.kill(member.pid, signal.SIGTERM)
    assert (member.communicate(timeout=GUARD_S), member.returncode)[1] == 0
    assert [group["group"] for group in json.loads(lbg("group", "list", "--json").out)] == [unique]
    shown = json.loads(lbg("group", "show", unique, "--json").out)
    assert (shown["ready"], shown["problems"]) == (0, [])
    rotated = lbg("group", "rotate", unique)
    assert rotated.status == 0, rotated.err
    deleted = lbg("group", "delete", unique)
    assert deleted.status == 0, deleted.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["group", "show", "g"],
        ["group", "rotate", "g"],
        ["validate", "--group", "g"],
        ["consume", "--group", "g", "--connect-timeout", "0.1"],
    ],
    ids=" ".join,
)
def test_where_no_address_answers_each_is_named_without_its_password(lbg: Lbg, arguments: list[str]) -> None:
    said = lbg(*arguments, "--broker", "amqp://a:s3cret@127.0.0.1:1/,amqp://b:s3cret@localhost:1/")
    assert said.status == 1
    assert said.err.count("\n") == 1 or arguments[0] == "validate"
    assert "localhost:1" in said.last_line
    assert "s3cret" not in said.err


def test_where_no_management_api_answers_each_is_named(lbg: Lbg, rabbitmq: RabbitNode, unique: str) -> None:
    down = ("--management", f"{DOWN},http://localhost:1")
    said = lbg("group", "create", unique, "--broker", rabbitmq.new_vhost(), *down)
    assert said.status == 1
    assert "http://127.0.0.1:1 cannot be reached: Connection refused; " in said.last_line
    assert "http://localhost:1 cannot be reached: Connection refused; " in said.last_line


def test_a_management_api_that_is_down_is_told_in_one_line_and_what_needs_amqp_only_goes_on(
    lbg: Lbg, rabbitmq: RabbitNode, unique: str, tmp_path: Path
) -> None:
    broker = ("--broker", rabbitmq.new_vhost())
    down = ("--management", DOWN)
    created = lbg("group", "create", unique, "--no-user", *broker, *down)
    assert (created.status, created.err.count("\n")) == (0, 1)
    assert (
        "not checked: users, permissions, bindings, policies, prefixes (the management API at" in created.err
    )
    (tmp_path / "rows.csv").write_text("k,n\na,1\nb,2\n")
    assert lbg("publish", "--group", unique, "--key", "k", *broker, str(tmp_path / "rows.csv")).status == 0
    shown = lbg("group", "show", unique, *broker, *down)
    assert (shown.status, shown.err) == (0, "")
    assert "- users, permissions, bindings, policies, prefixes: unknown (the management API at" in shown.out
    for needs_it in (
        ("group", "list"),
        ("group", "rotate", unique),
        ("group", "delete", unique, "--force", "--yes"),
    ):
        refused = lbg(*needs_it, *broker, *down)
        assert (refused.status, refused.err.count("\n")) == (1, 1)
        assert f"{DOWN} cannot be reached: Connection refused" in refused.last_line
    assert lbg("group", "delete", unique, "--no-user", "--force", "--yes", *broker, *down).status == 0


def test_a_login_may_come_from_files_and_the_environment(
    lbg: Lbg, rabbitmq: RabbitNode, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = rabbitmq.new_vhost()
    password, rows = tmp_path / "password", tmp_path / "rows.csv"
    password.write_text("s3cret-word\n")
    rows.write_text("k,n\na,1\n")
    admin = ("--broker", url, "--management", rabbitmq.management_url)
    assert lbg("group", "create", unique, "--client-password-file", str(password), *admin).status == 0
    monkeypatch.setenv("LBG_BROKER", url.replace("guest:guest@", ""))
    monkeypatch.setenv("LBG_USERNAME", unique)
    monkeypatch.setenv("LBG_PASSWORD_FILE", str(password))
    publish = ("publish", "--group", unique, "--key", "k", str(rows))
    said = lbg(*publish)
    assert (said.status, f"connected to amqp://{unique}@" in said.err) == (0, True), said.err
    monkeypatch.delenv("LBG_USERNAME")
    (tmp_path / "username").write_text(f"{unique}\n")
    monkeypatch.setenv("LBG_USERNAME_FILE", str(tmp_path / "username"))
    assert lbg(*publish).status == 0
    password.write_text("wrong")
    refused = lbg(*publish)
    assert (refused.status, "ACCESS_REFUSED" in refused.last_line) == (1, True)
    password.unlink()
    missing = lbg(*publish)
    assert missing.status == 1
    assert f"user and password cannot be read: {password}: No such file or directory" in missing.last_line


def test_an_administrators_login_may_come_from_files_for_amqp_and_management_alike(
    lbg: Lbg, rabbitmq: RabbitNode, unique: str, tmp_path: Path
) -> None:
    username, password = tmp_path / "username", tmp_path / "password"
    username.write_text("guest\n")
    password.write_text("guest\n")
    broker = rabbitmq.new_vhost().replace("guest:guest@", "nobody:wrong@")
    management = rabbitmq.management_url.replace("guest:guest@", "")
    where = ("--broker", broker, "--management", management)
    files = ("--username-file", str(username), "--password-file", str(password))
    created = lbg("group", "create", unique, *where, *files)
    assert created.status == 0, created.err
    shown = json.loads(lbg("group", "show", unique, "--json", *where, *files).out)
    assert shown["problems"] == []
    rotated = lbg("group", "rotate", unique, *where, "--username", "guest", *files[2:])
    assert rotated.status == 0, rotated.err
    password.write_text("")
    refused = lbg("group", "delete", unique, *where, *files)
    assert (refused.status, refused.err.count("\n")) == (1, 1)
    assert f"user and password cannot be read: {password}: its first line is empty" in refused.last_line
    password.write_text("guest\n")
    deleted = lbg("group", "delete", unique, *where, *files)
    assert deleted.status == 0, deleted.err


def test_two_virtual_hosts_are_no_two_addresses_of_one_broker(lbg: Lbg) -> None:
    said = lbg("group", "list", "--broker", "amqp://a/one,amqp://b/two")
    assert (said.status, "different virtual hosts" in said.last_line) == (2, True)


def test_the_management_api_is_looked_for_at_every_host_of_the_broker() -> None:
    address = BrokerAddress(("amqps://u:p@one/", "amqps://u:p@[::1]:9/"))
    assert [one.url for one in management_of(address).places] == ["https://one:15671", "https://[::1]:15671"]
