"""`lbg sidecar` as a process, and what is around it: load, inbox, publishing API."""
