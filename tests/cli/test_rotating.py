"""Users and passwords change under load: nobody stops, nothing is lost, nothing is out of order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from lbg_core.admin import Refused
from lbg_core.admin.management import ManagementApi, ManagementSettings, path
from lbg_core.client import ConnectionSettings
from testing.command_line import Lbg, Where, start_lbg
from testing.waiting import whole_lines

ON_RABBITMQ = pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
RATE = 500
"""Rows a second, which go on until the test has seen what it waits for."""
BACKLOG = 1000
"""Rows that may wait to be delivered. On a machine that cannot keep up, the rest of the test would wait for them."""
TIMEOUT_S = 240
"""RabbitMQ lists a connection that has ended until its next sweep, of 120 s, if it collected statistics as it ended."""

T = TypeVar("T")


class Load:
    """A publisher, two members and a validator, each a process that logs in with a password file."""

    def __init__(self, broker: Where, group: str, directory: Path) -> None:
        self.broker = broker
        self.group = group
        self.directory = directory
        self.validator = f"{group}-validator"
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.rows = 0
        """Number of rows of the publisher's input."""
        self._enough = threading.Event()
        self._feeding: threading.Thread | None = None
        self.logs = {name: directory / f"{name}.log" for name in ("validator", "m1", "m2", "publisher")}

    def start(self) -> None:
        rows = self.directory / "rows.csv"
        os.mkfifo(rows)
        self._feeding = threading.Thread(target=self._feed, args=(rows,), daemon=True)
        self._feeding.start()
        report = str(self.directory / "published.json")
        files = ("--username-file", str(self.username), "--password-file", str(self.password))
        common = ("--group", self.group, *files)
        self.set_validators_password("first-password")
        self.validators_password.write_text("first-password")
        login = ("--username", self.validator, "--password-file", str(self.validators_password))
        judging = ("validate", "--json", "--no-shards", "--group", self.group, "--expect", report)
        self._start("validator", *judging, *login)
        self.until(lambda: "listening" in (self.directory / "validator.out").read_text())
        for name in ("m1", "m2"):
            self._start(
                name, "consume", *common, "--name", name, "--republish", "--quiet", "--rebalance-delay", "0.5"
            )
        publish = ("publish", *common, "--key", "k", "--report", report, str(rows))
        self._start("publisher", *publish)
        self.until(lambda: self.delivered() > 300 and len(self.connections()) == 6)

    def _feed(self, pipe: Path) -> None:
        every_s = 0.05
        with pipe.open("w") as file:  # when the publisher has opened it
            file.write("k,n\n")
            while not self._enough.wait(every_s):
                if self.rows - self.delivered() > BACKLOG:
                    continue
                numbers = range(self.rows, self.rows + round(RATE * every_s))
                file.writelines(f"k{number % 37},{number}\n" for number in numbers)
                file.flush()
                self.rows = numbers.stop

    @property
    def username(self) -> Path:
        return self.directory / "username"

    @property
    def validators_password(self) -> Path:
        return self.directory / "validators-password"

    @property
    def password(self) -> Path:
        return self.directory / "password"

    def _start(self, name: str, *arguments: str) -> None:
        # The broker's address holds no login for those that read theirs from files.
        url = self.broker.broker.replace("guest:guest@", "")
        with (self.directory / f"{name}.out").open("w") as out, self.logs[name].open("w") as err:
            process = start_lbg(*arguments, environment={"LBG_BROKER": url}, stdout=out, stderr=err)
        self.processes[name] = process

    def set_validators_password(self, password: str) -> None:
        """The validator makes a queue of its own, so it is none of the group's users."""

        async def put(api: ManagementApi) -> None:
            vhost = ConnectionSettings.parse(self.broker.broker).vhost
            everything = {"configure": ".*", "write": ".*", "read": ".*"}
            await api.put(path("users", self.validator), {"password": password, "tags": ""})
            await api.put(path("permissions", vhost, self.validator), everything)

        self._ask(put)

    def connections(self) -> set[str]:
        """Those that clients keep: one of the publisher, one of the validator, two of each member.

        `lbg consume` tries the broker with another one before."""

        vhost = ConnectionSettings.parse(self.broker.broker).vhost

        async def listed(api: ManagementApi) -> set[str]:
            connections = await api.get(path("vhosts", vhost, "connections"))
            return {
                one["name"]
                for one in connections
                if one["user"] in self.users
                and not one.get("user_provided_name", "").startswith("lbg consume")
            }

        return self._ask(listed)

    def cut(self) -> None:
        """The broker closes every connection of the clients."""

        async def close_all(api: ManagementApi) -> None:
            for user in self.users:
                with contextlib.suppress(Refused):  # RabbitMQ fails where one ends by itself meanwhile
                    await api.delete(path("connections", "username", user))

        before = self.connections()
        while before & self.connections():
            self._ask(close_all)

    @property
    def users(self) -> tuple[str, ...]:
        return self.group, f"{self.group}-b", self.validator

    def _ask(self, what: Callable[[ManagementApi], Awaitable[T]]) -> T:
        async def run() -> T:
            api = ManagementApi(ManagementSettings.parse(self.broker.management))
            try:
                return await what(api)
            finally:
                await api.close()

        return asyncio.run(run())

    def delivered(self) -> int:
        lines = whole_lines(self.directory / "validator.out")
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return max((int(event.get("delivered", 0)) for event in events), default=0)

    def goes_on(self) -> None:
        """Wait until more is delivered than now."""
        now = self.delivered()
        self.until(lambda: self.delivered() > now + 200)

    def refused(self) -> bool:
        """True if the broker refused every client."""
        said = [log.read_text() for log in self.logs.values()]
        return all("ACCESS_REFUSED" in log for log in said)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, {
                name: log.read_text()[-500:] for name, log in self.logs.items()
            }
            for name, process in self.processes.items():
                assert process.poll() in (None, 0), (name, self.logs[name].read_text())
            time.sleep(0.05)

    def end(self) -> dict[str, object]:
        """End the rows and wait until all was judged; the members, which nothing has stopped, leave. The report."""
        self._enough.set()
        assert self._feeding is not None
        self._feeding.join(TIMEOUT_S)
        assert self.processes["validator"].wait(TIMEOUT_S) == 0
        assert self.processes["publisher"].wait(TIMEOUT_S) == 0
        for name in ("m1", "m2"):
            os.kill(self.processes[name].pid, signal.SIGTERM)
            assert self.processes[name].wait(TIMEOUT_S) == 0
        return json.loads((self.directory / "validator.out").read_text().splitlines()[-1])


