"""RabbitMQ's recorded answers: what the embedded broker is compared with where no RabbitMQ runs.

`recorded/VERSION/KIND.jsonl` has the histories of a kind, each behind its id, with a line for each step: the request
and what RabbitMQ answered. The answers of a version hold for later ones that have none of their own.

`make record-oracle` asks a node of its own, and writes the files of its version anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings

from testing.broker.engines import Engine
from testing.oracle.conversations import CONVERSATIONS, converse
from testing.oracle.histories import ROUTES, STEPS, Step, history_of, play, routing_of
from testing.oracle.pika_side import PikaSide
from testing.rabbitmq.node import RabbitNode

COMMAND = "make record-oracle"
RECORDED = Path(__file__).parent / "recorded"
COUNT = 36
"""Of histories of each kind that are recorded."""

Version = tuple[int, ...]
Line = Any
"""A list: the request, the answer, and more by the kind."""


def identity(requests: Iterable[Any]) -> str:
    """The id of a history: a hash of what is asked."""
    return hashlib.sha256(json.dumps(list(requests)).encode()).hexdigest()[:12]


def versions() -> list[Version]:
    """Versions of RabbitMQ that have recorded answers."""
    return sorted(tuple(map(int, folder.name.split("."))) for folder in RECORDED.iterdir())


def recorded(kind: str, version: Version) -> dict[str, list[Line]]:
    """The answers of this version, or the next one before it that has any, by the id of the history."""
    of = [one for one in versions() if one <= version]
    histories: dict[str, list[Line]] = {}
    for line in _file(kind, of[-1]).read_text().splitlines() if of else []:
        one = json.loads(line)
        if isinstance(one, str):
            steps = histories[one] = []
        else:
            steps.append(one)
    assert histories, f"no {kind} are recorded: run `{COMMAND}`"
    return histories


def recording(kind: str, version: Version, requests: Iterable[Any]) -> list[Line]:
    """The answers to these requests."""
    found = recorded(kind, version).get(identity(requests))
    assert found is not None, f"RabbitMQ's answers to this are not recorded: run `{COMMAND}`"
    return found


@contextmanager
def compared(engine: Engine) -> Iterator[None]:
    """Inside the block an engine is compared with what is recorded."""
    try:
        yield
    except AssertionError as error:
        if engine.name == "rabbitmq":
            error.add_note(
                f"What is recorded is out of date. `{COMMAND}` records what this RabbitMQ answers."
            )
        raise


def _file(kind: str, version: Version) -> Path:
    return RECORDED / ".".join(map(str, version)) / f"{kind}.jsonl"


def _write(kind: str, version: Version, histories: Iterable[list[Line]]) -> None:
    lines: list[Any] = []
    for steps in histories:
        lines += [identity(request for request, *_ in steps), *steps]
    file = _file(kind, version)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    )
    print(f"{file}: {file.stat().st_size:,} bytes")


def record(engine: Engine) -> None:
    """Records an engine's answers. Raises AssertionError for a history that the embedded broker's core answers in
    another way, and writes nothing: such a history is to be a test in tests/oracle."""
    histories: list[list[Step]] = []

    @settings(max_examples=COUNT, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    @given(STEPS, ROUTES)
    def draw(steps: list[tuple[Any, ...]], routes: tuple[list[str], list[str]]) -> None:
        histories.extend((history_of(steps), routing_of(*routes)))

    draw()
    for history in histories:
        with PikaSide.on(engine) as side:
            play(side, history)
    _write("histories", engine.version, histories)
    _write(
        "conversations",
        engine.version,
        (
            [[step, *answer] for step, answer in zip(steps, converse(engine, steps), strict=True)]
            for steps in CONVERSATIONS.values()
        ),
    )


def main() -> int:
    with RabbitNode(statistics_s=1) as node:
        record(Engine("rabbitmq", node.port, node.management_port, node.start, node.version))
    return 0


if __name__ == "__main__":
    sys.exit(main())
