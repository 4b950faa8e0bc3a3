"""Commands: `kubeocean` as its users run it, in a home of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kubeocean.local.state import StateDirectory, state_home

__all__ = ["Home", "Result", "Running"]


@dataclass(frozen=True, slots=True)
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class Running:
    """A command under way."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.output = ""

    async def wait_for_output(self, text: str) -> None:
        """Wait until the command has printed `text`, on stdout or stderr."""
        assert self._process.stdout is not None
        while text not in self.output:
            chunk = await self._process.stdout.read(4096)
            assert chunk, f"it ended without saying {text!r}:\n{self.output}"
            self.output += chunk.decode()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        out, _ = await self._process.communicate()
        self.output += out.decode()
        return self._process.returncode or 0


class Home:
    """State and temporary files of commands, under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.temporary = root / "tmp"
        self.temporary.mkdir(parents=True)
        self.environ = {
            **os.environ,
            "XDG_STATE_HOME": str(root / "state"),
            "TMPDIR": str(self.temporary),
        }
        self.environ.pop("KUBEOCEAN_DEBUG", None)

    def directory(self, name: str = "ocean") -> StateDirectory:
        return StateDirectory(name, state_home(self.environ))

    async def run(self, *words: str, wrapper: tuple[str, ...] = ()) -> Result:
        """Run it to its end."""
        return await self.run_as(*wrapper, sys.executable, "-m", "kubeocean", *words)

    async def run_as(self, *words: str) -> Result:
        """Run a program that plays `kubeocean` to its end."""
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environ,
        )
        out, err = await process.communicate()
        return Result(process.returncode or 0, out.decode(), err.decode())

    @asynccontextmanager
    async def running(self, *words: str) -> AsyncIterator[Running]:
        """Run a `kubeocean` command in the background of the test."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kubeocean", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self.environ,
        )
        running = Running(process)
        try:
            yield running
        finally:
            if process.returncode is None:
                process.kill()
                await running.ended()

    def processes(self) -> dict[int, str]:
        """Return the command lines of all processes that have anything to do with this home."""
        mark = os.fsencode(self.root)
        actual: dict[int, str] = {}
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                words = Path(entry.path, "cmdline").read_bytes()
                place = os.fsencode(os.readlink(f"{entry.path}/cwd"))
            except OSError:
                continue
            if mark in words or place.startswith(mark):
                actual[int(entry.name)] = words.replace(b"\0", b" ").decode("utf-8", "replace")
        return actual
