"""From delivery to verdict to ack: lanes, settling, positions. Pure: no asyncio, sockets or clock in here."""
