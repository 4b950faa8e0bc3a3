"""Node init: the first process of a real node, in new namespaces.

The process sets up the mounts of the node and then only reaps child processes. When it ends, the
kernel ends every process of the node, and removes mounts, interfaces and files: a node writes
nothing to this machine's disk.

    /run        a memory file system: sockets and locks of machine and node are separate
    /var        the machine's; writes of the node go to a layer in memory
    /proc/sys   shows a kubelet the expected kernel settings, so that the machine's stay unchanged

Uses the standard library only; runs as `python -I -S node_init.py NAME ROOT KUBELET`, in any
directory and with any environment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

__all__ = ["main"]

_HOST_NAME: Final = 64  # the kernel's limit; names of nodes may be longer
_MS_BIND: Final = 1 << 12
_MS_MOVE: Final = 1 << 13
_MS_REC: Final = 1 << 14
_MS_SHARED: Final = 1 << 20

# Kernel settings that a kubelet writes at its start, by path under /proc/sys.
_WANTED_BY_KUBELET: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def main(name: str, root: Path, kubelet: Path) -> None:
    """Set up the mounts of the node, and reap child processes until SIGTERM."""
    # Blocked from the start: the first process of a namespace never receives a signal without a
    # handler, and a signal that arrives before the wait must not be lost.
    signals = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    socket.sethostname(name[:_HOST_NAME])
    _make_run(root, kubelet)
    _make_var()
    _hide_kernel_settings()
    _mount("/", flags=_MS_REC | _MS_SHARED)  # volumes may need propagation in either direction
    Path("/run/ready").touch()
    while signal.sigwait(signals) != signal.SIGTERM:
        _reap()


def _make_run(root: Path, kubelet: Path) -> None:
    """Mount the node's /run: built in `root`, which may be under /run, and then moved there."""
    new = root / "world"
    new.mkdir(exist_ok=True)
    _mount(new, source="tmpfs", kind="tmpfs", options="mode=755")
    for place in ("containerd", "kubeocean", "lock", "world/var", "world/work"):
        (new / place).mkdir(parents=True)
    (new / "kubelet").touch()
    _mount(new / "kubelet", source=kubelet, flags=_MS_BIND)
    _mount(new / "kubeocean", source=root / "files", flags=_MS_BIND)
    _mount("/run", source=new, flags=_MS_MOVE)


def _make_var() -> None:
    options = "lowerdir=/var,upperdir=/run/world/var,workdir=/run/world/work"
    _mount("/var", source="overlay", kind="overlay", options=options)
    # An overlay cannot be the upper layer of another, and containers need overlays. Each directory
    # has a separate file system, because a kubelet distinguishes them by device number.
    for place in (Path("/var/lib/kubelet"), Path("/var/lib/containerd")):
        place.mkdir(exist_ok=True)
        _mount(place, source="tmpfs", kind="tmpfs", options="mode=755")


def _hide_kernel_settings() -> None:
    for name, value in _WANTED_BY_KUBELET.items():
        setting = Path("/proc/sys") / name
        if not setting.exists() or setting.read_text().strip() == value:
            continue
        shown = Path("/run/world") / name.replace("/", ".")
        shown.write_text(f"{value}\n")
        _mount(setting, source=shown, flags=_MS_BIND)


def _mount(
    target: Path | str,
    *,
    source: Path | str = "",
    kind: str = "",
    flags: int = 0,
    options: str = "",
) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [os.fsencode(word) or None for word in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options) or None) != 0:
        error = ctypes.get_errno()
        raise OSError(
            error,
            f"could not mount {source or kind} at {target}: {os.strerror(error)}",
            str(target),
        )


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
