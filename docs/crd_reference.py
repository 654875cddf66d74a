"""Makes docs/reference/crds.md from the schemas in crds/: `python docs/crd_reference.py > docs/reference/crds.md`.

A test compares the file with what this makes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CRDS = Path(__file__).resolve().parent.parent / "crds"
ORDER = ("lbg.dev_loadbalancedgroups.yaml", "lbg.dev_brokers.yaml")
HEAD = """# LoadBalancedGroup and Broker

Made by `python docs/crd_reference.py > docs/reference/crds.md` from crds/. The API server enforces the rules below the
tables. [kubernetes.md](../kubernetes.md) shows both kinds in use.
"""


def reference() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_page(yaml.safe_load((CRDS / name).read_text())) for name in ORDER)])


def _page(crd: dict[str, Any]) -> str:
    names, (version,) = crd["spec"]["names"], crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    columns = ", ".join(column["name"] for column in version["additionalPrinterColumns"])
    lines = [
        f"## {names['kind']}",
        "",
        _one_line(schema["description"]),
        "",
        f"`{crd['spec']['group']}/{version['name']}`, short name `{', '.join(names['shortNames'])}`; "
        f"columns: {columns}.",
        "",
        *_rules("", schema),
    ]
    for part in ("spec", "status"):
        lines += ["", f"### {names['kind']} {part}", "", "| field | type | default | |", "|---|---|---|---|"]
        lines += list(_rows(part, schema["properties"][part]))
        lines += ["", *_rules(part, schema["properties"][part])]
    return "\n".join(lines).rstrip() + "\n"


def _rows(path: str, schema: dict[str, Any]) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        where = f"{path}.{name}"
        needed = "**required**" if name in schema.get("required", ()) else _default(field)
        yield f"| `{where}` | {_type(field)} | {needed} | {_described(field)} |"
        yield from _rows(where, field)
        if "items" in field:
            yield from _rows(f"{where}[]", field["items"])


def _rules(path: str, schema: dict[str, Any]) -> list[str]:
    return [
        f"- `{where or 'metadata'}`: {_one_line(rule['message'])}" for where, rule in _rules_in(path, schema)
    ]


def _rules_in(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path + rule.get("fieldPath", ""), rule
    if not path:
        return
    for name, field in schema.get("properties", {}).items():
        yield from _rules_in(f"{path}.{name}", field)
        if "items" in field:
            yield from _rules_in(f"{path}.{name}[]", field["items"])


def _type(field: dict[str, Any]) -> str:
    if "enum" in field:
        return " ".join(f"`{one}`" for one in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if field["type"] == "array":
        return f"list of {field['items']['type']}"
    if "minimum" in field and "maximum" in field:
        return f"{field['type']} {field['minimum']} to {field['maximum']}"
    return str(field["type"])


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    return "" if default in (None, {}, []) else f"`{default}`"


def _described(field: dict[str, Any]) -> str:
    """Without the default, which has a column of its own here: `kubectl explain` shows it in the description only."""
    text = _one_line(field.get("description", ""))
    default = field.get("default")
    said = f" Default: {'true' if default is True else 'false' if default is False else default}."
    return text.removesuffix(said)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
