"""The `kubeocean` command.

Exit codes: 0 done, 1 it could not be done, 2 it was asked for wrongly, 130 and 143 interrupted.
Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Entry point of the console script and of `python -m kubeocean`."""
    try:
        from kubeocean.cli.app import app

        app(prog_name="kubeocean")
    except KeyboardInterrupt:  # before there was any work to cancel
        sys.exit(_INTERRUPTED)
