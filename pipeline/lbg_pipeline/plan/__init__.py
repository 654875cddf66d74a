"""Planning: the hashes, queues and members that a group needs, from the work of its keys.

`load` and `candidates` are DataFrame -> DataFrame; `simulate` and `choose` are pure Python on as many numbers as there
are hashes; `recommend` connects the two.
"""
