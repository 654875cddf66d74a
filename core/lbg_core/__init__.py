"""Load-balanced groups on a broker: contract, wire, client, publisher, administration, and the embedded broker.

Sub-packages and what each may touch:

- ``group``         the contract; pure, standard library only, no I/O
- ``amqp``          AMQP 0-9-1 as a sans-IO codec and connection machine, both roles; no I/O
- ``client``        asyncio client on ``amqp``
- ``journal``       append-only record files, written by publishers and members
- ``publisher``     the ordered publisher of a group
- ``admin``         create, show, list and delete a group on a broker
- ``dead_letters``  list, replay and discard dead letters
- ``server``        the embedded broker; only the command line and tests may import it
"""
