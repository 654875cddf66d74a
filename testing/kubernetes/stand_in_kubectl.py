"""kubectl for tests: it answers from a file, and forwards ports to brokers of this machine.

`StandInKubectl` writes this module as an executable `kubectl`, with what it answers from beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

ANSWERS, CALLS = "answers.json", "calls.jsonl"


class StandInKubectl:
    """- `objects`: by NAMESPACE/RESOURCE/NAME.
    - `ports`: local ports by NAMESPACE/RESOURCE/NAME:PORT, for what can be forwarded.
    - `errors`: what kubectl prints, by its command and resource, as `get secrets`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.objects: dict[str, Any] = {}
        self.ports: dict[str, int] = {}
        self.errors: dict[str, str] = {}
        kubectl = directory / "kubectl"
        kubectl.write_text(f"#!{sys.executable}\n{Path(__file__).read_text()}")
        kubectl.chmod(0o755)

    def save(self) -> None:
        answers = {"objects": self.objects, "ports": self.ports, "errors": self.errors}
        (self.directory / ANSWERS).write_text(json.dumps(answers))

    @property
    def calls(self) -> list[dict[str, Any]]:
        """`arguments`, `environment` and `pid` of each call, in order."""
        file = self.directory / CALLS
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def commands(self) -> list[str]:
        """The arguments of each call, without options."""
        return [" ".join(one for one in call["arguments"] if not one.startswith("--")) for call in self.calls]


async def _forward(local: int, name: str, port: int) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        print(f"Handling connection for {listening}", flush=True)
        there, here = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(relay(reader, here), relay(there, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", local)
    listening = server.sockets[0].getsockname()[1]
    print(f"Forwarding from 127.0.0.1:{listening} -> {name}", flush=True)
    await server.serve_forever()


def _main(directory: Path, arguments: list[str]) -> str:
    """Returns the error."""
    call = {"arguments": arguments, "environment": dict(os.environ), "pid": os.getpid()}
    with (directory / CALLS).open("a") as calls:
        calls.write(json.dumps(call) + "\n")
    answers = json.loads((directory / ANSWERS).read_text())
    options = dict(one.lstrip("-").split("=", 1) for one in arguments if one.startswith("--") and "=" in one)
    command, *words = [one for one in arguments if not one.startswith("--")]
    namespace = options.get("namespace", "default")
    resource = words[0].partition("/")[0]
    if error := answers["errors"].get(f"{command} {resource}"):
        return str(error)
    if command == "get":
        found = answers["objects"].get(f"{namespace}/{words[0]}/{words[1]}")
        if found is None:
            return f'Error from server (NotFound): {words[0]} "{words[1]}" not found'
        print(json.dumps(found))
        return ""
    local, _, remote = words[1].rpartition(":")
    port = answers["ports"].get(f"{namespace}/{words[0]}:{remote}")
    if port is None:
        return f'Error from server (NotFound): {resource}s "{words[0].partition("/")[2]}" not found'
    asyncio.run(_forward(int(local or 0), remote, port))
    return ""


if __name__ == "__main__":
    if said := _main(Path(__file__).parent, sys.argv[1:]):
        sys.exit(said)
