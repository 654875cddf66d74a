"""The applications that docs/app-channels.md shows or links are in examples/, and each works beside a sidecar."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from lbg_core.publisher import GroupPublisher
from testing import ROOT
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker, free_port
from testing.command_line import clean_environment, start_lbg
from testing.member.group_load import group_spec
from testing.waiting import GUARD_S, until

PAGE = (ROOT / "docs" / "app-channels.md").read_text()
DEBIANS_NODE_MODULES = "/usr/share/nodejs"
PYTHON, NODE, SHELL = sys.executable, "node", "sh"
STREAM = {"LBG_APP": "stream"}
APPLICATIONS = {
    "push_server.js": ({"LBG_APP": "http", "LBG_TARGET": "http://127.0.0.1:{port}/"}, (NODE, "{port}")),
    "stream_client.js": (STREAM, (NODE, "ws://127.0.0.1:{local}/v1/stream")),
    "stream_client.py": (STREAM, (PYTHON, "http://127.0.0.1:{local}/v1/stream")),
    "batch_server.py": (
        {"LBG_APP": "http-batch", "LBG_TARGET": "http://127.0.0.1:{port}/batch"},
        (PYTHON, "{port}"),
    ),
    "handle_orders.sh": ({"LBG_APP": "command", "LBG_COMMAND": "sh {file}"}, None),
}
LANGUAGES = {"js": "js", "py": "python", "sh": "sh"}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_page_shows_the_file_or_links_it(name: str) -> None:
    language = LANGUAGES[name.partition(".")[2]]
    if f"(../examples/{name})" in PAGE:
        return
    assert f"```{language}\n{(ROOT / 'examples' / name).read_text()}```\n" in PAGE


@pytest.mark.parametrize("name", APPLICATIONS)
async def test_it_gets_its_messages_in_order_and_acknowledges_them_also_one_that_is_binary_without_a_key(
    name: str, embedded: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    await declare_group(embedded.url, group_spec(unique))
    environment, command = APPLICATIONS[name]
    file = ROOT / "examples" / name
    ports = {"port": str(free_port()), "local": str(free_port())}
    log = tmp_path / "log"
    settings = {
        "LBG_BROKER": embedded.url,
        "LBG_GROUP": unique,
        "LBG_LOCAL": f"127.0.0.1:{ports['local']}",
        "LBG_OBSERVED": "127.0.0.1:0",
        **{variable: value.format(file=file, **ports) for variable, value in environment.items()},
    }
    with log.open("ab") as said:
        start_lbg("sidecar", environment=settings, stdout=subprocess.DEVNULL, stderr=said.fileno())
        application = None
        if command is not None:
            program, *arguments = command
            application = await asyncio.create_subprocess_exec(
                *(program, str(file), *(each.format(**ports) for each in arguments)),
                stdout=said,
                stderr=said,
                env={**clean_environment(), "NODE_PATH": DEBIANS_NODE_MODULES},
            )
    try:
        async with GroupPublisher(embedded.url, group=unique) as publisher:
            for body in (b"one", b"two"):
                await publisher.publish(key="order 1", body=body)
            await publisher.publish(key=None, body=b"\xff\xfe")
        await until(lambda: acked(ports["local"]) == 3, what=name)
    finally:
        if application is not None:
            application.kill()
            await application.wait()
    text = log.read_text()
    assert "order 1" in text
    assert 0 < text.index("one") < text.index("two")
    assert "undefined" not in text


def acked(port: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/state", timeout=GUARD_S) as answer:
            return int(json.load(answer).get("counts", {}).get("acked", 0))
    except OSError:
        return 0
