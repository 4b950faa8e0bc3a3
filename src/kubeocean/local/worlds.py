"""Worlds: namespaces that end with us.

A `World` is a set of new namespaces (network, mounts, processes, host name, IPC) around a first
process, `nodeworld`. Programs are started in it from outside, so each is a `Process` of ours with a
log; all of them end when the first process does, and that ends when we do.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kubeocean.errors import LocalError
from kubeocean.local import nodeworld
from kubeocean.local.process import Process
from kubeocean.local.readiness import until_ready
from kubeocean.runtime.clock import Clock

__all__ = ["World", "child_of"]

_READY_S: Final = 20.0
_SEARCH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_UNSHARE: Final = (
    *("unshare", "--net", "--mount", "--pid", "--uts", "--ipc"),
    *("--fork", "--kill-child", "--mount-proc", "--propagation=private", "--"),
)
_PYTHON: Final = (sys.executable, "-I", "-S")


class World:
    """The namespaces of one node; `root` is where its files are, `kubelet` the program."""

    def __init__(self, name: str, *, root: Path, kubelet: Path, logs: Path, clock: Clock) -> None:
        self._name = name
        self._logs = logs
        self._clock = clock
        self._init = 0
        script = (*_PYTHON, nodeworld.__file__, name, root, kubelet.resolve())
        self.process = Process(
            "world", (*_UNSHARE, *script), log=logs / "world.log", env=environment(), cwd=Path("/")
        )

    @property
    def init(self) -> int:
        """The first process, as the machine numbers it."""
        if not self.process.running:
            raise LocalError(f"node {self._name} does not run")
        return self._init

    async def start(self) -> None:
        """Return when the inside is made."""
        await self.process.start()
        await until_ready(
            self.process,
            self._is_made,
            what=f"the world of node {self._name}",
            within_s=_READY_S,
            clock=self._clock,
        )

    async def _is_made(self) -> bool:
        parent = self.process.pid
        self._init = child_of(parent) if parent is not None else 0
        return bool(self._init) and self.inside("/run/ready").exists()

    def inside(self, path: str) -> Path:
        """A path of the world, seen from the machine."""
        return Path(f"/proc/{self.init}/root{path}")

    def program(self, name: str, argv: Sequence[str]) -> Process:
        """A program in all namespaces of the world."""
        return self._program(name, argv, ("--mount", "--net", "--uts", "--ipc", "--pid"))

    def script(self, name: str, path: str, *arguments: str) -> Process:
        """A Python script that sees files and network of the machine, but ends with the world."""
        return self._program(name, (*_PYTHON, path, *arguments), ("--pid",))

    def _program(self, name: str, argv: Sequence[str], namespaces: Sequence[str]) -> Process:
        # nsenter stays outside as the parent of the program; if it is killed, so is the program.
        enter = ("nsenter", f"--target={self.init}", *namespaces, "--")
        bound = ("setpriv", "--pdeathsig=KILL", *argv)
        log = self._logs / f"{name}.log"
        return Process(name, (*enter, *bound), log=log, env=environment(), cwd=Path("/"))

    async def end(self) -> None:
        """End everything in it. There is nothing to be gentle for: a world leaves no traces."""
        await self.process.kill()


def child_of(parent: int) -> int:
    """A child process of `parent`, 0 if it has none."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and _parent_of(entry.name) == parent:
            return int(entry.name)
    return 0


def _parent_of(pid: str) -> int:
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except OSError:  # it has ended meanwhile
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def environment() -> Mapping[str, str]:
    """What programs of a node are told: no proxies, no settings of ours."""
    known = os.environ.get("PATH", "").split(os.pathsep)
    search = dict.fromkeys((*known, *_SEARCH))
    return {"PATH": os.pathsep.join(filter(None, search)), "HOME": "/root", "LANG": "C.UTF-8"}


def send_to_child(process: Process, number: signal.Signals) -> None:
    """Signal the program behind an entered `process`."""
    child = child_of(process.pid) if process.pid is not None else 0
    if child:
        os.kill(child, number)
