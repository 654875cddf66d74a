"""Groups on a broker: made, read back, and provisioned by an admin in memory."""
