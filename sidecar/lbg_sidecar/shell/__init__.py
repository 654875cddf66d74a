"""The thin shell around the machine: connections, channels, clocks and files."""
