"""Every job of the pipeline by its command, on a small journal; its tables and files have the frozen words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testing.frozen_words.families import PARQUET, difference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_no_table_no_column_and_no_file_is_removed_or_changed(spark: SparkSession, tmp_path: Path) -> None:
    message = difference(PARQUET, tmp_path)
    if message:
        pytest.fail(message, pytrace=False)
