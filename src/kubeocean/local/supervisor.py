"""Supervisor: the background process that owns an ocean.

`launch` starts the supervisor as a program in a new session, which runs until SIGTERM or the
failure of a component. All other processes are its children, and end with it for any reason. Its
state and its log are in the state directory.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from kubeocean.errors import KubeoceanError
from kubeocean.local.assets import Assets
from kubeocean.local.demo import at_work
from kubeocean.local.files import write_private
from kubeocean.local.ocean import Ocean, Shape
from kubeocean.local.progress import PlainProgress
from kubeocean.local.state import (
    ClusterState,
    OceanState,
    Phase,
    ProcessId,
    StateDirectory,
    cluster_states,
)
from kubeocean.local.versions import pinned

__all__ = ["launch", "main"]

_MODULE: Final = "kubeocean.local.supervisor"
_NEW_LOG: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class _Request(msgspec.Struct, frozen=True):
    shape: Shape
    assets: dict[str, str]


def launch(directory: StateDirectory, shape: Shape, assets: Assets) -> subprocess.Popen[bytes]:
    """Start a supervisor that outlives this process and writes its state to `directory`."""
    request = _Request(shape, {name: str(assets.path(name)) for name in assets})
    write_private(directory.request, msgspec.json.encode(request))
    with os.fdopen(os.open(directory.log, _NEW_LOG, 0o600), "wb") as log:
        return subprocess.Popen(
            # -P: modules in the working directory are not imported.
            [sys.executable, "-P", "-m", _MODULE, str(directory.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


class _Supervisor:
    def __init__(self, directory: StateDirectory, request: _Request) -> None:
        self._directory = directory
        versions = pinned()
        self._state = OceanState(
            name=directory.name,
            phase="starting",
            shape=request.shape,
            process=ProcessId.of(os.getpid()),
            kubeconfig=str(directory.kubeconfig),
            log=str(directory.log),
            kubectl=request.assets.get("kubectl", "kubectl"),
            versions={"kubernetes": versions.kubernetes, "etcd": versions.etcd},
        )
        self._progress = PlainProgress(self._report)
        self._ocean = Ocean(
            directory.data,
            Assets({name: Path(path) for name, path in request.assets.items()}),
            request.shape,
            progress=self._progress,
        )

    def _report(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        self._write_state(self._state.phase, detail=line)

    def _write_state(self, phase: Phase, *, detail: str = "", error: str = "") -> None:
        self._state = msgspec.structs.replace(
            self._state, phase=phase, detail=detail, error=error, clusters=self._clusters(phase)
        )
        self._directory.write(self._state)

    def _clusters(self, phase: Phase) -> tuple[ClusterState, ...]:
        if phase != "running":
            return ()
        return cluster_states(self._ocean)

    async def run(self) -> None:
        """Run the clusters until cancelled.

        :raises KubeoceanError: the ocean could not be started, or a component ended.
        """
        try:
            self._write_state("starting")
            await self._ocean.start()
            async with at_work(self._ocean, progress=self._progress):
                self._write_state("running")
                await self._watch()
        except asyncio.CancelledError:
            self._write_state("stopping")
            await self._ocean.stop()
            self._write_state("stopped")
        except Exception as error:
            await self._ocean.stop()
            known = isinstance(error, KubeoceanError)
            self._write_state(
                "failed", error=str(error) if known else f"{type(error).__name__}: {error}"
            )
            raise

    async def _watch(self) -> None:
        try:
            await self._ocean.watch()
        except asyncio.CancelledError:
            self._write_state("stopping")  # Kubeocean's programs end first, which takes a moment
            raise


async def _supervise(path: Path) -> int:
    directory = StateDirectory(path.name, path.parent)
    request = msgspec.json.decode(directory.request.read_bytes(), type=_Request)
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await _Supervisor(directory, request).run()
    except KubeoceanError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def main() -> None:
    """Run the supervisor as a program; its argument is the state directory."""
    os.umask(0o077)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a log is UTF-8 in every locale
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.exit(asyncio.run(_supervise(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
