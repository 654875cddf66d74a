"""The data pipeline: it reads journals with PySpark and proves order, shows load, plans counts and forecasts demand.

Transforms take DataFrames and give DataFrames; files are read and written at the edge of a job (`reading`,
`writing`). Knows `lbg_broker.group` and nothing of members, operator or command line.
"""
