"""The broker's core without I/O, its queue types, and the models that judge their histories."""
