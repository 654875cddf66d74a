"""`lbg console` whose login and authority are files of a Secret, which may be made later than its pod."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import trustme

from lbg_broker import Address, AdministratorFiles, Server, TlsSettings
from lbg_console.application import Console, ConsoleSettings
from lbg_core.admin.errors import Denied
from lbg_core.client import BrokerAddress, CredentialsUnreadable, SettingsError
from lbgroup import Group, connect_admin
from testing.broker.embedded import in_process
from testing.command_line import start_lbg
from testing.console import Client
from testing.kubernetes.mounted import MountedSecret
from testing.waiting import GUARD_S, until_answer

ANY = Address("127.0.0.1", 0)


def login(password: str) -> dict[str, str]:
    return {"username": "root\n", "password": f"{password}\n"}


@asynccontextmanager
async def page_of(url: str) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        console: Any = SimpleNamespace(url=url)
        yield Client(console, session)


async def create(server: Server, name: str, password: str, cafile: Path) -> None:
    """As soon as the broker has this password of the administrator."""
    management = f"https://localhost:{server.management_port}"
    url = f"amqps://root:{password}@localhost:{server.port}/"
    async with asyncio.timeout(GUARD_S):
        while True:
            with suppress(Denied):
                async with connect_admin(url, management, cafile=cafile) as admin:
                    await admin.create_group(Group(name, hash_count=8, queue_count=2, queue_size_mb=10))
                    return


async def load_until(client: Client, path: str, text: str, *, is_there: bool = True) -> None:
    await until_answer(lambda: client.get(path), lambda page: (text in page.text) == is_there)


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    line = next(line for line in process.stderr if line.startswith("the console is at "))
    return line.split()[4].rstrip("/")


@pytest.mark.process
async def test_files_that_come_later_and_change_are_taken_without_a_restart(tmp_path: Path) -> None:
    authority, ca = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "tls.pem"))
    of_broker, mounted = (
        MountedSecret(tmp_path / "broker", **login("first")),
        MountedSecret(tmp_path / "console"),
    )
    settings = {
        "management": ANY,
        "tls": TlsSettings(tmp_path / "tls.pem", tmp_path / "tls.pem"),
        "administrator": AdministratorFiles(of_broker / "username", of_broker / "password"),
        "files_check_s": 0.02,
    }
    async with in_process(tmp_path / "data", **settings) as server:
        await create(server, "orders", "first", ca)
        process = start_lbg(
            "console",
            "--listen=127.0.0.1:0",
            f"--broker=amqps://localhost:{server.port}",
            f"--management=https://localhost:{server.management_port}",
            f"--cafile={mounted / 'ca.crt'}",
            *(f"--{one}-file={mounted / one}" for one in login("")),
        )
        async with page_of(await asyncio.to_thread(url_of, process)) as client:
            assert (await client.get("/healthz")).status == 200
            missing = f"the login file {mounted / 'username'} is not there yet"
            assert missing in (await client.get("/login")).text
            early = await client.sign_in("root", "first")
            assert (early.status, missing in early.text) == (503, True)
            mounted.put(**login("first"))
            await load_until(client, "/login", f"the certificate file {mounted / 'ca.crt'} is not there yet")
            mounted.put(**login("first"), ca_crt=ca.read_bytes())
            await load_until(client, "/login", "is not there yet", is_there=False)
            assert (await client.sign_in("root", "first")).status == 303
            await load_until(client, "/", '"group": "orders"')
            of_broker.put(**login("second"))
            mounted.put(**login("second"), ca_crt=ca.read_bytes())
            await create(server, "payments", "second", ca)
            await load_until(client, "/", '"group": "payments"')
            assert process.poll() is None


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ({"username": "", "password": "first"}, CredentialsUnreadable, "username: its first line is empty"),
        ({**login("first"), "ca_crt": "none"}, SettingsError, "ca.crt"),
    ],
)
def test_files_that_are_there_and_bad_are_refused_at_the_start(
    tmp_path: Path, bad: dict[str, str], error: type[Exception], words: str
) -> None:
    mounted = MountedSecret(tmp_path / "console", **{"ca_crt": "none", **bad})
    address = BrokerAddress(
        ("amqps://localhost",),
        (),
        cafile=mounted / "ca.crt",
        username_file=mounted / "username",
        password_file=mounted / "password",
    )
    with pytest.raises(error, match=words):
        Console(ConsoleSettings(address))
