"""An application beside `lbg sidecar` with LBG_APP=stream: `python stream_client.py http://127.0.0.1:8750/v1/stream`."""

import asyncio
import base64
import sys

import aiohttp

from lbg_sidecar.stream_client import consume


async def handle(message: dict) -> None:
    data = (
        message["data"] if "data" in message else base64.b64decode(message["data_base64"])
    )  # base64: not text
    print(message["key"], data, flush=True)  # key: None without one


async def main(url: str) -> None:
    while True:
        try:
            await consume(url, handle, credit=256)
        except aiohttp.ClientError:
            await asyncio.sleep(0.1)


asyncio.run(main(sys.argv[1]))
