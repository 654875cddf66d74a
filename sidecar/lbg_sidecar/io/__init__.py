"""I/O around the core: connections, channels, clocks, files and the log."""
