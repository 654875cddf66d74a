"""`Cluster` on a real API server."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp

from lbg_operator.kube.api import CONFLICT, ClusterError, Forbidden, Invalid, Object, Terminating
from lbg_operator.kube.kinds import Kind, kind_of
from lbg_operator.kube.login import Login, log_in
from lbg_operator.resources.names import MANAGER

REQUEST_TIMEOUT_S = 20.0
WATCH_S = 300
"""A watch is asked to last so long. One that the network lost is noticed by the end that does not come."""
APPLY = "application/apply-patch+yaml"
"""JSON is YAML (Kubernetes: "Server-Side Apply")."""
MERGE = "application/merge-patch+json"
NOT_THERE = 404
FORBIDDEN = frozenset({401, 403})
INVALID = frozenset({400, 413, 422})
MISTAKES = ("failed to create typed patch object", "failed to convert new")
"""The words of server-side apply for fields and values that are none of the schema's. They come with status 500
(kubernetes/kubernetes#122480), and are no fault of the server."""
DENIED = re.compile(r'admission webhook "[^"]*" denied the request')
"""A policy's refusal, whatever status its webhook chose."""
TERMINATING = "NamespaceTerminating"
"""The cause that the API server gives for refusing new objects in a namespace that is being deleted (core/v1)."""
UNAUTHORIZED = 401
CONNECTIONS_MAX = 100
LINE_MAX_BYTES = 1 << 22
"""A watch sends an object in one line, and etcd takes objects of up to 1.5 MiB."""


async def connected() -> KubernetesCluster:
    """With the pod's service account, or else as KUBECONFIG says. Raises ClusterError."""
    return KubernetesCluster(await log_in())


class KubernetesCluster:
    """`log_in` is asked for another login when the API server does not take the last one: tokens last about an hour."""

    def __init__(self, login: Login, log_in: Callable[[], Awaitable[Login]] = log_in) -> None:
        self._login = login
        self._log_in = log_in
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
            trust_env=True,
            read_bufsize=LINE_MAX_BYTES // 2,
        )

    async def close(self) -> None:
        await self._session.close()

    async def read(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        answer: Object | None = await self._request("GET", kind, namespace, name)
        return answer

    async def version(self) -> tuple[int, int]:
        """Kubernetes' major and minor version. Raises ClusterError."""
        answer = await self._request_path("ask for the version", "GET", "/version") or {}
        digits = [
            re.match(r"\d+", answer.get(part, "")) for part in ("major", "minor")
        ]  # "33+" at some providers
        major, minor = (int(match[0]) if match else 0 for match in digits)
        return major, minor

    async def serves(self, api_version: str) -> bool:
        return await self._request_path(f"ask for {api_version}", "GET", f"/apis/{api_version}") is not None

    async def revision(self, kind: Kind, namespace: str | None) -> int:
        """The resourceVersion of a consistent list: the revision that the cluster's store has by now, which only a
        restored snapshot takes back. Raises ClusterError."""
        answer = await self._list(kind, namespace, {"limit": "1"})
        return int(answer["metadata"]["resourceVersion"])

    async def select(self, kind: Kind, namespace: str | None, selector: str) -> Sequence[Object]:
        answer = await self._list(kind, namespace, {"labelSelector": selector} if selector else {})
        items: list[Object] = answer["items"]
        for item in items:  # a list says the kind once, for all
            item.setdefault("apiVersion", kind.api_version)
            item.setdefault("kind", kind.kind)
        return items

    async def _list(self, kind: Kind, namespace: str | None, query: Mapping[str, str]) -> Object:
        answer: Object | None = await self._request("GET", kind, namespace, None, query=query)
        if answer is None:
            raise ClusterError(
                _operation("list", kind, namespace, None), "the cluster does not have this kind", status=404
            )
        return answer

    async def watch(self, kind: Kind, namespace: str, name: str) -> AsyncGenerator[Object | None]:
        selection = {"fieldSelector": f"metadata.name={name}"}
        answer = await self._request("GET", kind, namespace, None, query=selection)
        if answer is None:
            raise ClusterError(_operation("list", kind, namespace, name), "the namespace is gone", status=404)
        yield answer["items"][0] if answer["items"] else None
        query = {
            **selection,
            "watch": "true",
            "resourceVersion": answer["metadata"]["resourceVersion"],
            "timeoutSeconds": str(WATCH_S),
        }
        what = _operation("watch", kind, namespace, name)
        async with aclosing(self._lines(what, kind.path(namespace), query)) as lines:
            async for line in lines:
                event = _event_in(what, line)
                if event["type"] == "ERROR":  # too old a version, mostly: the next watch begins with a list
                    return
                yield None if event["type"] == "DELETED" else event["object"]

    async def _lines(self, what: str, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes]:
        try:
            response = await self._send("GET", path, query, within_s=WATCH_S + REQUEST_TIMEOUT_S)
            try:
                if response.status >= 400:
                    raise _error_of(what, response.status, await response.read())
                async for line in response.content:
                    if line.strip():
                        yield line
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # a line may be too long
            raise ClusterError(what, str(error) or type(error).__name__) from error

    async def apply(self, manifest: Object) -> Object:
        kind, namespace, name = _place_of(manifest)
        query = {"fieldManager": MANAGER, "force": "true"}
        applied: Object | None = await self._request(
            "PATCH", kind, namespace, name, body=manifest, media=APPLY, query=query
        )
        if applied is None:
            raise ClusterError(
                _operation("apply", kind, namespace, name), "the namespace or the kind is gone", status=404
            )
        return applied

    async def merge(
        self, kind: Kind, namespace: str | None, name: str, patch: Object, *, subresource: str = ""
    ) -> Object | None:
        patched: Object | None = await self._request(
            "PATCH",
            kind,
            namespace,
            name,
            body=patch,
            media=MERGE,
            query={"fieldManager": MANAGER},
            subresource=subresource,
        )
        return patched

    async def create(self, manifest: Object) -> Object:
        kind, namespace, _ = _place_of(manifest)
        answer: Object | None = await self._request(
            "POST", kind, namespace, None, body=manifest, query={"fieldManager": MANAGER}
        )
        if answer is None:
            raise ClusterError(
                _operation("create", kind, namespace, None), "the namespace is gone", status=404
            )
        return answer

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str | None = None) -> None:
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._request("DELETE", kind, namespace, name, body=body)
        except ClusterError as error:
            if uid is None or error.status != CONFLICT:
                raise

    async def _request(
        self,
        method: str,
        kind: Kind,
        namespace: str | None,
        name: str | None,
        *,
        body: Object | None = None,
        media: str = "application/json",
        query: Mapping[str, str] | None = None,
        subresource: str = "",
    ) -> Any:
        """The answer, None for what is not there."""
        what = _operation(method.lower(), kind, namespace, name)
        path = kind.path(namespace, name, subresource)
        return await self._request_path(what, method, path, body=body, media=media, query=query)

    async def _request_path(
        self,
        what: str,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        media: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Any:
        try:
            response = await self._send(
                method, path, query or {}, body=body, media=media, within_s=REQUEST_TIMEOUT_S
            )
            answer = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterError(what, str(error) or type(error).__name__) from error
        if response.status == NOT_THERE:
            return None
        if response.status >= 400:
            raise _error_of(what, response.status, answer)
        try:
            return json.loads(answer) if answer else {}
        except ValueError:
            raise ClusterError(
                what, f"the answer is not JSON: {answer[:200].decode(errors='replace')}"
            ) from None

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        within_s: float,
        body: Object | None = None,
        media: str = "application/json",
    ) -> aiohttp.ClientResponse:
        """Raises aiohttp.ClientError, TimeoutError, OSError and ClusterError."""

        async def sent(login: Login) -> aiohttp.ClientResponse:
            return await self._session.request(
                method,
                login.server.rstrip("/") + path,
                params=query,
                headers={"Accept": "application/json", "Content-Type": media, **login.headers},
                data=None if body is None else json.dumps(body),
                ssl=login.ssl or True,
                timeout=aiohttp.ClientTimeout(total=within_s),
            )

        response = await sent(self._login)
        if response.status == UNAUTHORIZED and (renewed := await self._log_in()) != self._login:
            response.release()
            self._login = renewed
            response = await sent(renewed)
        return response


