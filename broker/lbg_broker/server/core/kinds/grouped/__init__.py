"""Message groups: of each group one consumer at a time, and no group waits for another.

Behaviour: the document "Using Message Groups"; ADR 29 says what was decided where it leaves a choice.
"""
