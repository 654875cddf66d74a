"""Journals: sound, broken, random, and with planted faults."""
