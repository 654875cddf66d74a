"""Declared fields: bounds, texts of the environment, options and help."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from lbg_core.declaration import about, check, declarations, declared, without_links


class Colour(enum.StrEnum):
    RED = "red"
    DARK_RED = "dark-red"


class Refused(Exception):
    def __init__(self, name: str, value: object, rule: str) -> None:
        super().__init__(f"{name} {value!r} {rule}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lamp:
    place: str = field(metadata=about("Its place"))
    colour: Colour | Literal["red", "dark-red"] = declared(Colour.RED, "Its colour")
    delay_s: float | None = declared(None, "Used with {colour}", above=0)
    count: int = declared(1, "Number of lamps", least=1, most=9)
    folder: Path | str | None = declared(None, "Folder")
    path: str = declared("/", "Path", begins="/")
    is_on: bool = declared(False, "On")
    other: int = 0

    def __post_init__(self) -> None:
        check(self, Refused)


def test_an_instance_holds_enums_and_paths_of_texts() -> None:
    lamp = Lamp(place="hall", colour="dark-red", folder="x")
    assert (lamp.colour, lamp.folder, lamp.delay_s) == (Colour.DARK_RED, Path("x"), None)
    assert isinstance(lamp.colour, Colour)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"colour": "blue"}, "colour 'blue' must be one of red, dark-red"),
        ({"delay_s": 0}, "delay_s 0 must be a number above 0"),
        ({"delay_s": float("nan")}, "must be a number above 0"),
        ({"count": 0}, "count 0 must be a whole number from 1 to 9"),
        ({"count": 10}, "count 10 must be a whole number from 1 to 9"),
        ({"count": True}, "count True must be a whole number from 1 to 9"),
        ({"path": "x"}, "path 'x' must start with /"),
        ({"folder": ""}, "folder '' must be a path"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(Refused) as refused:
        Lamp(place="hall", **wrong)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "3", 3),
        ("count", 3, 3),
        ("delay_s", "0.5", 0.5),
        ("is_on", "Yes", True),
        ("is_on", "off", False),
        ("folder", "x", Path("x")),
        ("colour", "dark-red", Colour.DARK_RED),
    ],
)
def test_texts_are_read_as_the_type(name: str, text: object, value: object) -> None:
    assert declarations(Lamp)[name].read(text) == value


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("count", "many", "must be a whole number from 1 to 9"),
        ("count", "10", "must be a whole number from 1 to 9"),
        ("delay_s", "soon", "must be a number above 0"),
        ("is_on", "perhaps", "must be true or false"),
        ("place", 3, "must be a text"),
    ],
)
def test_a_text_of_another_type_is_refused(name: str, text: object, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        declarations(Lamp)[name].read(text)


def test_fields_without_a_declaration_are_no_settings() -> None:
    found = declarations(Lamp)
    assert [*found] == ["place", "colour", "delay_s", "count", "folder", "path", "is_on"]
    assert [one.name for one in found.values() if one.is_required] == ["place"]
    assert found["delay_s"].option == "--delay"


def test_help_names_other_settings_as_its_reader_does() -> None:
    assert declarations(Lamp)["delay_s"].help_for(str.upper) == "Used with COLOUR"
    text = "A [dead letter](dead-letters.md#x), `x` ([memory](member.md#memory))"
    assert without_links(text) == "A dead letter, `x` (docs/member.md)"
