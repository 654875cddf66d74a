"""`lbg group` subcommands."""
