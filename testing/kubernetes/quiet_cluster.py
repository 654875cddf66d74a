"""A Kubernetes API with nothing in it, in which nothing happens: enough for an operator to start and to be ready."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from lbg_operator.kube.kinds import KINDS, Kind

Object = dict[str, Any]

OF_EVERY_CLUSTER = (
    Kind("v1", "Namespace", "namespaces", frozenset(), namespaced=False),
    Kind(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        frozenset(),
        namespaced=False,
    ),
)
"""kopf begins no watch before it has found these."""


@contextmanager
def quiet_cluster() -> Iterator[str]:
    """The text of a kubeconfig that leads there."""
    over = threading.Event()

    class Handler(_Answers):
        is_over = over

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield _kubeconfig(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes in the middle of an answer is nothing to tell of."""


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    is_over: threading.Event

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if "watch" in parse_qs(asked.query):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.flush()
            self.is_over.wait()
            self.close_connection = True
            return
        found = _documents().get(asked.path)
        told = found if found is not None else {"kind": "Status", "status": "Failure", "code": 404}
        body = json.dumps(told).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


def _documents() -> dict[str, Object]:
    """Readable documents: discovery, and the collections of the kinds of the operator."""
    known = (*KINDS, *OF_EVERY_CLUSTER)
    versions = {kind.api_version for kind in known}
    groups: list[Object] = []
    documents: dict[str, Object] = {"/api": {"versions": ["v1"]}, "/apis": {"groups": groups}}
    for version in sorted(versions):
        kinds = [kind for kind in known if kind.api_version == version]
        verbs = ["get", "list", "watch", "create", "patch", "delete"]
        resources = [
            {"name": kind.plural, "singularName": "", "kind": kind.kind, "namespaced": kind.namespaced, "verbs": verbs}
            for kind in kinds
        ]  # fmt: skip
        group, _, short = version.rpartition("/")
        documents[f"/apis/{version}" if group else f"/api/{version}"] = {"resources": resources}
        if group:
            told = {"groupVersion": version, "version": short}
            groups.append({"name": group, "versions": [told], "preferredVersion": told})
        for kind in kinds:
            documents[kind.path()] = {
                "apiVersion": version,
                "kind": f"{kind.kind}List",
                "metadata": {"resourceVersion": "1"},
                "items": [],
            }
    return documents


def _kubeconfig(server: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "quiet", "cluster": {"server": server}}],
            "users": [{"name": "nobody", "user": {"token": "none"}}],
            "contexts": [{"name": "quiet", "context": {"cluster": "quiet", "user": "nobody"}}],
            "current-context": "quiet",
        }
    )
