"""Application of the stream channel for the conformance test; `subjects` explains the bodies.

``python -m testing.app.stream_app LOG URL SOCKET`` appends to the file LOG. SOCKET is empty for TCP.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from typing import Any

from lbg_sidecar.stream_client import consume

LOG_FILE, URL, SOCKET = sys.argv[1:]
LOG = open(LOG_FILE, "a", buffering=1)  # noqa: SIM115 (for the life of the process)


async def handle(message: dict[str, Any]) -> dict[str, Any] | None:
    body, seq, attempt = message.get("data", ""), message["seq"], message["attempt"]
    LOG.write(f"begin {seq}\n")
    word, _, rest = body.partition(" ")
    try:
        if word == "retry" and attempt < int(rest):
            return {"verdict": "retry", "reason": "busy", "after_s": 0}
        if word == "later" and attempt == 1:
            return {"verdict": "retry", "reason": "busy", "after_s": float(rest)}
        if word == "drop":
            return {"verdict": "drop", "reason": rest}
        if word == "sum":
            return {"verdict": "drop", "reason": f"{len(body)} {zlib.crc32(body.encode())}"}
        if word == "sleep" and attempt == 1:
            await asyncio.sleep(float(rest))
        return None
    finally:
        LOG.write(f"end {seq}\n")


if __name__ == "__main__":
    asyncio.run(consume(URL, handle, unix_socket=SOCKET or None))
