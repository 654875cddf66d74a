"""Which queues this member should serve, and how the active role moves. Pure: no asyncio, sockets or clock."""
