"""Shares of a run in several processes: files, and all tests of a server that takes seconds to start."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling


class Shares(LoadScopeScheduling):
    """Each process has whole files, in the order of the tests. All tests of one server are one process's, which starts
    the server once; `servers_file` has the server of each such test, as JSON."""

    def __init__(self, config: pytest.Config, log: Producer, servers_file: Path) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._servers_file = servers_file

    @cached_property
    def _servers(self) -> dict[str, str]:
        servers: dict[str, str] = json.loads(self._servers_file.read_text())
        return servers

    def _split_scope(self, nodeid: str) -> str:
        return self._servers.get(nodeid) or nodeid.partition("::")[0]
