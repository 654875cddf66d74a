"""The README's commands work as written, in their order."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker.embedded import EmbeddedBroker
from support.waiting import GUARD_S

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
QUICKSTART = ROOT / "examples" / "quickstart.py"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    lines = "".join(blocks("")).splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("lbg ")]


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "data") as broker:
        monkeypatch.setenv("LBG_BROKER", broker.url)
        monkeypatch.setenv("LBG_MANAGEMENT", broker.management_url)
        monkeypatch.chdir(tmp_path)
        Path("orders.jsonl").write_text("".join(f'{{"account": "a{n % 3}", "n": {n}}}\n' for n in range(30)))
        handler = Path("handle-orders")
        handler.write_text(
            f"#!{sys.executable}\nimport json, sys\nfor line in sys.stdin:\n"
            "    message = json.loads(line)\n    open('handled', 'a').write(line)\n"
            "    print(json.dumps({'id': message['id'], 'verdict': 'ack'}), flush=True)\n"
        )
        handler.chmod(0o755)
        yield broker


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lbgroup", *command[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0, said
    return said


@pytest.mark.process
def test_every_command_of_the_readme_works_in_the_order_it_is_shown(broker: EmbeddedBroker) -> None:
    verbs = {" ".join(command[1:2]): command for command in commands()}
    assert list(verbs) == ["broker", "group", "publish", "consume"]
    served, create, publish, consume, show = commands()
    assert served[:3] == ["lbg", "broker", "serve"]  # the fixture's broker stands for it, on free ports
    finish(start(create))
    finish(start(publish))
    member = start(consume)
    handled = Path("handled")
    deadline = time.monotonic() + GUARD_S
    while not handled.exists() or len(handled.read_text().splitlines()) < 30:
        assert time.monotonic() < deadline, member.poll()
        time.sleep(0.05)
    said = finish(start(show))
    member.terminate()
    finish(member)
    assert "orders" in said
    numbers: dict[str, list[int]] = {}
    for line in handled.read_text().splitlines():
        message = json.loads(line)
        numbers.setdefault(message["key"], []).append(json.loads(message["data"])["n"])
    assert len(numbers) == 3
    assert all(of_key == sorted(of_key) and len(of_key) == 10 for of_key in numbers.values())


def test_the_python_of_the_readme_is_the_example() -> None:
    assert blocks("python") == [QUICKSTART.read_text()]
