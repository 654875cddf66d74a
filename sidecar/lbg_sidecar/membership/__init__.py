"""Who is a member of the group right now, as far as this one knows. Pure: no asyncio, sockets or clock in here."""
