"""Running: how a command's work is run and how it ends.

Whatever goes wrong is one message on stderr and an exit code; KUBEOCEAN_DEBUG=1 shows where it came
from. Ctrl-C, SIGTERM and SIGHUP cancel the work, which cleans up after itself before we end; a
second one does not cut that short, because what was not cleaned up then would stay. Where nobody
reads our results any more (`kubeocean status | head -1`), that is no failure: we end without a
word.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

import typer

__all__ = ["command_line", "fail", "interruptible", "run", "same_again"]

_FAILED = 1
_USAGE = 2
_INTERRUPTED = 130
_SIGNALLED = 128  # and the number of the signal
_UNREAD = 141  # as of a program that SIGPIPE ends


def run(work: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run what `work` returns to its end; on failure, leave with the right code."""
    try:
        code = _run(work)
    except KeyboardInterrupt:  # while we were still getting ready
        code = _INTERRUPTED
    if code:
        raise typer.Exit(code)


def _run(work: Callable[[], Coroutine[object, object, None]]) -> int:
    import asyncio

    from kubeocean.errors import ConfigError, KubeoceanError

    try:
        return asyncio.run(_guarded(work))
    except ConfigError as error:
        return fail(error, _USAGE)
    except BrokenPipeError as error:
        return _hush() if _nobody_reads() else fail(error, _FAILED)
    except (KubeoceanError, OSError) as error:
        return fail(error, _FAILED)


async def _guarded(work: Callable[[], Coroutine[object, object, None]]) -> int:
    """Do it; the first polite signal is a cancellation, and decides the code."""
    import asyncio
    import signal

    task = asyncio.current_task()
    assert task is not None
    received = 0

    def cancel(number: int) -> None:
        nonlocal received
        if received:
            typer.echo("ending already; what was started is being stopped", err=True)
        else:
            received = number
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, cancel, number)
    try:
        await work()
    except asyncio.CancelledError:
        if not received:
            raise
        return _SIGNALLED + received
    return 0


def _nobody_reads() -> bool:
    """Whether it is our own output that was closed, and not a connection to somebody."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    except (OSError, ValueError):
        return False


def _hush() -> int:
    """Let the rest go nowhere: what is still to be flushed at the end, too; the code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return _UNREAD


def fail(error: Exception, code: int = _FAILED) -> int:
    """Say what went wrong; the code."""
    if os.environ.get("KUBEOCEAN_DEBUG") == "1":
        from traceback import print_exception

        print_exception(error)
    # Colour is for terminals, and for those who did not ask to be spared (no-color.org).
    color = False if os.environ.get("NO_COLOR") else None
    typer.secho(f"error: {error}", fg=typer.colors.RED, err=True, color=color)
    return code


@contextmanager
def interruptible(under_way: Callable[[], str]) -> Iterator[None]:
    """Tell who ends us what is under way then."""
    import asyncio

    try:
        yield
    except asyncio.CancelledError:
        typer.echo(f"stopped: {under_way()}. To go on, say the same again", err=True)
        raise


def same_again(*more: str) -> str:
    """How to say what was said, and more."""
    said = sys.argv[1:]
    return command_line(*said, *(word for word in more if word not in said))


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
