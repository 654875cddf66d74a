"""Environment of the application's command."""

from __future__ import annotations

import json
import sys

import pytest

from lbg_sidecar.app.command import has_ended, spawn
from testing.waiting import GUARD_S

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.mark.process
async def test_the_command_gets_no_password_of_its_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LBG_BROKER", "amqp://user:pass@host")
    monkeypatch.setenv("LBG_CLIENT_PASSWORD", "pass")
    monkeypatch.setenv("LBG_GROUP", "orders")
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:pass@host")
    process = await spawn([sys.executable, "-c", SHOW])
    assert process.stdout is not None
    environment = json.loads(await process.stdout.readline())
    assert await has_ended(process, GUARD_S)
    assert not {"LBG_BROKER", "LBG_CLIENT_PASSWORD"} & environment.keys()
    assert environment["LBG_GROUP"] == "orders"
    assert environment["DATABASE_URL"] == "postgresql://user:pass@host"
