"""One self-contained HTML file: it loads nothing, runs nothing, and reads well in light, in dark and on paper."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from .escaping import LONGEST, escaped
from .parts import Section
from .rendering import section_html
from .theme import variables

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""A second fence behind the escaping: even a tag that got through would load and run nothing."""


def page(title: str, sections: Sequence[Section], *, subtitle: str = "", made_by: str = "") -> str:
    """The text of the file. `subtitle` says what was read, `made_by` which command wrote the page, and when."""
    anchors = [f"s{number}" for number in range(1, len(sections) + 1)]
    body = "".join(
        section_html(section, 2, anchor) for section, anchor in zip(sections, anchors, strict=True)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(title)}</title>\n<style>{_style()}</style>\n</head>\n<body>\n"
        f"<header><h1>{escaped(title)}</h1>{f'<p>{escaped(subtitle)}</p>' if subtitle else ''}"
        f"{_contents(sections, anchors)}</header>\n<main>{body}</main>\n"
        f"<footer>{escaped(made_by)}</footer>\n</body>\n</html>\n"
    )


def _contents(sections: Sequence[Section], anchors: Sequence[str]) -> str:
    if len(sections) < 2:
        return ""
    links = "".join(
        f'<li><a href="#{anchor}">{escaped(section.title, LONGEST)}</a></li>'
        for section, anchor in zip(sections, anchors, strict=True)
    )
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _style() -> str:
    dark = f"@media screen and (prefers-color-scheme: dark){{:root{{{variables(is_dark=True)}}}}}"
    sheet = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return f":root{{{variables(is_dark=False)}}}{dark}\n{sheet}"
