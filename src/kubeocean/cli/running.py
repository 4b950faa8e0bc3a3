"""Running: how a command's work is run and how it ends.

Whatever goes wrong is one message on stderr and an exit code; KUBEOCEAN_DEBUG=1 shows where it came
from. SIGTERM, SIGHUP and Ctrl-C cancel the work, which cleans up after itself before we end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine

import typer

__all__ = ["command_line", "fail", "run"]

_FAILED = 1
_USAGE = 2
_INTERRUPTED = 130
_SIGNALLED = 128  # and the number of the signal


def run(work: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run what `work` returns to its end; on failure, leave with the right code."""
    import asyncio

    from kubeocean.errors import ConfigError, KubeoceanError

    code = 0
    try:
        code = asyncio.run(_guarded(work))
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except ConfigError as error:
        code = fail(error, _USAGE)
    except (KubeoceanError, OSError) as error:
        code = fail(error, _FAILED)
    if code:
        raise typer.Exit(code)


async def _guarded(work: Callable[[], Coroutine[object, object, None]]) -> int:
    """asyncio turns Ctrl-C into a cancellation; this does the same for other polite signals."""
    import asyncio
    import signal

    task = asyncio.current_task()
    assert task is not None
    received = 0

    def cancel(number: int) -> None:
        nonlocal received
        received = number
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, cancel, number)
    try:
        await work()
    except asyncio.CancelledError:
        if not received:
            raise
        return _SIGNALLED + received
    return 0


def fail(error: Exception, code: int = _FAILED) -> int:
    """Say what went wrong; the code."""
    if os.environ.get("KUBEOCEAN_DEBUG") == "1":
        from traceback import print_exception

        print_exception(error)
    # Colour is for terminals, and for those who did not ask to be spared (no-color.org).
    color = False if os.environ.get("NO_COLOR") else None
    typer.secho(f"error: {error}", fg=typer.colors.RED, err=True, color=color)
    return code


def command_line(*words: str) -> str:
    """How to call us again, from the shell that we were called from."""
    from shlex import join
    from shutil import which

    program = sys.argv[0]
    found = which("kubeocean")
    if found is not None and os.path.realpath(found) == os.path.realpath(program):
        program = "kubeocean"
    elif os.path.basename(program) != "kubeocean":  # python -m kubeocean
        return join([sys.executable, "-m", "kubeocean", *words])
    return join([program, *words])
