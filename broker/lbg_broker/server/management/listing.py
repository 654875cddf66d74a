"""Lists: only the columns asked for, and one page of many («HTTP API Reference», pagination)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from aiohttp import web

from lbg_broker.server.management.errors import BadRequest

__all__ = ["Columns", "chosen", "described", "listed"]

Json = dict[str, Any]
Columns: TypeAlias = frozenset[str] | None
"""The columns that are asked for; None: all."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


_T = TypeVar("_T")
_NamedT = TypeVar("_NamedT", bound=Named)
PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500


def listed(request: web.Request, items: Sequence[Json]) -> web.Response:
    """All items, or the page that the query asks for. Raises BadRequest for a page that cannot be."""
    return _shown(request, items, lambda item: str(item.get("name", "")), lambda item, _columns: item)


def described(
    request: web.Request, found: Sequence[_NamedT], describe: Callable[[_NamedT, Columns], Json]
) -> web.Response:
    """As `listed`, in the order of their names, of what is described only where it is shown and only in the columns
    that are asked for: of thousands of queues as a rule a few are wanted, or two numbers of each. Raises BadRequest."""
    return _shown(request, found, attrgetter("name"), describe, is_sorted=False)


def _shown(
    request: web.Request,
    found: Sequence[_T],
    name: Callable[[_T], str],
    describe: Callable[[_T, Columns], Json],
    *,
    is_sorted: bool = True,
) -> web.Response:
    query = request.query
    paths = [column.split(".") for column in query["columns"].split(",")] if query.get("columns") else None
    columns = None if paths is None else frozenset(path[0] for path in paths)

    def json_of(one: _T) -> Json:
        item = describe(one, columns)
        return item if paths is None else _copied(item, paths)

    if "page" not in query:
        return web.json_response([json_of(one) for one in (found if is_sorted else sorted(found, key=name))])
    page = _number(query.get("page"), "page", most=None)
    size = _number(query.get("page_size", str(PAGE_SIZE)), "page_size", most=PAGE_SIZE_MAX)
    is_wanted = _filter(request)
    wanted = [one for one in found if is_wanted(name(one))]
    if not is_sorted:
        wanted.sort(key=name)
    pages = math.ceil(len(wanted) / size)
    if page > max(1, pages):
        raise BadRequest(f"page {page} is beyond the last, {pages}", error="page_out_of_range")
    shown = wanted[(page - 1) * size : page * size]
    return web.json_response(
        {
            "items": [json_of(one) for one in shown],
            "item_count": len(shown),
            "filtered_count": len(wanted),
            "total_count": len(found),
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
    return _copied(item, [column.split(".") for column in columns.split(",")])


def _copied(item: Json, paths: Sequence[Sequence[str]]) -> Json:
    result: Json = {}
    for path in paths:
        _copy(item, result, path)
    return result


def _copy(source: Json, target: Json, path: Sequence[str]) -> None:
    name, *rest = path
    if name not in source:
        return
    if not rest:
        target[name] = source[name]
    elif isinstance(source[name], dict):
        _copy(source[name], target.setdefault(name, {}), rest)


def _filter(request: web.Request) -> Callable[[str], object]:
    """What the query says of names: true of those that are wanted. Raises BadRequest."""
    wanted = request.query.get("name", "")
    if request.query.get("use_regex") != "true":
        part = wanted.lower()
        return lambda name: part in name.lower()
    try:
        return re.compile(wanted).search
    except re.error as error:
        raise BadRequest(f"name: {wanted!r} is no regular expression: {error}") from error


def _number(text: str | None, name: str, *, most: int | None) -> int:
    if text is None or not text.isdecimal() or not int(text) or (most is not None and int(text) > most):
        raise BadRequest(f"{name} is to be a number from 1{f' to {most}' if most else ''}, not {text!r}")
    return int(text)
