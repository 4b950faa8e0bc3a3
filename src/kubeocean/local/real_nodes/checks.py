"""Node checks: whether this machine can run real nodes, and if not, why.

`make real-nodes` installs missing programs on Debian.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from kubeocean.errors import LocalError
from kubeocean.local.process import environment, run
from kubeocean.local.real_nodes.images import find_busybox

__all__ = ["PACKAGES", "available", "cni_plugins", "missing_packages"]

# Programs that a node needs, by Debian package.
PACKAGES: Final = {
    "containerd": ("containerd", "containerd-shim-runc-v2", "ctr"),
    "runc": ("runc",),
    "iproute2": ("ip",),
    "iptables": ("iptables-restore",),
    "util-linux": ("nsenter", "setpriv", "unshare"),
}
_CNI_DIRECTORIES: Final = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
_CNI_PLUGINS: Final = ("bridge", "host-local", "loopback", "portmap")
_REMEDY: Final = "`make real-nodes` installs what Debian and Ubuntu have"
# Namespaces, a veth pair, an overlay on memory and address translation, in new namespaces.
_TRIAL: Final = """
set -e
ip link add name near type veth peer name far
ip link add name pods type bridge
mount -t tmpfs tmpfs /run
mkdir /run/upper /run/work /run/all
mount -t overlay -o lowerdir=/var,upperdir=/run/upper,workdir=/run/work overlay /run/all
iptables -t nat -A OUTPUT -p tcp -d 169.254.77.1 -j DNAT --to-destination 169.254.77.1:1
"""


def available() -> str | None:
    """Return why this machine cannot run real nodes; None if it can."""
    if sys.platform != "linux":
        return f"real nodes need Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "real nodes need root"
    if missing := missing_packages():
        return f"real nodes need programs of {', '.join(missing)}; {_REMEDY}"
    try:
        find_busybox()
    except LocalError as error:
        return f"real nodes make images from busybox: {error}; {_REMEDY}"
    return _refused()


def missing_packages() -> list[str]:
    """Return the Debian packages of the programs that are missing."""
    path = environment()["PATH"]
    missing = [
        package
        for package, programs in PACKAGES.items()
        if not all(shutil.which(program, path=path) for program in programs)
    ]
    return [*missing, *(["containernetworking-plugins"] if cni_plugins() is None else [])]


def cni_plugins() -> Path | None:
    """Return the directory of the CNI plugins; None if there is none."""
    for directory in map(Path, _CNI_DIRECTORIES):
        if all(os.access(directory / plugin, os.X_OK) for plugin in _CNI_PLUGINS):
            return directory
    return None


def _refused() -> str | None:
    """Try to create namespaces as a node does; return why that fails, None if it succeeds."""
    world = ("unshare", "--net", "--mount", "--pid", "--fork", "--propagation=private")
    try:
        run(*world, "sh", "-s", stdin=_TRIAL.encode())
    except LocalError as error:
        return f"real nodes need namespaces, veth, overlay and iptables: {error}"
    return None
