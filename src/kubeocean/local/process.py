"""Child processes that never outlive this process, and short commands.

The kernel kills the child when this process ends for any reason (PR_SET_PDEATHSIG). The child has a
session of its own, so that Ctrl-C in a terminal reaches this process only, which stops its children
in order. Output of the child goes to a log file; errors show the end of the log.

The kernel ties the child to the *thread* that forked it, not to the program; a child of a worker
thread would be killed when that thread ends. Hence `start` works in the main thread only.

The end of the child is observed through a pidfd on the event loop: without a thread, a signal
handler or a zombie, and no signal can reach another process that got the same number later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kubeocean.errors import InvariantError, LocalError

__all__ = ["Process", "environment", "run"]

# Runs in a separate Python between fork and exec, because Python code in a forked child of a
# program with threads may deadlock. The parent may have ended before prctl took effect: then the
# child has another parent already and exits. Python ignores some signals, as do jobs that a shell
# runs in the background; exec keeps that, so the defaults are restored. 1 is PR_SET_PDEATHSIG.
_LAUNCHER = """
import ctypes, os, signal, sys
if ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0) != 0:
    sys.exit("prctl(PR_SET_PDEATHSIG) failed")
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
for number in signal.valid_signals():
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
"""

_TAIL_BYTES = 64 * 1024  # far more than the lines that an error shows


class Process:
    """A child process that can be started, stopped, killed, paused and started again.

    `argv[0]` is the program: a path, or a name looked up in PATH.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.argv = tuple(str(word) for word in argv)
        self.log = log
        self._env = None if env is None else dict(env)
        self._cwd = cwd
        self._child: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._ended: asyncio.Future[int] | None = None
        self._log_start = 0

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else f"ended {self.returncode}"
        return f"<Process {self.name} {state}>"

    @property
    def running(self) -> bool:
        """Whether the program was started and has not ended; a paused program runs."""
        return self._ended is not None and not self._ended.done()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self.running else None

    @property
    def returncode(self) -> int | None:
        """The exit code of the last run; after a signal, minus its number."""
        return self._ended.result() if self._ended is not None and self._ended.done() else None

    async def start(self) -> None:
        """Start the program; a later failure shows in `wait` and `tail`.

        :raises LocalError: the program does not exist, or is not executable.
        """
        if self.running:
            raise InvariantError("the process is already running", name=self.name, pid=self.pid)
        if threading.current_thread() is not threading.main_thread():
            raise InvariantError("a process is started in the main thread only", name=self.name)
        program = shutil.which(self.argv[0])
        if program is None:
            raise LocalError(f"could not start {self.name}: there is no program {self.argv[0]}")
        launcher = (sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()))
        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self._log_start = os.fstat(handle).st_size
            self._child = subprocess.Popen(
                (*launcher, program, *self.argv[1:]),
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise LocalError(f"could not start {self.name}: {error}") from error
        finally:
            os.close(handle)
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._pidfd = os.pidfd_open(self._child.pid)
        loop.add_reader(self._pidfd, self._reap, loop)

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._child is not None
        assert self._ended is not None
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._ended.set_result(self._child.wait())

    async def wait(self) -> int:
        """Wait for the end of the program; return its exit code."""
        if self._ended is None:
            raise InvariantError("the process was never started", name=self.name)
        return await asyncio.shield(self._ended)

    async def stop(self, *, within_s: float = 10.0) -> int | None:
        """End the program with SIGTERM, after `within_s` with SIGKILL; return its exit code.

        A process that does not run is left as it is.
        """
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a paused program would not receive SIGTERM
        try:
            async with asyncio.timeout(within_s):
                return await self.wait() if self.running else self.returncode
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> int | None:
        """Kill the process with SIGKILL and return its exit code."""
        self._signal(signal.SIGKILL)
        return await self.wait() if self.running else self.returncode

    def pause(self) -> None:
        """Pause the program (SIGSTOP): its sockets stay open, but requests are not answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused program (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if not self.running:
            return
        # The program may have ended just now, before the event loop was notified.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def tail(self, lines: int = 15) -> list[str]:
        """Return the last lines that the last run wrote to the log."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(self._log_start, size - _TAIL_BYTES)
                file.seek(start)
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return []
        return text.splitlines()[-lines:]


# Not every PATH of root has all of these.
_SEARCH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def environment() -> Mapping[str, str]:
    """Return the environment of short commands: PATH only, without proxies and settings."""
    known = os.environ.get("PATH", "").split(os.pathsep)
    search = dict.fromkeys((*filter(None, known), *_SEARCH))
    return {"PATH": os.pathsep.join(search), "HOME": "/root", "LANG": "C.UTF-8"}


def run(*argv: str, stdin: bytes = b"") -> str:
    """Run a command and return its output.

    :raises LocalError: the program failed or does not exist; the message has its output.
    """
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, env=environment())
    except OSError as error:
        raise LocalError(f"could not run {argv[0]}: {error.strerror}") from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise LocalError(f"could not run `{' '.join(argv)}`: {output or done.returncode}")
    return done.stdout.decode("utf-8", "replace")
