"""`lbg demo`: the figures of «Sticky Load Balancing» played on a broker, and the proof.

`script` and `model` are pure; `screen` draws them; `processes` has the broker, the group and the members, `observer`
reads the broker, and `run` plays the script.
"""
