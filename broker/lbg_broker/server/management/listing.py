"""Lists: only the columns asked for, and one page of many («HTTP API Reference», pagination)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from lbg_broker.server.management.errors import BadRequest

__all__ = ["chosen", "listed"]

Json = dict[str, Any]
PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500


def listed(request: web.Request, items: Sequence[Json]) -> web.Response:
    """All items, or the page that the query asks for. Raises BadRequest for a page that cannot be."""
    query = request.query
    if "page" not in query:
        return web.json_response([chosen(request, item) for item in items])
    page = _number(query.get("page"), "page", most=None)
    size = _number(query.get("page_size", str(PAGE_SIZE)), "page_size", most=PAGE_SIZE_MAX)
    found = [item for item in items if _is_wanted(request, str(item.get("name", "")))]
    pages = max(1, math.ceil(len(found) / size))
    if page > pages:
        raise BadRequest(f"page {page} is beyond the last, {pages}", error="page_out_of_range")
    shown = found[(page - 1) * size : page * size]
    return web.json_response(
        {
            "items": [chosen(request, item) for item in shown],
            "item_count": len(shown),
            "filtered_count": len(found),
            "total_count": len(items),
            "page": page,
            "page_count": pages,
            "page_size": size,
        }
    )


def chosen(request: web.Request, item: Json) -> Json:
    """The columns asked for; a dot leads into an object."""
    columns = request.query.get("columns")
    if not columns:
        return item
    result: Json = {}
    for column in columns.split(","):
        _copy(item, result, column.split("."))
    return result


def _copy(source: Json, target: Json, path: Sequence[str]) -> None:
    name, *rest = path
    if name not in source:
        return
    if not rest:
        target[name] = source[name]
    elif isinstance(source[name], dict):
        _copy(source[name], target.setdefault(name, {}), rest)


def _is_wanted(request: web.Request, name: str) -> bool:
    wanted = request.query.get("name", "")
    if request.query.get("use_regex") != "true":
        return wanted.lower() in name.lower()
    try:
        return re.search(wanted, name) is not None
    except re.error as error:
        raise BadRequest(f"name: {wanted!r} is no regular expression: {error}") from error


def _number(text: str | None, name: str, *, most: int | None) -> int:
    if text is None or not text.isdecimal() or not int(text) or (most is not None and int(text) > most):
        raise BadRequest(f"{name} is to be a number from 1{f' to {most}' if most else ''}, not {text!r}")
    return int(text)
