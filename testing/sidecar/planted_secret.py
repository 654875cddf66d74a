"""A secret that is planted somewhere, and every shape in which it could come out elsewhere."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

_SAME_FOR_ANY_NEIGHBOUR = 6  # letters of base64 that the bytes around a text can change, at either end


@dataclass(frozen=True)
class Planted:
    """`text` should have marks that URLs and JSON escape."""

    text: str

    @property
    def in_url(self) -> str:
        return quote(self.text, safe="")

    def shapes(self) -> set[str]:
        """As it is, escaped for URLs and JSON, its halves, and in base64 at each of the three offsets."""
        half = len(self.text) // 2
        shapes = {self.text, self.text[:half], self.text[half:], json.dumps(self.text)[1:-1]}
        shapes |= {quote(self.text, safe=""), quote(self.text), quote_plus(self.text)}
        for offset in range(3):
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                letters = encode(b"-" * offset + self.text.encode()).decode().rstrip("=")
                shapes.add(letters[_SAME_FOR_ANY_NEIGHBOUR if offset else 0 : -_SAME_FOR_ANY_NEIGHBOUR])
        shapes.add(self.text.encode().hex())
        return shapes

    def found_in(self, text: str) -> set[str]:
        return {shape for shape in self.shapes() if shape in text}