def _place_of(manifest: Mapping[str, Any]) -> tuple[Kind, str | None, str]:
    metadata = manifest["metadata"]
    return (
        kind_of(manifest["apiVersion"], manifest["kind"]),
        metadata.get("namespace"),
        metadata.get("name", ""),
    )


def _operation(verb: str, kind: Kind, namespace: str | None, name: str | None) -> str:
    place = "/".join(part for part in (namespace, name) if part)
    return f"{verb} {kind.kind} {place}".rstrip()


def _event_in(what: str, line: bytes) -> Mapping[str, Any]:
    try:
        event: Mapping[str, Any] = json.loads(line)
        return {"type": event["type"], "object": event["object"]}
    except (ValueError, KeyError, TypeError):
        raise ClusterError(what, f"a line is not an event: {line[:200].decode(errors='replace')}") from None


def _error_of(what: str, status: int, body: bytes) -> ClusterError:
    """From the answer's Status object (Kubernetes API: "Status")."""
    try:
        answer = json.loads(body)
        why = str(answer["message"])
    except (ValueError, KeyError, TypeError):
        answer, why = {}, body[:200].decode(errors="replace") or f"HTTP {status}"
    if status in FORBIDDEN:
        causes = (answer.get("details") or {}).get("causes") or ()
        is_terminating = any(one.get("reason") == TERMINATING for one in causes)
        return (Terminating if is_terminating else Forbidden)(what, why, status=status)
    if DENIED.search(why):
        return Forbidden(what, why, status=status)
    if status in INVALID or any(one in why for one in MISTAKES):
        return Invalid(what, why, status=status)
    return ClusterError(what, why, status=status)