@pytest.fixture
def load(lbg: Lbg, broker: Where, unique: str, tmp_path: Path) -> Iterator[Load]:
    load = Load(broker, unique, tmp_path)
    load.username.write_text(unique)
    load.password.write_text("first-password\n")
    created = lbg("group", "create", unique, "--client-password-file", str(load.password), *broker.options)
    assert created.status == 0, created.err
    yield load
    for process in load.processes.values():
        process.kill()
        process.wait()


@ON_RABBITMQ
def test_a_password_is_changed_under_load_before_anybody_has_the_new_one(
    lbg: Lbg, broker: Where, load: Load, tmp_path: Path
) -> None:
    """And every connection is cut: clients are refused until their file says the new one, and come back."""
    load.start()
    new = tmp_path / "new-password"
    new.write_text("second-password\n")
    load.set_validators_password("second-password")
    rotated = lbg("group", "rotate", load.group, "--client-password-file", str(new), *broker.options)
    assert (rotated.status, rotated.out) == (0, f"set the password of user {load.group}\n")
    load.goes_on()  # who is connected stays so
    load.cut()
    load.until(load.refused)
    load.validators_password.write_text("second-password")
    new.replace(load.password)
    load.goes_on()
    report = load.end()
    assert {name: report[name] for name in ("ok", "distinct", "lost", "order_errors")} == {
        "ok": True,
        "distinct": load.rows,
        "lost": 0,
        "order_errors": 0,
    }


