"""A short script of DuckDB: the counts of a verdict from journals, without keys, times or causes."""

import sys

import duckdb

con = duckdb.connect()
con.execute("set threads = 2")
con.execute(
    f"""create table r as select * from read_json('{sys.argv[1]}/*.jsonl', format = 'newline_delimited',
        ignore_errors = true, union_by_name = true)"""
)
con.execute("create view p as select * from r where kind = 'published'")
con.execute("create view d as select * from r where kind = 'delivered'")
of_message, before = "publisher, hash, seq", "rows between unbounded preceding and 1 preceding"
for name, query in {
    "lost": f"""select count(*) from (select {of_message} from p except
        select {of_message} from d where verdict in ('ack', 'dead', 'repeat'))""",
    "repeated": f"""select count(*) from (select 1 from d where verdict in ('ack', 'dead')
        group by {of_message} having count(*) > 1)""",
    "inverted": f"""select count(*) from (select seq, max(seq) over (partition by publisher, key
        order by delivered_at_us, incarnation, delivery {before}) as m from d) where seq < m""",
    "overlaps": f"""select count(*) from (select started_at_us, max(finished_at_us) over (partition by key
        order by started_at_us {before}) as f from d) where started_at_us < f""",
}.items():
    print(name, con.execute(query).fetchall()[0][0])
