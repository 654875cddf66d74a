"""Checks of journals, one implementation each, for a batch and a stream: functions of arrays, no I/O here.

A batch is one epoch: nothing precedes it, and its window has no end. A stream also passes its memory, and a flag for
deliveries that are there for comparison only.

order           a sub-stream's numbers rise, as delivered and as acknowledged
overlap         one application at a time has a key's messages
completeness    what is published is delivered, and acknowledged once
placement       which member a hash is with, and which session a message is in
"""
