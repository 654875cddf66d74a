"""Input files of a publisher: CSV and JSON lines, read as rows and published in order."""
