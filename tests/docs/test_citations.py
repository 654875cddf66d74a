"""Citations: code, tests and docs name pages of this repository, or published documents by their titles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing import ROOT

PLACES = [
    *("core", "broker", "sidecar", "operator", "pipeline", "console", "cli"),
    *("bench", "testing", "tests", "docs", "examples", "charts", "crds", "docker", "e2e"),
]
ENDINGS = {".py", ".md", ".yaml", ".yml", ".toml", ".sh", ".js", ".json", ".tpl", ".txt", ""}
NOT_OURS = {"node_modules", "__pycache__"}
UNPUBLISHED = {
    r"\bDESIGN\b": "name the page of docs/ that has the content",
    r"\bREDESIGN\b": "name the page of docs/ or the ADR that has the content",
    r"(?i:\bthe)[\s#]+documents?\b(?!ed)": "name the published title, or the page of docs/",
    r"\bseeds/": "name the published title",
}
NOT_ON_AN_INDEX = r"pip install (-\w+ )*['\"]?lbgroup\b(?! @)(?!\[[\w,]+\] @)"
"""An installation by the distribution's name alone: whoever registers that name would be installed."""
PAGE = re.compile(r"\bdocs/(?:(?:adr|internals|reference)/)?[\w-]+\.md\b")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[\w-]*)?\)")


def files() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile"))
    for place in PLACES:
        for path in (ROOT / place).rglob("*"):
            if path.suffix in ENDINGS and path.is_file() and not NOT_OURS & set(path.parts):
                yield path


def text_of(path: Path) -> str:
    return path.read_text(errors="ignore") if path != Path(__file__).resolve() else ""


def test_nothing_is_installed_by_a_name_that_anyone_may_register() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in files()
        if path.parent.name != "adr" and re.search(NOT_ON_AN_INDEX, text_of(path))
    ]
    assert not found


@pytest.mark.long
@pytest.mark.parametrize("pattern", UNPUBLISHED)
def test_nothing_cites_a_document_that_is_not_in_the_repository(pattern: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}: {UNPUBLISHED[pattern]}"
        for path in files()
        for text in (text_of(path),)
        for match in re.finditer(pattern, text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.long
def test_every_page_that_is_named_exists() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {page}"
        for path in files()
        for page in set(PAGE.findall(text_of(path)))
        if not (ROOT / page).is_file() and "NNNN" not in page
    ]
    assert not missing, "\n".join(missing)


def test_contributing_names_folders_and_targets_that_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"\btests/[\w/.]+\w", page))
    assert len(named) > 15
    assert not [one for one in named if not (ROOT / one).exists()]
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z][\w-]*)", page)) <= targets


def test_each_word_is_explained_once_and_has_the_words_that_it_replaces() -> None:
    """In the glossary of users, or in that of contributors, which has the replaced words of both."""
    pages = [(ROOT / "docs" / name).read_text() for name in ("GLOSSARY.md", "internals/words.md")]
    words = [word for page in pages for word in re.findall(r"^- \*\*(.+?)\*\*: ", page, re.M)]
    assert len(words) == len(set(words)) >= 25
    table = pages[1].partition("| word | not |")[2].partition("\n#")[0]
    assert sorted(re.findall(r"^\| (\w.+?) \| \S.* \|$", table, re.M)) == sorted(words)


def test_every_link_between_pages_leads_to_a_file() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {link}"
        for path in files()
        if path.suffix == ".md"
        for link in LINK.findall(text_of(path))
        if not (path.parent / link).exists()
    ]
    assert not missing, "\n".join(missing)
