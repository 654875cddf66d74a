"""A PostgreSQL server of the tests' own: a data directory, a unix socket, and no TCP port.

with PostgresServer() as server:
    psycopg.connect(server.new_database())
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from testing.waiting import GUARD_S

USER = "lbg"
STARTS_WITHIN_S = GUARD_S


class PostgresServer:
    """Started as `nobody` when the tests run as root, which PostgreSQL refuses. Without fsync: nothing here is about
    the loss of power."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="lbg-pg-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def conninfo(self) -> str:
        return self._conninfo("postgres")

    def new_database(self) -> str:
        """Creates an empty database; returns how to connect to it."""
        name = f"t{secrets.token_hex(4)}"
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self._conninfo(name)

    def _conninfo(self, database: str) -> str:
        return f"host={self._directory} user={USER} dbname={database}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(GUARD_S)
        shutil.rmtree(self._directory)

    def _start(self) -> None:
        as_whom: list[str] = []
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self._directory, nobody.pw_uid, nobody.pw_gid)
            as_whom = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        data, programs = self._directory / "data", _programs()
        subprocess.run(
            [*as_whom, programs / "initdb", "-A", "trust", "-U", USER, "--no-sync", "-D", data],
            cwd=self._directory,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(*as_whom, programs / "postgres", "-D", data, "-k", self._directory),
                    *("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=20"),
                ],
                cwd=self._directory,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                psycopg.connect(self.conninfo).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError((self._directory / "log").read_text()) from None
                time.sleep(0.05)


def _programs() -> Path:
    """Debian keeps them out of the path, a folder for each version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        raise RuntimeError("PostgreSQL's programs are not under /usr/lib/postgresql: run make dev")
    return found[-1]
