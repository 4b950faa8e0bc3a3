"""Lifecycle of an ocean (local clusters) in the background: start, find, stop.

One start or stop at a time per name. `bring_up` returns an ocean that runs already; if another
version or installation of Kubeocean started that ocean, its processes are restarted with this one.
Processes that a killed supervisor left are ended first, and the data is used again. `take_down`
returns when no process is left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubeocean.api import group
from kubeocean.errors import LocalError
from kubeocean.local import ports
from kubeocean.local.assets import DEFAULT, EVERYTHING, Assets, ensure
from kubeocean.local.cache import disk_full
from kubeocean.local.demo import at_work
from kubeocean.local.files import exclusive, private_directory
from kubeocean.local.ocean import Ocean, Shape
from kubeocean.local.progress import Progress, readable_bytes
from kubeocean.local.real_nodes.node import available
from kubeocean.local.state import (
    OceanState,
    ProcessId,
    StateDirectory,
    processes_under,
    state_home,
    this_program,
)
from kubeocean.local.supervisor import launch
from kubeocean.runtime.clock import Clock, RealClock

__all__ = ["Lifecycle", "Wish", "ephemeral_ocean"]

_POLL_S: Final = 0.1
_STOP_S: Final = 60.0
_KILL_S: Final = 10.0
_GRACE_S: Final = 2.0
_LOG_LINES: Final = 15
_LOW_SPACE: Final = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The requested size of an ocean (local clusters); None: that of the running ocean, else the
    default.
    """

    workers: int | None = None
    nodes: int | None = None
    real_nodes: bool | None = None
    port: int | None = None
    bare: bool | None = None
    label_domain: str | None = None
    fleet: bool | None = None

    def shape(self) -> Shape:
        """Return the size of the ocean to start; by default 1 real node or 3 simulated nodes per
        worker.
        """
        real = bool(self.real_nodes)
        workers = 2 if self.workers is None else self.workers
        fleet = workers > 0 if self.fleet is None else self.fleet
        return Shape(
            workers=workers,
            nodes=(1 if real else 3) if self.nodes is None else self.nodes,
            real_nodes=real,
            port=self.port or 0,
            product=not self.bare,
            label_domain=self.label_domain or group.DEFAULT.name,
            fleet=fleet and not self.bare,
        )

    def differs(self, shape: Shape) -> bool:
        """Return whether an explicitly requested value differs from the running `shape`."""
        return any(value != getattr(shape, field) for field, value in self._asked().items())

    def __str__(self) -> str:
        """Return the size as options of the command line."""
        words: list[str] = []
        for field, value in self._asked().items():
            if field == "product":
                words.append("--product" if value else "--bare")
            elif field == "fleet":
                words.append("--fleet" if value else "--no-fleet")
            elif isinstance(value, bool):
                words.append("--real-nodes" if value else "--simulated-nodes")
            else:
                words.append(f"--{field.replace('_', '-')} {value}")
        return " ".join(words)

    def _asked(self) -> dict[str, int | bool | str]:
        given = {
            "workers": self.workers,
            "nodes": self.nodes,
            "real_nodes": self.real_nodes,
            "port": self.port,
            "product": None if self.bare is None else not self.bare,
            "label_domain": self.label_domain,
            "fleet": self.fleet,
        }
        return {field: value for field, value in given.items() if value is not None}


