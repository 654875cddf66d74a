"""A member that some messages end: `python -m testing.member.crashing_member TOLD`, with these keys in JSON.

`record` is the file that each begin and end of a call is noted in; `blocking`: calls block their thread. The others are
fields of `MemberSettings`. A body `killer 9` ends the process by SIGKILL, any other that begins with `killer` by
SIGABRT.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time

from lbgroup import Member, MemberSettings, Message, run


async def main() -> None:
    told = json.loads(sys.argv[1])
    record = os.open(told.pop("record"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    blocking, name = told.pop("blocking"), told["name"]

    def note(word: str, message: Message) -> None:
        os.write(record, f"{word} {name} {message.key} {message.seq}\n".encode())

    def begin(message: Message) -> None:
        note("begin", message)
        if message.data == b"killer 9":
            os.kill(os.getpid(), signal.SIGKILL)
        if message.data.startswith(b"killer"):
            os.abort()

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.002)
        begin(message)
        await asyncio.sleep(0.002)
        note("end", message)

    def handle_blocking(message: Message) -> None:
        time.sleep(0.002)
        begin(message)
        note("end", message)

    async with Member(MemberSettings(**told), handle_blocking if blocking else handle) as member:
        await member.run()


if __name__ == "__main__":
    run(main())
