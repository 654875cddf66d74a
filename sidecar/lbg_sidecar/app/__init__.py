"""Channels to the application: each takes calls, makes them, and reports how every one of them ended."""
