"""State: files about an ocean (local clusters) that runs in the background.

    <state home>/kubeocean/
    ├── NAME.lock           held while the ocean is started or stopped
    └── NAME/
        ├── state.json      the state that its supervisor last wrote
        ├── supervisor.log
        └── data/           the clusters, and the kubeconfig of them all

A process is identified by its number, its start time and the boot of the machine: another process
may have the same number later.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from kubeocean import __version__
from kubeocean.errors import ConfigError, LocalError
from kubeocean.local.assets import EVERYTHING
from kubeocean.local.files import private_directory, user_directory, write_private
from kubeocean.local.ocean import Ocean, Shape
from kubeocean.local.process_node.programs import MARK

__all__ = [
    "ClusterState",
    "OceanState",
    "Phase",
    "ProcessId",
    "StateDirectory",
    "cluster_states",
    "processes_under",
    "state_home",
    "this_program",
]

Phase = Literal["starting", "running", "stopping", "stopped", "failed"]
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
# Programs that a supervisor starts, directly or through the tools that create namespaces.
_PROGRAMS: Final = {*EVERYTHING, "containerd", "nsenter", "setpriv", "unshare"} - {"kubectl"}
_SCRIPTS: Final = (
    b"kubeocean.local.supervisor",
    b"kubeocean/local/",
    b"\0-m\0kubeocean\0fleet\0",
    f"{MARK}=".encode(),
)
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class ProcessId(msgspec.Struct, frozen=True):
    """Identity of a process of this machine, which may have ended."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        return cls(pid=pid, started=_started(pid), boot=_BOOT.read_text().strip())

    @property
    def alive(self) -> bool:
        return _started(self.pid) == self.started != 0 and _BOOT.read_text().strip() == self.boot


class ClusterState(msgspec.Struct, frozen=True):
    """A cluster of an ocean: kubeconfig context and nodes (virtual in the computing cluster)."""

    context: str
    server: str
    nodes: int


class OceanState(msgspec.Struct, frozen=True):
    """Content of an ocean's `state.json`; `detail` is set during the start, `error` on failure."""

    name: str
    phase: Phase
    shape: Shape
    process: ProcessId
    kubeconfig: str
    log: str
    clusters: tuple[ClusterState, ...] = ()
    versions: dict[str, str] = {}
    kubectl: str = "kubectl"
    program: str = ""  # empty if the supervisor is of a version that did not record it
    detail: str = ""
    error: str = ""

    @property
    def alive(self) -> bool:
        """Whether the supervisor's process runs, in any phase."""
        return self.process.alive


def this_program() -> str:
    """Return the version and the interpreter of the running program."""
    return f"{__version__} ({sys.executable})"


def cluster_states(ocean: Ocean) -> tuple[ClusterState, ...]:
    """Return the states of the clusters of a running ocean."""
    shape = ocean.shape
    virtual = shape.workers * shape.nodes if shape.product else 0
    return tuple(
        ClusterState(cluster.name, cluster.server, virtual if number == 0 else shape.nodes)
        for number, cluster in enumerate(ocean.clusters)
    )


def state_home(environ: Mapping[str, str]) -> Path:
    """Return Kubeocean's directory in the user's persistent state, by the XDG rules.

    :raises ConfigError: the user has no home directory.
    """
    return user_directory(environ, "XDG_STATE_HOME", ".local/state") / "kubeocean"


class StateDirectory:
    """The directory of the ocean `name` under `home`."""

    def __init__(self, name: str, home: Path) -> None:
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                "must be lower-case letters, digits and hyphens, 40 at most",
                field="name",
                value=name,
            )
        self.name = name
        self.path = home / name
        self.lock = self.path.with_name(f"{name}.lock")
        self.data = self.path / "data"
        self.log = self.path / "supervisor.log"
        self.request = self.path / "request.json"
        self.kubeconfig = self.data / "kubeconfig"

    def make(self) -> None:
        private_directory(self.path.parent)
        private_directory(self.path)

    def read(self) -> OceanState | None:
        """Return the state that the supervisor last wrote; None if there is none.

        :raises LocalError: the file is damaged.
        """
        path = self.path / "state.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=OceanState)
        except FileNotFoundError:
            return None
        except (ValueError, ConfigError) as error:  # not JSON, not text, or no state
            raise LocalError(
                f"could not read {path}: {error}; to repair it, run `kubeocean down`"
            ) from None

    def write(self, state: OceanState) -> None:
        content = msgspec.json.format(msgspec.json.encode(state), indent=2)
        write_private(self.path / "state.json", content)

    def forget(self) -> None:
        (self.path / "state.json").unlink(missing_ok=True)


def processes_under(directory: Path) -> list[ProcessId]:
    """Return the processes of the local clusters in `directory`: those whose working directory or
    arguments are in it.

    Only programs that a supervisor starts count, not a user's shell, pager or kubectl.
    """
    inside = os.fsencode(directory) + b"/"
    processes: list[ProcessId] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = Path(entry.path, "cmdline").read_bytes()
            cwd = os.fsencode(os.readlink(f"{entry.path}/cwd")) + b"/"
        except OSError:  # ended meanwhile, or another user's
            continue
        if _is_ours(words) and (inside in words + b"/" or cwd.startswith(inside)):
            processes.append(ProcessId.of(int(entry.name)))
    return [process for process in processes if process.alive]


def _is_ours(words: bytes) -> bool:
    program = os.path.basename(words.partition(b"\0")[0]).decode("utf-8", "replace")
    return program in _PROGRAMS or any(mark in words for mark in _SCRIPTS)


def _started(pid: int) -> int:
    """Return the start of a process in ticks since boot; 0 if it has ended or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
