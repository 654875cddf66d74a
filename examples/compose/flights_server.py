"""An application behind `lbg sidecar` with Python's standard library alone: `python flights_server.py 8080`."""

import json
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Flights(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # LBG_HEALTH_PATH
        self.answer(200 if self.path == "/healthz" else 404)

    def do_POST(self) -> None:
        flight = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.01)  # the work
        sys.stdout.write(f"{flight['tailnum']} to {flight['dest']} at {flight['time_hour']}\n")
        self.answer(200)  # the ack

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ThreadingHTTPServer(("", int(sys.argv[1])), Flights).serve_forever()
