"""Cut consecutive days out of the flights file.

    python examples/make_sample.py flights.csv.zip cli/lbgroup/demo/flights-sample.csv.gz

Rows and columns stay as they are. The days from 1 February 2013 on hold a snowstorm (8 and 9 February), whose
cancelled flights often have no tail number: messages without a key.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from datetime import date, timedelta
from pathlib import Path

from lbg_core.publisher import open_source
from lbg_core.publisher.input.source import Lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", help="the flights, CSV, also .gz or .zip")
    parser.add_argument("output", type=Path, help="a .csv.gz to write")
    parser.add_argument(
        "--first-day", type=date.fromisoformat, default=date(2013, 2, 1), metavar="YYYY-MM-DD"
    )
    parser.add_argument("--days", type=int, default=28)
    arguments = parser.parse_args()
    last_day = arguments.first_day + timedelta(days=arguments.days - 1)

    text = io.StringIO(newline="")
    rows = without_key = 0
    with open_source(arguments.input) as source:
        reader = csv.DictReader(line.decode() for line in Lines(source))
        assert reader.fieldnames is not None
        writer = csv.DictWriter(text, reader.fieldnames, lineterminator="\n")
        writer.writeheader()
        for row in reader:
            if arguments.first_day <= date(int(row["year"]), int(row["month"]), int(row["day"])) <= last_day:
                writer.writerow(row)
                rows += 1
                without_key += row["tailnum"] == "NA"
    # Without a time stamp in it, the same input gives the same file.
    arguments.output.write_bytes(gzip.compress(text.getvalue().encode(), compresslevel=9, mtime=0))
    size = arguments.output.stat().st_size
    print(f"{rows} rows, {without_key} of them without a tail number, {size} bytes: {arguments.output}")


if __name__ == "__main__":
    main()
