"""Members: in the test's loop, in a process, and in a world of virtual time."""
