"""Users and permissions: /api/users, /api/permissions, /api/whoami."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from lbg_broker.core.commands import CloseConnection
from lbg_broker.core.permissions import PERMISSIONS, Grant, User
from lbg_broker.management.json_objects import grant_json, user_json
from lbg_broker.management.request import BadRequest, NotFound, Request, listed
from lbg_broker.reload import grant_definition, user_definition
from lbg_core.name_pattern import PatternError
from lbg_core.passwords import hash_algorithm, hash_password

ROUTES = web.RouteTableDef()


@ROUTES.get("/api/whoami")
async def whoami(request: web.Request) -> web.Response:
    user = Request(request).user
    return web.json_response({"name": user.name, "tags": list(user.tags)})


@ROUTES.get("/api/users")
async def list_users(request: web.Request) -> web.StreamResponse:
    api_request = Request(request)
    api_request.need_administrator()
    return await listed(request, api_request.broker.users.all(), lambda user, _columns: user_json(user))


@ROUTES.get("/api/users/{name}")
async def get_user(request: web.Request) -> web.Response:
    return web.json_response(user_json(_user(Request(request))))


@ROUTES.put("/api/users/{name}")
async def put_user(request: web.Request) -> web.Response:
    api_request = Request(request)
    api_request.need_administrator()
    body, users = await api_request.body(), api_request.broker.users
    tags = _tags(body)
    password_hash = await asyncio.to_thread(_password_hash, body)
    existing = users.get(api_request.name())
    user = User(api_request.name(), password_hash, tags)
    users.put(user)
    await api_request.broker.define(user_definition(user))
    return web.Response(status=201 if existing is None else 204)


@ROUTES.delete("/api/users/{name}")
async def delete_user(request: web.Request) -> web.Response:
    """Delete the user with every permission, and end the user's connections, as RabbitMQ does."""
    api_request = Request(request)
    user = _user(api_request)
    grants = [grant for grant in api_request.broker.users.all_grants() if grant.user == user.name]
    api_request.broker.users.drop(user.name)
    for connection in list(api_request.broker.state.connections.values()):
        if connection.user == user.name:
            api_request.broker.apply(CloseConnection(connection.id, f"user '{user.name}' is deleted"))
    for definition in (
        *(grant_definition(grant, there=False) for grant in grants),
        user_definition(user, there=False),
    ):
        await api_request.broker.define(definition)
    return web.Response(status=204)


@ROUTES.get("/api/permissions")
@ROUTES.get("/api/users/{name}/permissions")
@ROUTES.get("/api/vhosts/{vhost}/permissions")
async def list_permissions(request: web.Request) -> web.StreamResponse:
    api_request = Request(request)
    api_request.need_administrator()
    user, vhost = request.match_info.get("name"), request.match_info.get("vhost")
    if user is not None and api_request.broker.users.get(user) is None:
        raise NotFound
    if vhost is not None and vhost not in api_request.broker.state.vhosts:
        raise NotFound
    grants = [
        grant
        for grant in api_request.broker.users.all_grants()
        if user in (None, grant.user) and vhost in (None, grant.vhost)
    ]
    return await listed(request, grants, lambda grant, _columns: grant_json(grant))


@ROUTES.get("/api/permissions/{vhost}/{user}")
async def get_permission(request: web.Request) -> web.Response:
    return web.json_response(grant_json(_grant(Request(request))))


@ROUTES.put("/api/permissions/{vhost}/{user}")
async def put_permission(request: web.Request) -> web.Response:
    api_request = Request(request)
    api_request.need_administrator()
    body, users = await api_request.body(), api_request.broker.users
    user, vhost = api_request.name("user"), api_request.name("vhost")
    if users.get(user) is None or vhost not in api_request.broker.state.vhosts:
        raise BadRequest("vhost_or_user_not_found")
    missing = [name for name in PERMISSIONS if not isinstance(body.get(name), str)]
    if missing:
        raise BadRequest(f"{', '.join(missing)}: each of the three patterns must be a string")
    existing = users.grant_of(user, vhost)
    try:
        grant = Grant(user, vhost, *(body[name] for name in PERMISSIONS))
    except PatternError as error:
        raise BadRequest(str(error)) from error
    users.grant(grant)
    await api_request.broker.define(grant_definition(grant))
    return web.Response(status=201 if existing is None else 204)


@ROUTES.delete("/api/permissions/{vhost}/{user}")
async def delete_permission(request: web.Request) -> web.Response:
    api_request = Request(request)
    grant = _grant(api_request)
    api_request.broker.users.revoke(grant.user, grant.vhost)
    await api_request.broker.define(grant_definition(grant, there=False))
    return web.Response(status=204)


def _user(api_request: Request) -> User:
    api_request.need_administrator()
    user = api_request.broker.users.get(api_request.name())
    if user is None:
        raise NotFound
    return user


def _grant(api_request: Request) -> Grant:
    api_request.need_administrator()
    grant = api_request.broker.users.grant_of(api_request.name("user"), api_request.name("vhost"))
    if grant is None:
        raise NotFound
    return grant


def _password_hash(body: Mapping[str, Any]) -> str:
    """The hash to keep; no password at all is one that nobody can log in with."""
    if "password" in body:
        password = body["password"]
        if not isinstance(password, str):
            raise BadRequest("password must be a string")
        return hash_password(password) if password else ""
    text = body.get("password_hash", "")
    if not isinstance(text, str) or (text and hash_algorithm(text) is None):
        raise BadRequest("password_hash is neither scrypt's nor rabbit_password_hashing_sha256's")
    return text


def _tags(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Tags as a list, or as a text with commas, which was the form before RabbitMQ 3.9."""
    tags = body.get("tags")
    if tags is None:
        raise BadRequest("tags_not_present")
    if isinstance(tags, str):
        tags = tags.split(",")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise BadRequest("tags must be a list of strings")
    return tuple(stripped for tag in tags if (stripped := tag.strip()))
