"""The command line: one module a command.

A command imports its dependencies when it runs, so that `kubeocean --help` is quick.
"""

__all__: list[str] = []
