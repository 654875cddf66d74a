"""The application of the tests: takes its time for each message (DELAY_MS, of the CPU BUSY_MS), and is done with it, or
refuses it (FAILS_KEY)."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DELAY_S = float(os.environ.get("DELAY_MS", "0")) / 1000
BUSY_S = float(os.environ.get("BUSY_MS", "0")) / 1000
FAILS_KEY = os.environ.get("FAILS_KEY", "")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        time.sleep(DELAY_S)
        end = time.thread_time() + BUSY_S
        while time.thread_time() < end:
            pass
        if FAILS_KEY and self.headers.get("ce-partitionkey") == FAILS_KEY:
            self.send_response(500)
            self.send_header("Content-Length", "0")
        else:
            self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 8080), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()
    sys.exit(0)


main()
