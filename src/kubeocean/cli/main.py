"""The entry point of the process `kubeocean`; `commands.py` has the table of its commands.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not finished before the time-out, 130 and 143
interrupted. Results go to stdout; progress, warnings and errors go to stderr.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # without an import of `typing`, during which Ctrl-C has a traceback
if TYPE_CHECKING:
    from typer import Typer

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command line: the entry point of the console script and of `python -m kubeocean`."""
    try:
        app = _import_commands()
        app(prog_name="kubeocean")
    except KeyboardInterrupt:  # before a command has started
        sys.exit(_INTERRUPTED)


def _import_commands() -> Typer:
    """Import the commands; Ctrl-C ends the process without a traceback.

    A KeyboardInterrupt would not do: some imports turn it into an error of another type.
    """
    import signal

    # A process in the background of a shell ignores SIGINT.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(_INTERRUPTED))
    from kubeocean.cli.commands import app

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return app
