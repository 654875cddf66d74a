"""Adds new words of the families that are named, or of all, to frozen_words.toml."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from testing.frozen_words.families import FAMILIES
from testing.frozen_words.words import FILE, differences, read_frozen, written


def main() -> None:
    frozen = read_frozen() if FILE.exists() else {}
    for family in sys.argv[1:] or FAMILIES:
        with tempfile.TemporaryDirectory() as place:
            found = FAMILIES[family](Path(place))
        known = frozen.setdefault(family, {})
        for lines in differences(family, known, found):
            print(*lines, sep="\n", end="\n" if lines else "")
        for subject, words in found.items():
            known.setdefault(subject, set()).update(words)
    FILE.write_text(written(frozen))


if __name__ == "__main__":
    main()
