"""Shares of a run in several processes: files, and all tests of a server that takes seconds to start."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling


class Shares(LoadScopeScheduling):
    """Each process has whole files, in the order of the tests. All tests of a share are one process's, which starts
    their server once; `shares_file` has the share of each such test (`testing.needs.share`), as JSON."""

    def __init__(self, config: pytest.Config, log: Producer, shares_file: Path) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._shares_file = shares_file

    @cached_property
    def _shares(self) -> dict[str, str]:
        shares: dict[str, str] = json.loads(self._shares_file.read_text())
        return shares

    def _split_scope(self, nodeid: str) -> str:
        return self._shares.get(nodeid) or nodeid.partition("::")[0]
