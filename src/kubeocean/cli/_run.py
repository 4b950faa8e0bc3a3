"""Runs a command's coroutine and turns its end into an exit code.

A failure is one message on stderr and an exit code; KUBEOCEAN_DEBUG=1 adds the traceback. Ctrl-C,
SIGTERM and SIGHUP cancel the coroutine, which cleans up before the process ends; a second signal
does not interrupt the cleanup, because objects and files of the command would be left behind. A
closed stdout (`kubeocean status | head -1`) is not a failure: the process ends without a message.
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
_SIGNALLED = 128  # plus the number of the signal
_BROKEN_PIPE = 141  # as a shell reports a program that SIGPIPE ended


def run(work: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run the coroutine that `work` returns; after a failure, exit with its code."""
    try:
        code = _run(work)
    except KeyboardInterrupt:  # before the signal handlers were installed
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
        return _discard_stdout() if _stdout_is_closed() else fail(error, _FAILED)
    except (KubeoceanError, OSError) as error:
        return fail(error, _FAILED)


async def _guarded(work: Callable[[], Coroutine[object, object, None]]) -> int:
    """Await the work; the first signal cancels it and determines the exit code."""
    import asyncio
    import signal

    task = asyncio.current_task()
    assert task is not None
    received = 0

    def cancel(number: int) -> None:
        nonlocal received
        if received:
            typer.echo("already stopping: the command cleans up", err=True)
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


def _stdout_is_closed() -> bool:
    """Whether the reader of stdout has closed it; a BrokenPipeError may also be of a network
    connection.
    """
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    except (OSError, ValueError):
        return False


def _discard_stdout() -> int:
    """Redirect stdout, with its unflushed rest, to /dev/null; return the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return _BROKEN_PIPE


def fail(error: Exception, code: int = _FAILED) -> int:
    """Print the error on stderr and return `code`."""
    if os.environ.get("KUBEOCEAN_DEBUG") == "1":
        from traceback import print_exception

        print_exception(error)
    from kubeocean.errors import printable, remedy_of

    text = printable("; ".join(filter(None, (str(error), remedy_of(error)))))
    # NO_COLOR turns colour off on terminals, too (no-color.org).
    color = False if os.environ.get("NO_COLOR") else None
    typer.secho(f"error: {text}", fg=typer.colors.RED, err=True, color=color)
    return code


@contextmanager
def interruptible(
    under_way: Callable[[], str], again: str = "run the same command again"
) -> Iterator[None]:
    """On cancellation, print the state that `under_way` describes, and how to continue."""
    import asyncio

    try:
        yield
    except asyncio.CancelledError:
        typer.echo(f"stopped: {under_way()}. To continue, {again}", err=True)
        raise


def same_again(*more: str) -> str:
    """Return the command line of this process with the words `more` added."""
    words = sys.argv[1:]
    return command_line(*words, *(word for word in more if word not in words))


def command_line(*words: str) -> str:
    """Return the shell command that runs this installation of `kubeocean` with `words`."""
    from shlex import join
    from shutil import which

    program = sys.argv[0]
    installed = which("kubeocean")
    if installed is not None and os.path.realpath(installed) == os.path.realpath(program):
        program = "kubeocean"
    elif os.path.basename(program) != "kubeocean":  # python -m kubeocean
        return join([sys.executable, "-m", "kubeocean", *words])
    return join([program, *words])
