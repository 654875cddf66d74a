"""The data pipeline: reads journals with PySpark, verifies order, profiles load, plans and forecasts.

Transforms are DataFrame -> DataFrame; files are read and written at the edge of a job (`journal`, `spark.output`).
Imports `lbg_core.group`, and nothing of members, operator or command line.
"""
