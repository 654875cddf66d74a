"""Runs in the broker's pod: prints how many messages are in the queues whose names begin with the argument."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import sys
from pathlib import Path

ADMINISTRATOR = Path("/var/run/lbg/administrator")


def main() -> None:
    login = ":".join((ADMINISTRATOR / name).read_text().strip() for name in ("username", "password"))
    unchecked = ssl._create_unverified_context()  # of the pod itself
    api = http.client.HTTPSConnection("127.0.0.1", 15671, context=unchecked, timeout=10)
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    api.request("GET", "/api/queues/%2F", headers=headers)
    queues = json.loads(api.getresponse().read())
    found = sum(queue["messages"] for queue in queues if queue["name"].startswith(sys.argv[1]))
    sys.stdout.write(f"{found}\n")


main()
