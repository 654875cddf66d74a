"""What a status says: conditions with reasons from a closed list, and what was seen of a group. No I/O here."""
