"""`lbg demo`: the document's figures ("Sticky Load Balancing") played on a broker, and the proof at the end.

`script` and `scene` are pure; `screen` and `lines` draw them; `stage` is the broker and the group,
`children` and `playing` run the processes.
"""