@ON_RABBITMQ
def test_a_user_is_changed_under_load_without_anybody_being_refused(
    lbg: Lbg, broker: Where, load: Load
) -> None:
    """Two users at once: the one before is deleted when the last client has gone over."""
    load.start()
    after = f"{load.group}-b"
    second = load.directory / "second"
    rotate = ("group", "rotate", load.group)
    rotated = lbg(*rotate, "--client-username", after, "--write-password", str(second), *broker.options)
    assert rotated.status == 0, rotated.err
    assert f"create user {after}\n" in rotated.out
    early = lbg(*rotate, "--finish", *broker.options)
    assert early.status == 1
    assert f"user {load.group} has " in early.last_line
    assert "--force" in early.last_line
    load.goes_on()
    load.username.write_text(after)
    second.replace(load.password)
    shown = lbg("group", "show", load.group, *broker.options)
    assert f"user {after}" in shown.out
    assert f"- user {load.group} was the group's before" in shown.out
    load.cut()
    load.goes_on()
    finish: list[str] = []

    def finished() -> bool:
        said = lbg(*rotate, "--finish", *broker.options)
        finish.append(said.out + said.err)
        return said.status == 0

    load.until(finished)  # the management API forgets a connection a moment after its end
    assert finish[-1] == f"delete user {load.group}\n"
    load.goes_on()
    report = load.end()
    assert (report["ok"], report["distinct"]) == (True, load.rows)
    assert not any("ACCESS_REFUSED" in log.read_text() for log in load.logs.values())
    shown = lbg("group", "show", load.group, *broker.options)
    assert "was the group's before" not in shown.out


def test_rotating_again_gives_the_same_user_another_password(lbg: Lbg, broker: Where, unique: str) -> None:
    lbg("group", "create", unique, *broker.options)
    said = lbg("group", "rotate", unique, *broker.options)
    assert said.status == 0
    password = said.out.rpartition("password ")[2].partition(" ")[0]
    login = broker.broker.replace("guest:guest", f"{unique}:{password}")
    assert lbg("group", "show", unique, "--broker", login, "--management", broker.management).status == 0
    assert (
        lbg("group", "rotate", unique, "--finish", *broker.options).out
        == f"group {unique} has one user, nothing to do\n"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--client-username", "guest"), 1, "user 'guest' exists and is not the group's"),
        (("--client-username", "a:b"), 2, "must not contain a colon"),
        (("--finish", "--client-username", "x"), 2, "--finish goes without a new user or password"),
        (("--finish", "--write-password", "x"), 2, "--finish goes without a new user or password"),
    ],
)
def test_what_cannot_be_rotated_is_one_clear_line(
    lbg: Lbg, broker: Where, unique: str, arguments: tuple[str, ...], status: int, words: str
) -> None:
    lbg("group", "create", unique, *broker.options)
    said = lbg("group", "rotate", unique, *arguments, *broker.options)
    assert (said.status, words in said.last_line) == (status, True), said.err


def test_a_group_that_is_not_there_cannot_be_rotated(lbg: Lbg, broker: Where) -> None:
    said = lbg("group", "rotate", "nobody", *broker.options)
    assert (said.status, "there is no group 'nobody'" in said.last_line) == (1, True)


def test_a_deleted_group_takes_every_user_it_had_with_it(lbg: Lbg, broker: Where, unique: str) -> None:
    lbg("group", "create", unique, *broker.options)
    lbg("group", "rotate", unique, "--client-username", f"{unique}-b", *broker.options)
    assert lbg("group", "delete", unique, *broker.options).status == 0
    again = lbg("group", "create", unique, *broker.options)
    assert "password" in again.out  # the user is new
    assert lbg("group", "delete", unique, *broker.options).status == 0
