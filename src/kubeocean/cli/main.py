"""The entry point of the process `kubeocean`; `commands.py` has the table of its commands.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not finished before the time-out, 130 and 143
interrupted. Results go to stdout; progress, warnings and errors go to stderr.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command line: the entry point of the console script and of `python -m kubeocean`."""
    try:
        from kubeocean.cli.commands import app

        app(prog_name="kubeocean")
    except KeyboardInterrupt:  # before a command has started
        sys.exit(_INTERRUPTED)
