"""Parts that all of LBG shares: the contract of a group, AMQP, the client, the publisher and the administration.

- ``group``      the contract; pure, standard library only, no I/O
- ``amqp``       AMQP 0-9-1 as a sans-IO codec and connection machine, both roles; no I/O
- ``client``     asyncio client on ``amqp``
- ``journal``    append-only record files, written by publishers and members
- ``publisher``  the ordered publisher of a group
- ``admin``      create, show, change and delete a group on a broker; its dead letters and parked messages
"""
