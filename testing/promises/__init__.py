"""The promises of planned moves, judged from outside: `make promises`, docs/internals/promises.md.

`matrix` has the cells and which of them a run takes, `expectations` what each must show, and `judge` decides it: all
three are pure. `application` is what members call, and writes a line at the start and the end of each call. `load`
generates what is published, `processes` starts members, publisher and broker, `scenario` plays one cell and `results`
keeps and shows what was seen. Nothing of the product's own judgement, journal or status is in a verdict.
"""
