"""Test tools: what tests, benchmarks and the long runs start, simulate, damage and judge with.

The charter:

- Nothing here is a test, and nothing here is measured: tests are in `tests/`, benchmarks in `bench/`. Both import this
  package; it imports neither, and the product imports none of the three (`make imports`).
- A judge decides by what applications, files and foreign clients recorded, never by a report of the product.
- A fake stands where the product does I/O. What decides is the product's own code.
- It is run and imported from the root of the repository (`python -m testing.chaos`), and is not in the wheel.

Whole programs are `simulation`, `chaos`, `promises`, `exactly_once`, `full_disk`, `http_fuzz` and `mutated_sessions`.
The other packages are named by the part of the product that they stand in for or start.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""Root of the repository."""
