"""The first administrator: made by two files, kept as they say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from lbg_broker import AdministratorFiles, Server, StartError
from lbg_broker.core.permissions import Grant, User
from lbg_broker.reload import user_definition
from lbg_core.passwords import hash_password
from testing import waiting
from testing.amqp.plain_client import ClosedError, PlainClient
from testing.broker.embedded import in_process
from testing.kubernetes.mounted import MountedSecret

T = TypeVar("T")
EVERYTHING = (".*", ".*", ".*")


@pytest.fixture
def secret(tmp_path: Path) -> MountedSecret:
    return MountedSecret(tmp_path / "secret", username="ops\n", password="first\n")


def files(secret: MountedSecret) -> AdministratorFiles:
    return AdministratorFiles(secret / "username", secret / "password")


def lets_in(server: Server, user: str, password: str, *, loopback: bool = False) -> bool:
    return server.users.authenticate(user, password, loopback=loopback)


async def aside(function: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, function)


@pytest.mark.long
async def test_the_administrator_is_let_in_from_everywhere_and_guest_is_not_made(
    secret: MountedSecret, tmp_path: Path
) -> None:
    settings = {"administrator": files(secret), "close_timeout_s": 0.1}
    async with in_process(tmp_path / "data", **settings) as server:
        assert lets_in(server, "ops", "first")
        assert [(user.name, user.is_administrator) for user in server.users.all()] == [("ops", True)]
        assert server.users.all_grants() == [Grant("ops", "/", *EVERYTHING)]
        client = await aside(lambda: PlainClient(server.port, user="ops", password="first"))
        client.close()
        with pytest.raises(ClosedError):
            await aside(lambda: PlainClient(server.port))


async def test_a_password_changed_while_it_was_down_is_taken_over_at_the_start(
    secret: MountedSecret, tmp_path: Path
) -> None:
    async with in_process(tmp_path / "data", administrator=files(secret)):
        pass
    secret.put(username="ops", password="second")
    async with in_process(tmp_path / "data", administrator=files(secret)) as server:
        assert lets_in(server, "ops", "second")
        assert not lets_in(server, "ops", "first")
    async with in_process(tmp_path / "data") as server:
        assert lets_in(server, "ops", "second"), "what was taken over is on disk"


async def test_a_password_changed_while_it_runs_is_taken_up_and_connections_stay(
    secret: MountedSecret, tmp_path: Path
) -> None:
    async with in_process(tmp_path / "data", administrator=files(secret), files_check_s=0.02) as server:
        client = await aside(lambda: PlainClient(server.port, user="ops", password="first"))
        secret.put(username="ops", password="second")
        await waiting.until(lambda: lets_in(server, "ops", "second"))
        assert not lets_in(server, "ops", "first")
        assert server.session_count == 1
        await aside(client.close)


async def test_files_that_cannot_be_used_change_nothing_and_are_told_once(
    secret: MountedSecret, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbg.broker")

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "login changed" in record.getMessage()]

    async with in_process(tmp_path / "data", administrator=files(secret), files_check_s=0.01) as server:
        secret.put(username="ops", password="")
        await waiting.until(told)
        await asyncio.sleep(0.05)
        (line,) = told()
        assert "password: its first line is empty" in line
        assert lets_in(server, "ops", "first")
        secret.put(username="ops", password="second")
        await waiting.until(lambda: lets_in(server, "ops", "second"))
    assert "second" not in caplog.text


async def test_what_is_so_already_is_not_written_again(secret: MountedSecret, tmp_path: Path) -> None:
    async with in_process(tmp_path / "data", administrator=files(secret)) as server:
        hashed = server.users.get("ops")
    async with in_process(tmp_path / "data", administrator=files(secret)) as server:
        assert server.users.get("ops") == hashed


async def test_a_user_who_is_there_becomes_administrator_and_keeps_other_tags(
    secret: MountedSecret, tmp_path: Path
) -> None:
    async with in_process(tmp_path / "data") as server:
        ops = User("ops", hash_password("first"), ("monitoring",))
        server.users.put(ops)
        await server.define(user_definition(ops))
    async with in_process(tmp_path / "data", administrator=files(secret)) as server:
        found = server.users.get("ops")
        assert found is not None
        assert found.tags == ("monitoring", "administrator")
        assert server.users.grant_of("ops", "/") == Grant("ops", "/", *EVERYTHING)
        assert lets_in(server, "guest", "guest", loopback=True), "who was there before stays"
        assert not lets_in(server, "guest", "guest")


@pytest.mark.parametrize(
    ("username", "password", "words"),
    [
        ("guest", "x", "guest is let in from this machine only"),
        ("", "x", "username: its first line is empty"),
        ("ops", "", "password: its first line is empty"),
        ("ops", b"\xff", "password: its first line is not UTF-8"),
        ("o" * 256, "x", "at most 255 bytes"),
    ],
)
async def test_a_login_that_cannot_be_is_a_start_error(
    tmp_path: Path, username: str, password: str | bytes, words: str
) -> None:
    secret = MountedSecret(tmp_path / "secret", username=username, password=password)
    with pytest.raises(StartError, match=words):
        async with in_process(tmp_path / "data", administrator=files(secret)):
            pass


async def test_a_file_that_is_not_there_is_a_start_error_and_no_directory_is_made(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot read .*/none: No such file"):
        async with in_process(
            tmp_path / "data", administrator=AdministratorFiles(tmp_path / "none", tmp_path / "none")
        ):
            pass
    assert not (tmp_path / "data").exists()
