"""A page holds everything itself, and what comes from data stays text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.pipeline.html_page import Read


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Bar, Canvas, Column, Fact, Facts, Figure, Note, Row, Section, Table, drawn, page, shown
    from lbg_pipeline.html import (
        Bar,
        Canvas,
        Column,
        Fact,
        Facts,
        Figure,
        Note,
        Row,
        Section,
        Table,
        drawn,
        page,
        shown,
    )


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style></svg>",
    'style="fill: #0072b2" id="x" url(#a)',
    "$\\frac{",
    "&lt;already&gt;",
    "\u202egnp.exe",
    "nul\x00 bell\x07 half\ud800",
    "日本語 🛫",
)


def bars(*names: str) -> Figure:
    def draw(canvas: Canvas) -> None:
        axes = canvas.sheet.subplots()
        axes.bar(range(len(names)), range(1, len(names) + 1), label=shown("; ".join(names)))
        axes.set_xticks(range(len(names)), map(shown, names))
        axes.legend()
        axes.plot([0, 1], [0, 1], clip_on=True)

    return drawn(draw, title=f"Load of {' '.join(names)}", caption="; ".join(names))


def whole(*texts: str) -> str:
    """A page with every kind of part, each of which holds `texts`."""
    text = " ".join(texts)
    table = Table(
        [Column(text), Column("n", numeric=True)], [[one, Bar(one, 0.5)] for one in texts], text, text
    )
    facts = Facts([Fact(one, one, one) for one in texts])
    figure = bars(*texts)
    inner = Section(text, [facts, table, figure, Row([figure, bars("other")]), Note(text, warns=True)], text)
    return page(text, [Section(text, [inner]), Section("second", [Note(text)])], subtitle=text, made_by=text)


@pytest.fixture(scope="module")
def dull() -> Read:
    return Read(whole("dull", "calm"))


@pytest.mark.long
def test_it_loads_and_runs_nothing() -> None:
    text = whole("a", "b")
    read = Read(text)
    assert read.tags().isdisjoint({"script", "img", "link", "iframe", "object", "image", "foreignobject"})
    assert read.values("src", "srcset", "data", "action", "xlink:href") == []
    assert all(value.startswith("#") for value in read.values("href"))
    assert "default-src 'none'" in read.values("content")[0]
    assert re.findall(r"@import|https?:|url\((?!#)|javascript:", text) == []


@pytest.mark.long
@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_comes_from_data_stays_text(dull: Read, hostile: str) -> None:
    text = whole(hostile, "calm")
    text.encode()
    read = Read(text)
    assert read.tags() == dull.tags()
    assert {name for _, name, _ in read.attributes} - {"title"} == {name for _, name, _ in dull.attributes}


def test_a_name_is_read_as_it_was_written() -> None:
    read = Read(whole("<script>#0072b2 $x$"))
    assert read.text.count("<script>#0072b2 $x$") > 10


def test_what_does_not_print_is_shown_as_an_escape() -> None:
    read = Read(whole("a\x00b\u202ec\nd"))
    assert r"a\x00b\u202ec\nd" in read.text
    assert not {"\x00", "\u202e"} & set(read.text)


def test_of_a_long_name_the_middle_is_left_out_and_the_whole_is_its_title() -> None:
    name = "front" + "x" * 500 + "back"
    read = Read(page("t", [Section("s", [Table([Column("key")], [[name]])])]))
    assert "…" in read.text
    assert read.text.count("x") < 60 < len(name)
    assert read.values("title") == [name]


@pytest.mark.long
def test_ids_are_those_of_one_drawing_and_what_is_referred_to_is_there() -> None:
    text = whole("a", "b")
    read = Read(text.replace(bars("a", "b").wide, "", 1))
    anchors = {value[1:] for value in read.values("href") if value.startswith("#")}
    clips = set(re.findall(r"url\(#([^)]+)\)", text))
    assert anchors | clips <= set(read.values("id"))
    first, second = (set(re.findall(r'id="(.*?)"', figure.wide)) for figure in (bars("a"), bars("b", "c")))
    assert first
    assert first.isdisjoint(second)


@pytest.mark.long
def test_both_schemes_have_every_colour_and_figures_have_no_other() -> None:
    text = whole("a")
    light, dark = re.findall(r":root\{(.*?)\}", text)
    assert re.findall(r"--[\w-]+", light) == re.findall(r"--[\w-]+", dark)
    drawing = bars("a").wide
    assert set(re.findall(r"var\((--[\w-]+)\)", drawing)) <= set(re.findall(r"--[\w-]+", light))
    assert re.findall(r"(?<!href=\")(?<!url\()#[0-9a-f]{3,6}", drawing) == []


@pytest.mark.long
def test_the_same_page_is_written_the_same() -> None:
    assert whole("a", "b") == whole("a", "b")


@given(st.lists(st.text(max_size=30), min_size=1, max_size=3))
def test_any_text_makes_a_page_whose_tags_match(texts: list[str]) -> None:
    text = " ".join(texts)
    table = Table([Column(text)], [[one] for one in texts], text)
    read = Read(page(text, [Section(text, [Facts([Fact(text, text)]), table, Note(text)])]))
    assert {name for _, name, _ in read.attributes} <= {
        *("lang", "charset", "http-equiv", "content", "name", "id", "class", "tabindex", "scope", "title")
    }
