"""How many hashes, queues and members a group needs, from the work that its keys have brought.

`observing`, `hashes` and `hot_keys` are DataFrame -> DataFrame; `sharing`, `demand`, `simulating` and `choosing` are
pure Python on as many numbers as there are hashes; `gathering` is what lies between.
"""
