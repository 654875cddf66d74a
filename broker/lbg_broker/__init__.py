"""How a load-balanced group lives on a broker: its contract, the wire, the client, the embedded broker.

Sub-packages and what each may touch:

- ``group``         the contract; pure, standard library only, no I/O
- ``amqp``          AMQP 0-9-1 as a sans-IO codec and connection machine, both roles; no I/O
- ``client``        asyncio client on ``amqp``
- ``journal``       append-only record files, written by publishers and members
- ``publishing``    the ordered publisher of a group
- ``provisioning``  create, show, list and delete a group on a broker
- ``server``        the embedded broker; nobody but the command line and tests may import it
"""
