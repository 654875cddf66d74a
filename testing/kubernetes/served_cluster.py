"""A `FakeCluster` as an API server: discovery, lists, watches and writes over HTTP, for clients that are whole.

kmock's emulator has neither server-side apply nor versions, which an operator lives on.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Self

import yaml
from aiohttp import web

from lbg_operator.kube.api import ClusterError, Object
from lbg_operator.kube.kinds import KINDS, Kind
from testing.kubernetes.discovery import discovered
from testing.kubernetes.fake_cluster import FakeCluster, Snapshot, matches

TOKEN = "the-operators-token"
GONE = 410


class ServedCluster:
    """`watching` counts the open watches of each plural; `asked` lists method and path of each request."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.watching: Counter[str] = Counter()
        self.asked: list[tuple[str, str]] = []
        self.applied: list[tuple[str, bool, Object]] = []
        """By whom, whether forced, and what."""
        self.forgets = False
        """True if a watch from an older version is ended with 410."""
        self._oldest = 0
        """Version that the server's watch cache begins with."""
        self.withheld: dict[str, asyncio.Event] = {}
        """By the plural of a kind: until then no watch of it begins."""
        self.refused: dict[str, int] = {}
        """By the plural of a kind: the status of the answer to its next watches."""
        self._told: list[tuple[Kind, int, str, Object]] = []
        self._news = asyncio.Condition()
        self._streams: set[asyncio.Task[None]] = set()
        cluster.watchers.append(self._tell)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut_watches()
        await self._runner.cleanup()

    def kubeconfig(self, directory: Path, *, token: str = TOKEN) -> Path:
        path = directory / "kubeconfig"
        told = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": token}}],
        }
        path.write_text(yaml.safe_dump(told))
        return path

    def cut_watches(self) -> None:
        """As a load balancer does: in the middle of everything."""
        for stream in self._streams:
            stream.cancel()

    def restore(self, snapshot: Snapshot, *, bump: int = 0) -> None:
        """Set the cluster back and start the API server again. Its watch cache begins then: a watch of an older
        version is ended with 410, and one of a version that is not there yet waits for it without a word (Kubernetes:
        "API Concepts", unavailable resource versions)."""
        self.cut_watches()
        self.cluster.restore(snapshot, bump=bump)
        self._told, self._oldest = [], self.cluster.version

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.strip("/")
        self.asked.append((request.method, request.path))
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        found = discovered(path, self.cluster.served)
        if found is not None:
            return web.json_response(found)
        try:
            kind, namespace, name, subresource = _place_of(path)
        except KeyError:
            return _status(404, "the server could not find the requested resource")
        try:
            if request.query.get("watch") in ("1", "true"):
                return await self._watched(request, kind, namespace)
            return await self._done(request, kind, namespace, name, subresource)
        except ClusterError as error:
            return _status(error.status or 500, str(error))

    async def _done(
        self, request: web.Request, kind: Kind, namespace: str | None, name: str, subresource: str
    ) -> web.Response:
        from lbg_operator.kube.client import APPLY  # takes long to load: not when the tests are collected

        cluster, media = self.cluster, request.headers.get("Content-Type", "")
        body = await request.json() if request.can_read_body else {}
        found: Object | None
        match request.method:
            case "GET" if name:
                found = await cluster.read(kind, namespace, name)
            case "GET":
                items = [
                    one
                    for one in await cluster.select(kind, namespace, request.query.get("labelSelector", ""))
                    if _is_named(request, one)
                ]
                metadata = {"resourceVersion": str(cluster.version)}
                found = {"kind": f"{kind.kind}List", "metadata": metadata, "items": list(items)}
            case "PATCH" if media == APPLY:
                query = request.query
                self.applied.append((query["fieldManager"], query.get("force", "").lower() == "true", body))
                found = await cluster.apply(body)
            case "PATCH":
                found = await cluster.merge(kind, namespace, name, body, subresource=subresource)
            case "POST":
                found = await cluster.create(body)
            case "DELETE":
                there = cluster.objects.get((kind, namespace, name))
                uid = body.get("preconditions", {}).get("uid")
                if there is not None and uid not in (None, there["metadata"]["uid"]):
                    return _status(409, f"Precondition failed: UID in precondition: {uid}")
                await cluster.delete(kind, str(namespace), name)
                found = {"kind": "Status", "status": "Success"} if there else None
            case _:
                return _status(405, "the server does not allow this method")
        return (
            _status(404, f"{kind.plural} {name!r} not found") if found is None else web.json_response(found)
        )

    async def _watched(self, request: web.Request, kind: Kind, namespace: str | None) -> web.StreamResponse:
        if kind.plural in self.withheld:
            await self.withheld[kind.plural].wait()
        if kind.plural in self.refused:
            return _status(self.refused[kind.plural], "refused")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        stream = asyncio.create_task(self._stream(response, request, kind, namespace))
        self._streams.add(stream)
        self.watching[kind.plural] += 1
        try:
            await stream
        except asyncio.CancelledError:
            if not stream.cancelled():
                stream.cancel()
                raise
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.watching[kind.plural] -= 1
            self._streams.discard(stream)
        return response

    async def _stream(
        self, response: web.StreamResponse, request: web.Request, kind: Kind, namespace: str | None
    ) -> None:
        version = int(request.query.get("resourceVersion") or self.cluster.version)
        selector = request.query.get("labelSelector", "")
        if version < self._oldest or (self.forgets and version < self.cluster.version):
            error = {
                "kind": "Status",
                "status": "Failure",
                "code": GONE,
                "message": "too old resource version",
            }
            await response.write(_line("ERROR", error))
            return
        sent = 0
        with suppress(ConnectionError):
            while True:
                for one, at, word, seen in self._told[sent:]:
                    is_here = namespace in (None, seen["metadata"].get("namespace"))
                    is_meant = is_here and matches(selector, seen) and _is_named(request, seen)
                    if one is kind and at > version and is_meant:
                        await response.write(_line(word, seen))
                sent = len(self._told)
                async with self._news:
                    while len(self._told) == sent:
                        await self._news.wait()

    def _tell(self, kind: Kind, seen: Object, is_gone: bool) -> None:
        is_known = any(
            one is kind and there["metadata"]["uid"] == seen["metadata"]["uid"]
            for one, _, _, there in self._told
        )
        word = "DELETED" if is_gone else "MODIFIED" if is_known else "ADDED"
        self._told.append((kind, int(seen["metadata"]["resourceVersion"]), word, seen))
        asyncio.get_running_loop().create_task(self._wake())

    async def _wake(self) -> None:
        async with self._news:
            self._news.notify_all()


def _is_named(request: web.Request, seen: Object) -> bool:
    """By a field selector, of which this server knows `metadata.name=`."""
    name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
    return not name or seen["metadata"]["name"] == name


def _place_of(path: str) -> tuple[Kind, str | None, str, str]:
    """Raises KeyError for a path of nothing that is served."""
    root, *parts = path.split("/")
    api_version = "/".join(parts[:2]) if root == "apis" else "".join(parts[:1])
    rest = parts[2:] if root == "apis" else parts[1:]
    namespace = rest[1] if len(rest) > 2 and rest[0] == "namespaces" else None
    plural, name, subresource = [*(rest[2:] if namespace else rest), "", "", ""][:3]
    for kind in KINDS:
        if (kind.api_version, kind.plural) == (api_version, plural):
            return kind, namespace, name, subresource
    raise KeyError(path)


def _status(code: int, message: str) -> web.Response:
    told = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
    return web.json_response(told, status=code)


def _line(word: str, seen: Object) -> bytes:
    return json.dumps({"type": word, "object": seen}).encode() + b"\n"