class Lifecycle:
    """Starts, finds and stops one named ocean in the background."""

    def __init__(
        self,
        name: str,
        *,
        environ: Mapping[str, str],
        progress: Progress,
        clock: Clock | None = None,
    ) -> None:
        self.directory = StateDirectory(name, state_home(environ))
        self._environ = environ
        self._progress = progress
        self._clock = clock or RealClock()

    def running(self) -> OceanState | None:
        """Return the state of the ocean if it runs, without waiting; else None."""
        state = self.directory.read()
        return state if state is not None and state.alive and state.phase == "running" else None

    async def bring_up(self, wish: Wish) -> tuple[OceanState, bool]:
        """Return the running ocean, and whether the ocean ran before the call.

        :raises LocalError: the ocean cannot be started, or one of another size runs.
        """
        shape = wish.shape()
        async with self._alone():
            state = self.directory.read()
            if state is not None and state.phase in ("stopping", "failed"):
                await self._end()
            if state is not None and state.alive:
                running = await self._join(state, wish)
                if running.program == this_program():
                    return running, True
                self._progress.note(
                    f"{state.name} was started by {running.program or 'an earlier version'}: "
                    f"restarting its processes with {this_program()}; its data stays"
                )
                shape = running.shape
                await self._end()
            await self._sweep()
            assets = await _assets(shape, environ=self._environ, progress=self._progress)
            with disk_full("start local clusters", self.directory.path, needed=_LOW_SPACE):
                self.directory.make()
                self.directory.forget()
                child = launch(self.directory, shape, assets)
            return await self._wait_until_running(child), False

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        waiting = f"waiting for another start or stop of {self.directory.name}"
        lock = self.directory.lock
        with disk_full("use the state directory", lock.parent, needed=_LOW_SPACE):
            private_directory(lock.parent)  # no other user is to hold the lock
            async with exclusive(lock, waiting=waiting, progress=self._progress):
                yield

    async def _join(self, state: OceanState, wish: Wish) -> OceanState:
        if wish.differs(state.shape):
            raise LocalError(
                f"{state.name} is up with {state.shape}; to have it with {wish}, take it down "
                f"first (`kubeocean down --name {state.name}`), or choose another --name"
            )
        return state if state.phase == "running" else await self._wait_until_running(None)

    async def _wait_until_running(self, child: subprocess.Popen[bytes] | None) -> OceanState:
        """Show the progress of a start until the ocean runs; stop it on interruption."""
        try:
            with self._progress.task(f"starting {self.directory.name}") as task:
                while True:
                    state = self.directory.read()
                    if state is not None and state.phase == "running" and state.alive:
                        if child is not None:
                            child.returncode = 0  # the supervisor outlives this process
                        return state
                    ended = child.poll() is not None if child else not (state and state.alive)
                    if ended:
                        raise self._failure(self.directory.read())
                    task.say(state.detail if state is not None else "")
                    await self._clock.sleep(_POLL_S)
        except BaseException:
            if child is not None:
                child.terminate()  # the supervisor's process ID may not be recorded yet
            await self._end()
            raise

    def _failure(self, state: OceanState | None) -> LocalError:
        if state is not None and state.error:
            return LocalError(state.error)
        free = shutil.disk_usage(self.directory.path).free
        if free < _LOW_SPACE:
            return LocalError(
                f"could not start {self.directory.name}: no space left in {self.directory.path}: "
                f"{readable_bytes(free)} are free"
            )
        lines = self.directory.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        log_end = "\n".join(f"  {line}" for line in lines) or "  (nothing)"
        return LocalError(
            f"could not start {self.directory.name}: its supervisor ended; "
            f"the end of {self.directory.log}:\n{log_end}"
        )

    async def take_down(self, *, purge: bool = False) -> bool:
        """Stop the ocean and all of its processes; return whether any process ran.

        :raises LocalError: a process does not end.
        """
        async with self._alone():
            was_there = await self._end()
            if purge and self.directory.path.exists():
                shutil.rmtree(self.directory.path)
                was_there = True
            return was_there

    def clusters_left(self) -> list[str]:
        """Return the names of the clusters that have processes."""
        data = self.directory.data
        if not data.exists():
            return []
        names = sorted(path.name for path in data.iterdir() if path.is_dir())
        return [name for name in names if processes_under(data / name)]

    async def _end(self) -> bool:
        try:
            state = self.directory.read()
        except LocalError:
            state = None  # processes are then found by the paths in their command lines
        was_alive = state is not None and state.alive
        if state is not None and state.alive:
            with self._progress.task(f"stopping {self.directory.name}"):
                _send(state.process, signal.SIGTERM)
                _send(state.process, signal.SIGCONT)  # a paused process would not receive SIGTERM
                if not await self._ended([state.process], _STOP_S):
                    self._progress.note(f"{self.directory.name} did not stop: killing it")
                    _send(state.process, signal.SIGKILL)
                    await self._ended([state.process], _KILL_S)
        swept = await self._sweep()
        self.directory.forget()
        return was_alive or swept

    async def _sweep(self) -> bool:
        """End processes of a killed supervisor, which the kernel may still be ending."""
        processes = left = processes_under(self.directory.path)
        while left:  # a supervisor may start other processes until its end
            if not await self._ended(left, _GRACE_S):
                self._progress.note(f"ending {len(left)} processes that were left behind")
                for process in left:
                    _send(process, signal.SIGKILL)
            if not await self._ended(left, _KILL_S):
                numbers = ", ".join(str(process.pid) for process in left if process.alive)
                raise LocalError(f"could not end the processes {numbers} of {self.directory.name}")
            left = processes_under(self.directory.path)
        return bool(processes)

    async def _ended(self, processes: list[ProcessId], within_s: float) -> bool:
        deadline = self._clock.monotonic() + within_s
        while any(process.alive for process in processes):
            if self._clock.monotonic() > deadline:
                return False
            await self._clock.sleep(_POLL_S)
        return True


@asynccontextmanager
async def ephemeral_ocean(
    shape: Shape, *, environ: Mapping[str, str], progress: Progress
) -> AsyncIterator[Ocean]:
    """Run clusters in a temporary directory that is deleted with them."""
    assets = await _assets(shape, environ=environ, progress=progress)
    with tempfile.TemporaryDirectory(prefix="kubeocean-", ignore_cleanup_errors=True) as root:
        ocean = Ocean(Path(root), assets, shape, ephemeral=True, progress=progress)
        async with ocean, at_work(ocean, progress=progress):
            yield ocean


async def _assets(shape: Shape, *, environ: Mapping[str, str], progress: Progress) -> Assets:
    """Return the programs for `shape`; report problems before a build of some minutes."""
    if shape.real_nodes and (reason := available()) is not None:
        raise LocalError(f"could not start real nodes: {reason}")
    if shape.port and (reason := ports.why_not(shape.port)):
        raise LocalError(f"could not start the computing cluster: {reason}")
    names = EVERYTHING if shape.real_nodes else DEFAULT
    return await ensure(names, progress=progress, environ=environ)


def _send(process: ProcessId, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # the process may end just now
        if process.alive:
            os.kill(process.pid, number)
