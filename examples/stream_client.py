"""An application beside `lbg sidecar` with LBG_APP=stream: `python stream_client.py http://127.0.0.1:8750/v1/stream`."""

import asyncio
import sys

import aiohttp

from lbg_sidecar.stream_client import consume


async def handle(message: dict) -> None:
    print(message["key"], message["data"], flush=True)


async def main(url: str) -> None:
    while True:
        try:
            await consume(url, handle, credit=256)
        except aiohttp.ClientError:
            await asyncio.sleep(0.1)


asyncio.run(main(sys.argv[1]))
