"""One pure function for each object that a group or a broker has in the cluster."""
