"""`lbg group`: everything about groups on a broker, as the document's admin does it; a module for what is alike."""
