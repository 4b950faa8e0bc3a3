"""The command line: one module a command.

Nothing is imported here, and a command imports what it needs when it runs: `kubeocean --help` is
quick.
"""

__all__: list[str] = []
