"""A number has its noun in singular or plural: by `counted`, and in a sentence of a problem by `{n:key|keys}`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing import ROOT
from testing.trees import PRODUCT, modules

PAGES = ROOT / "console" / "lbg_console" / "pages"
ADJECTIVES = (
    "cancelled concurrent dead different more newer other parked queue released routing running waiting"
)
NOUNS = (
    "acts attempts bindings bytes calls changes channels clients connections consumers copies days entries events "
    "failures fields files frames gaps groups handoffs hashes hours intervals keys letters lines logins looks members "
    "messages minutes moves nodes numbers pages partitions pods problems publishers queues records releases replicas "
    "retries rounds rows runs seconds sessions steps streams takeovers times tries users"
)
PLURAL = rf" (?:(?:{'|'.join(ADJECTIVES.split())}) )?(?:{'|'.join(NOUNS.split())})\b(?!/)"
IN_TEMPLATE = re.compile(r"(?:\{\w+(?::[,0]*)?\}|%[di])" + PLURAL)
IN_PAGE = re.compile(r"(?:\$\{[^{}]*\}|\{\{[^{}]*\}\})" + PLURAL)
ALLOWED = {
    "broker/lbg_broker/content_memory.py: {self.total_bytes} bytes": "more than a limit",
    "broker/lbg_broker/content_memory.py: {size} bytes": "more than a limit",
    "broker/lbg_broker/core/basic_methods.py: {kind} queues": "a kind of queues",
    "broker/lbg_broker/core/message.py: {self.size} bytes": "for developers",
    "core/lbg_core/admin/problem_kinds.py: {members} calls": "a verb",
    "core/lbg_core/amqp/events.py: {len(self.body)} bytes": "for developers",
    "core/lbg_core/amqp/field_table.py: {len(name)} bytes": "more than a limit",
    "core/lbg_core/amqp/field_table.py: {len(text)} bytes": "more than a limit",
    "core/lbg_core/amqp/frames.py: {len(header)} bytes": "more than a limit",
    "core/lbg_core/amqp/frames.py: {len(payload) + OVERHEAD_BYTES} bytes": "more than a limit",
    "core/lbg_core/amqp/frames.py: {size + OVERHEAD_BYTES} bytes": "more than a limit",
    "core/lbg_core/client/connection.py: {self.channel_max} channels": "a limit of thousands",
    "core/lbg_core/group/member_state.py: {count} runs": "more than a limit",
    "core/lbg_core/group/names.py: {size_bytes} bytes": "more than a limit",
    "core/lbg_core/group/spec.py: {maximum_bytes} bytes": "a limit of hundreds",
    "core/lbg_core/publisher/errors.py: {size_bytes} bytes": "more than a limit",
    "core/lbg_core/publisher/resume.py: {len(head)} bytes": "more than a limit",
    "pipeline/lbg_pipeline/verify/stream.py: {trigger_s} seconds": "Spark reads it",
    "sidecar/lbg_sidecar/app/http_client.py: {limit} bytes": "a limit of thousands",
    "sidecar/lbg_sidecar/core/delivery.py: {self.key} attempts": "for developers",
    "sidecar/lbg_sidecar/publish_api/http.py: {max_bytes} bytes": "a limit of thousands",
    "sidecar/lbg_sidecar/publish_api/request.py: {size_bytes} bytes": "more than a limit",
    "sidecar/lbg_sidecar/publish_api/service.py: {count} events": "more than a limit",
}
"""Texts whose number is never 1, with the reason."""


def plurals(tree: ast.Module) -> Iterator[str]:
    """Parts of texts in which a noun in the plural follows a number that may be 1."""
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(map(id, node.values))
            yield from _of_formatted(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield from (one[0] for one in IN_TEMPLATE.finditer(node.value))


def _of_formatted(text: ast.JoinedStr) -> Iterator[str]:
    for value, after in zip(text.values, text.values[1:], strict=False):
        if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
            found = re.match(PLURAL, str(after.value))
            if found is not None and may_be_one(value):
                yield f"{{{ast.unparse(value.value)}}}{found[0]}"


def may_be_one(value: ast.FormattedValue) -> bool:
    """True for a whole number that is no constant of the code."""
    if value.format_spec is not None and re.search(r"[.gfs]", ast.unparse(value.format_spec)[2:-1]):
        return False
    if isinstance(value.value, ast.Call) and ast.unparse(value.value.func).endswith("counted"):
        return False
    nodes = list(ast.walk(value.value))
    names = [one.id for one in nodes if isinstance(one, ast.Name)]
    names += [one.attr for one in nodes if isinstance(one, ast.Attribute)]
    return not names or not all(name.isupper() for name in names)


def pages() -> Iterator[Path]:
    files = (path for folder in ("static", "templates") for path in (PAGES / folder).glob("*.*"))
    return (path for path in files if path.suffix in (".html", ".js"))


@pytest.mark.rule
def test_no_text_has_one_of_a_noun_in_the_plural() -> None:
    found = {f"{path}: {text}" for path, tree in modules(*PRODUCT) for text in plurals(tree)}
    assert found - ALLOWED.keys() == set(), "use lbg_core.counted_nouns.counted"
    assert ALLOWED.keys() - found == set(), "no longer needed"


@pytest.mark.rule
def test_no_page_has_one_of_a_noun_in_the_plural() -> None:
    found = {f"{page.name}: {one[0]}" for page in pages() for one in IN_PAGE.finditer(page.read_text())}
    assert found == set(), "use plural() of dom.js, or the filter counted"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("f'{count} messages'", ["{count} messages"]),
        ("f'{len(left):,} released keys wait'", ["{len(left)} released keys"]),
        ("f'of {self.total} queues'", ["{self.total} queues"]),
        ("'{queues} queues'", ["{queues} queues"]),
        ("log.info('%d queues', count)", ["%d queues"]),
        ("'{queues} {queues:queue|queues}'", []),
        ("f'at most {LIMIT_BYTES} bytes'", []),
        ("f'{rate:.1f} messages'", []),
        ("f'{rate} messages/s'", []),
        ("f'{name} sends messages'", []),
        ("counted(count, 'message')", []),
    ],
)
def test_each_plural_after_a_number_is_found(code: str, found: list[str]) -> None:
    assert list(plurals(ast.parse(code))) == found
