"""Publishing to a group: in order, without loss, each message stamped with its key, hash and sequence.

`ordering` (with `line` and `stamping`) is a pure machine; `publisher` is its asyncio shell on
`lbg_broker.client`; `rows` and its neighbours read files; `state_file` lets a publisher go on after its own
death.
"""
