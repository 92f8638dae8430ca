"""The command line: one file per command in `commands/`, found by name. The only package that prints or draws."""
