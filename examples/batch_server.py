"""An application behind `lbg sidecar`: LBG_APP=http-batch LBG_TARGET=http://127.0.0.1:8080/batch and
`python batch_server.py 8080`."""

import base64
import sys

from aiohttp import web


class NoSuchOrder(Exception):
    pass


async def handle(event: dict) -> None:
    data = event["data"] if "data" in event else base64.b64decode(event["data_base64"])  # base64: not text
    print(event.get("partitionkey"), data, flush=True)  # without a key there is no partitionkey


async def batch(request: web.Request) -> web.Response:
    verdicts = []
    for event in await request.json():
        verdict = {"id": event["id"], "verdict": "ack"}
        try:
            await handle(event)
        except NoSuchOrder as error:
            verdict |= {"verdict": "drop", "reason": str(error)}
        except Exception as error:
            verdict |= {"verdict": "retry", "reason": str(error), "after_s": 2}
        verdicts.append(verdict)
    return web.json_response({"verdicts": verdicts})


app = web.Application()
app.router.add_post("/batch", batch)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
