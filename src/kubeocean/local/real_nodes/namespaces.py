"""Linux namespaces that end with this process.

`NamespaceSet` is a set of new namespaces (network, mounts, processes, host name, IPC) with a first
process, `node_init`. Programs are started from outside, each as a `Process` with a log. When the
first process ends, all programs end; when this process ends, the first process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kubeocean.errors import LocalError
from kubeocean.local.process import Process, environment
from kubeocean.local.readiness import until_ready
from kubeocean.local.real_nodes import node_init
from kubeocean.runtime.clock import Clock

__all__ = ["NamespaceSet"]

_READY_S: Final = 20.0
_END_S: Final = 10.0
_UNSHARE: Final = (
    *("unshare", "--net", "--mount", "--pid", "--uts", "--ipc"),
    *("--fork", "--kill-child", "--mount-proc", "--propagation=private", "--"),
)
_PYTHON: Final = (sys.executable, "-I", "-S")


class NamespaceSet:
    """The namespaces of one node, its first process and its programs."""

    def __init__(self, name: str, *, root: Path, kubelet: Path, logs: Path, clock: Clock) -> None:
        self._name = name
        self._logs = logs
        self._clock = clock
        self._init = 0
        script = (*_PYTHON, node_init.__file__, name, root, kubelet.resolve())
        first = self._process("world", (*_UNSHARE, *map(str, script)))
        self.processes = {"world": first}

    @property
    def init(self) -> int:
        """Process ID of the first process, in the machine's process namespace."""
        if not self.processes["world"].running:
            raise LocalError(f"node {self._name} is not running")
        return self._init

    def inside(self, path: str) -> Path:
        """Return the machine's path for a path inside the node's mount namespace."""
        return Path(f"/proc/{self.init}/root{path}")

    # All namespaces.

    async def start(self) -> None:
        """Create the namespaces of the node; return when its init process is ready."""
        first = self.processes["world"]
        await first.start()

        async def is_made() -> bool:
            self._init = _child_of(first)
            return bool(self._init) and self.inside("/run/ready").exists()

        await until_ready(
            first,
            is_made,
            what=f"the namespaces of node {self._name}",
            within_s=_READY_S,
            clock=self._clock,
        )

    async def end(self) -> None:
        """Kill all processes in the namespaces; the kernel then removes mounts and interfaces."""
        if self._init and self.processes["world"].running:
            # The first process, not its parent, which ends by itself when all others have ended.
            _send(self._init, signal.SIGKILL)
        async with asyncio.TaskGroup() as group:
            for process in self.processes.values():
                group.create_task(_ended(process))

    # One program.

    async def start_program(self, name: str, argv: Sequence[str]) -> None:
        """Start a program in all namespaces of the node."""
        await self._enter(name, argv, ("--mount", "--net", "--uts", "--ipc", "--pid"))

    async def start_script(self, name: str, *words: str) -> None:
        """Start a Python script in the node's process namespace only.

        The script has the machine's files and network, and ends with the node.
        """
        await self._enter(name, (*_PYTHON, *words), ("--pid",))

    async def _enter(self, name: str, argv: Sequence[str], namespaces: Sequence[str]) -> None:
        # nsenter stays outside as the parent of the program; the end of nsenter ends the program.
        enter = ("nsenter", f"--target={self.init}", *namespaces, "--")
        process = self._process(name, (*enter, "setpriv", "--pdeathsig=KILL", *argv))
        self.processes[name] = process
        await process.start()

    async def kill(self, name: str) -> None:
        """Kill one program with SIGKILL."""
        self._signal(name, signal.SIGKILL)
        await _ended(self.processes[name])

    def pause(self, name: str) -> None:
        """Pause one program (SIGSTOP)."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Resume a paused program."""
        self._signal(name, signal.SIGCONT)
        self.processes[name].resume()  # nsenter, its parent, was paused, too

    async def restart(self, name: str) -> None:
        """Kill a program if it runs, and start it again."""
        await self.kill(name)
        await self.processes[name].start()

    def _signal(self, name: str, number: signal.Signals) -> None:
        _send(_child_of(self.processes[name]), number)

    def _process(self, name: str, argv: Sequence[str]) -> Process:
        log = self._logs / f"{name}.log"
        return Process(name, argv, log=log, env=environment(), cwd=Path("/"))


async def _ended(process: Process) -> None:
    """Wait until the parent of a killed program has ended, so that no zombie is left."""
    process.resume()
    if process.running:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await process.wait()
    await process.kill()


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        if pid:
            os.kill(pid, number)


def _child_of(process: Process) -> int:
    """Return the PID of a process's child; 0 if it has no child."""
    parent = process.pid
    numbers = filter(str.isdigit, os.listdir("/proc")) if parent is not None else ()
    return next((int(pid) for pid in numbers if _parent_of(pid) == parent), 0)


def _parent_of(pid: str) -> int:
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except OSError:  # the process has ended meanwhile
        return 0
    return int(stat.rpartition(")")[2].split()[1])
