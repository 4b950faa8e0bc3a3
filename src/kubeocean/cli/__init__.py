"""The command line: one module for each command.

`main` is the entry point of the process, `commands` the table of commands; modules whose names
begin with `_` are shared by commands. A command imports its dependencies when it runs, so that
`kubeocean --help` is quick.
"""

__all__: list[str] = []
