"""The embedded broker as a pure machine: commands in, effects out. No sockets, files, threads or clock here.

`Broker.apply(command, now)` changes the state and returns what to send; `Broker.seal()` hands over what to
store. Start reading at `machine.py`.
"""
