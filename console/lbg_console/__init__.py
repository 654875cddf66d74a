"""The console: the groups of a broker in a browser, live.

`survey` observes all groups once, however many look on; `observed_group`, `timeline` and `documents` are pure: what is
observed comes in with the time as an argument, and JSON goes out. `application` serves it; `sessions` and `protection`
are its security, `acts` what a signed-in user may do. `pages` has the templates and static files.
"""
