"""Commands and code of README and docs, as these pages have them.

Shell commands are read from code blocks and from code in sentences.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testing import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/internals").glob("*.md")),
    *sorted((ROOT / "docs/reference").glob("*.md")),
]
OPERATORS = {
    "|",
    "||",
    "&&",
    ";",
    "&",
    "(",
    ")",
    ">",
    ">>",
    "<",
    "2>",
    "{",
    "}",
    "do",
    "done",
    "then",
    "if",
    "until",
    "!",
}
SHELL = {"", "sh", "bash", "console", "shell"}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    section: str = ""


@dataclass(frozen=True)
class Command:
    """A simple command: its words, without variables set before it and redirections after it."""

    place: str
    words: tuple[str, ...]
    is_whole: bool = True

    def __str__(self) -> str:
        return f"{self.place} {shlex.join(self.words)}"


def blocks(page: Path) -> Iterator[Block]:
    """Fenced blocks, and indented ones, whose language is unknown."""
    name = page.name if page.parent.name != "examples" else "examples/README.md"
    lines, number, section = page.read_text().splitlines(), 0, ""
    while number < len(lines):
        line = lines[number]
        if line.startswith("#"):
            section = line.lstrip("# ")
        begin = number
        if fence := re.match(r"( *)(```+)(\w*)", line):
            indent, ticks, language = fence.groups()
            number += 1
            while not lines[number].strip().startswith(ticks):
                number += 1
            text = "\n".join(one.removeprefix(indent) for one in lines[begin + 1 : number])
            yield Block(name, begin + 2, language, text, section)
        elif line.startswith("    ") and (begin == 0 or not lines[begin - 1].strip()):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            text = "\n".join(one[4:] for one in lines[begin:number])
            yield Block(name, begin + 1, "", text, section)
            continue
        number += 1


BLOCKS = [block for page in PAGES for block in blocks(page)]


def commands(block: Block) -> Iterator[Command]:
    number = block.line
    for line in re.split(r"(?<!\\)\n", block.text):
        place = f"{block.page}:{number}"
        number += line.count("\n") + 1
        text = line.replace("\\\n", " ").strip().removeprefix("$ ")
        is_whole = not text.startswith("Example: ")  # it may go on in the next line
        text = text.removeprefix("Example: ")
        lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>(){}")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # an output, a body over several lines, or no shell at all
            continue
        simple: list[str] = []
        for word in [*words, ";"]:
            if word in OPERATORS or set(word) <= set("|&;<>(){}"):
                while simple and re.fullmatch(r"[A-Z_]+=.*", simple[0]):
                    del simple[0]
                if simple:
                    yield Command(place, tuple(simple), is_whole)
                for inner in (one[1] for each in simple if (one := re.search(r"\$\((.*)\)", each))):
                    for one in commands(Block(block.page, 0, "", inner)):
                        yield Command(place, one.words, is_whole)
                simple = []
            else:
                simple.append(word)


def commands_in_sentences(page: Path) -> Iterator[Command]:
    text = re.sub(
        r"^ *```.*?^ *```$", lambda block: re.sub(r"[^\n]", "", block[0]), page.read_text(), flags=re.M | re.S
    )
    for span in re.finditer(r"(?<!`)`((?:lbg|make|helm|kubectl) [^`]*)`(?!`)", text):
        place = f"{page.name}:{text.count(chr(10), 0, span.start()) + 1}"
        for command in commands(Block(page.name, 0, "", span[1].replace("\n", " "))):
            yield Command(place, command.words, is_whole=False)


COMMANDS = [one for block in BLOCKS if block.language in SHELL for one in commands(block)]
COMMANDS += [one for page in PAGES for one in commands_in_sentences(page)]


def called(program: str) -> list[Command]:
    """Uses of a program, also behind `kubectl exec … --`, `docker run IMAGE` and the like."""
    found = []
    for one in COMMANDS:
        words = [Path(word).name if word.endswith(f"/bin/{program}") else word for word in one.words]
        if program in words and (words[0] == program or words[words.index(program) - 1] == "--"):
            found.append(Command(one.place, tuple(words[words.index(program) :]), one.is_whole))
    return found


def on_free_ports(block: str, ports: Mapping[str, int]) -> str:
    """The block on other ports than the well-known ones, which may be in use where tests run."""
    for known, port in ports.items():
        block = re.sub(rf"\b{known}\b", str(port), block)
    if "lbg broker serve " not in block or " --listen " in block:
        return block
    return block.replace(
        "lbg broker serve ",
        f"lbg broker serve --listen 127.0.0.1:{ports['5672']} --management 127.0.0.1:{ports['15672']} ",
    )
