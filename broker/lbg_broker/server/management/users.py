"""Users and permissions: /api/users, /api/permissions, /api/whoami."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from lbg_broker.passwords import hash_algorithm, hash_password
from lbg_broker.server.core.commands import CloseConnection
from lbg_broker.server.core.permissions import PERMISSIONS, Grant, PatternError, User
from lbg_broker.server.management.json_objects import grant_json, user_json
from lbg_broker.server.management.request import BadRequest, NotFound, Request, listed
from lbg_broker.server.reload import grant_definition, user_definition

ROUTES = web.RouteTableDef()


@ROUTES.get("/api/whoami")
async def whoami(request: web.Request) -> web.Response:
    user = Request(request).user
    return web.json_response({"name": user.name, "tags": list(user.tags)})


@ROUTES.get("/api/users")
async def list_users(request: web.Request) -> web.Response:
    asked = Request(request)
    asked.need_administrator()
    return listed(request, [user_json(user) for user in asked.broker.users.all()])


@ROUTES.get("/api/users/{name}")
async def get_user(request: web.Request) -> web.Response:
    return web.json_response(user_json(_user(Request(request))))


@ROUTES.put("/api/users/{name}")
async def put_user(request: web.Request) -> web.Response:
    asked = Request(request)
    asked.need_administrator()
    body, users = await asked.body(), asked.broker.users
    tags = _tags(body)
    password_hash = await asyncio.to_thread(_password_hash, body)
    existing = users.get(asked.name())
    user = User(asked.name(), password_hash, tags)
    users.put(user)
    await asked.broker.define(user_definition(user))
    return web.Response(status=201 if existing is None else 204)


@ROUTES.delete("/api/users/{name}")
async def delete_user(request: web.Request) -> web.Response:
    """Delete the user with every permission, and end the user's connections, as RabbitMQ does."""
    asked = Request(request)
    user = _user(asked)
    grants = [grant for grant in asked.broker.users.all_grants() if grant.user == user.name]
    asked.broker.users.drop(user.name)
    for connection in list(asked.broker.state.connections.values()):
        if connection.user == user.name:
            asked.broker.apply(CloseConnection(connection.id, f"user '{user.name}' is deleted"))
    for definition in (
        *(grant_definition(grant, there=False) for grant in grants),
        user_definition(user, there=False),
    ):
        await asked.broker.define(definition)
    return web.Response(status=204)


@ROUTES.get("/api/permissions")
@ROUTES.get("/api/users/{name}/permissions")
@ROUTES.get("/api/vhosts/{vhost}/permissions")
async def list_permissions(request: web.Request) -> web.Response:
    asked = Request(request)
    asked.need_administrator()
    user, vhost = request.match_info.get("name"), request.match_info.get("vhost")
    if user is not None and asked.broker.users.get(user) is None:
        raise NotFound
    if vhost is not None and vhost not in asked.broker.state.vhosts:
        raise NotFound
    return listed(
        request,
        [
            grant_json(grant)
            for grant in asked.broker.users.all_grants()
            if user in (None, grant.user) and vhost in (None, grant.vhost)
        ],
    )


@ROUTES.get("/api/permissions/{vhost}/{user}")
async def get_permission(request: web.Request) -> web.Response:
    return web.json_response(grant_json(_grant(Request(request))))


@ROUTES.put("/api/permissions/{vhost}/{user}")
async def put_permission(request: web.Request) -> web.Response:
    asked = Request(request)
    asked.need_administrator()
    body, users = await asked.body(), asked.broker.users
    user, vhost = asked.name("user"), asked.name("vhost")
    if users.get(user) is None or vhost not in asked.broker.state.vhosts:
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
    await asked.broker.define(grant_definition(grant))
    return web.Response(status=201 if existing is None else 204)


@ROUTES.delete("/api/permissions/{vhost}/{user}")
async def delete_permission(request: web.Request) -> web.Response:
    asked = Request(request)
    grant = _grant(asked)
    asked.broker.users.revoke(grant.user, grant.vhost)
    await asked.broker.define(grant_definition(grant, there=False))
    return web.Response(status=204)


def _user(asked: Request) -> User:
    asked.need_administrator()
    user = asked.broker.users.get(asked.name())
    if user is None:
        raise NotFound
    return user


def _grant(asked: Request) -> Grant:
    asked.need_administrator()
    grant = asked.broker.users.grant_of(asked.name("user"), asked.name("vhost"))
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
    given = body.get("password_hash", "")
    if not isinstance(given, str) or (given and hash_algorithm(given) is None):
        raise BadRequest("password_hash is neither scrypt's nor rabbit_password_hashing_sha256's")
    return given


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
