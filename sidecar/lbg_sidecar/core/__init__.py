"""The member as pure machines: events and time in, effects out. No asyncio, sockets, files or clocks."""
