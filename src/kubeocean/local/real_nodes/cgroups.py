"""Cgroups of the containers of real nodes: creation and removal.

Containers of a node are in `/kubeocean/N` of every hierarchy, version 1, 2 or both. Unlike
everything else of a node, these directories stay when its processes end, so they are removed when
the node stops, or, if the node was killed together with its starter, when another node starts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kubeocean.errors import LocalError
from kubeocean.runtime.clock import Clock

__all__ = ["PARENT", "create", "hierarchies", "leftovers", "remove", "remove_dead"]

PARENT: Final = "kubeocean"
_INHERITED: Final = ("cpuset.cpus", "cpuset.mems")
_MOUNTS: Final = Path("/proc/self/mountinfo")
_RETRY_S: Final = 0.02
_GIVE_UP_S: Final = 10.0


def hierarchies(mountinfo: str) -> list[Path]:
    """Return the mount points of the cgroup file systems."""
    hierarchies: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        fields = mount.split()
        root, place = fields[3], fields[4]
        if source.split()[0] in ("cgroup", "cgroup2") and root == "/":
            hierarchies.setdefault(fields[2], Path(place))  # one file system may be mounted twice
    return list(hierarchies.values())


def create(name: str, *, roots: Sequence[Path] | None = None) -> str:
    """Create the cgroup in every hierarchy; return its path for the kubelet's configuration."""
    for root in _roots() if roots is None else roots:
        for cgroup in (root / PARENT, root / PARENT / name):
            _share_controllers(cgroup.parent)
            cgroup.mkdir(exist_ok=True)
            _inherit(cgroup)
        _share_controllers(root / PARENT / name)
    return f"/{PARENT}/{name}"


def leftovers() -> set[str]:
    """Return the names of the cgroups of all nodes, running or not."""
    names: set[str] = set()
    for root in _roots():
        with contextlib.suppress(FileNotFoundError):
            names.update(entry.name for entry in os.scandir(root / PARENT) if entry.is_dir())
    return names


def remove_dead(name: str) -> bool:
    """Remove a node's cgroup from all hierarchies; False if it still has processes."""
    removed = [_remove_tree(root / PARENT / name) for root in _roots()]
    for root in _roots():
        with contextlib.suppress(OSError):  # other nodes still have cgroups in it
            (root / PARENT).rmdir()
    return all(removed)


async def remove(name: str, *, clock: Clock) -> None:
    """Remove the cgroup of a node whose processes were just killed.

    :raises LocalError: processes remain in the cgroup.
    """
    deadline = clock.monotonic() + _GIVE_UP_S
    while not remove_dead(name):
        if clock.monotonic() > deadline:
            raise LocalError(
                f"could not remove the cgroup /{PARENT}/{name}: it still has processes; end them,"
                " and try again"
            )
        await clock.sleep(_RETRY_S)  # killed processes leave their cgroup a moment later


def _roots() -> list[Path]:
    return hierarchies(_MOUNTS.read_text())


def _share_controllers(cgroup: Path) -> None:
    """Enable controllers for child cgroups, which version 2 requires.

    A version 1 hierarchy with the memory controller has the other controllers, too.
    """
    try:
        available = (cgroup / "cgroup.controllers").read_text().split()
    except FileNotFoundError:
        return
    for controller in available if "memory" in available else ():
        with contextlib.suppress(OSError):  # some do not nest; a kubelet reports missing ones
            (cgroup / "cgroup.subtree_control").write_text(f"+{controller}")


def _inherit(cgroup: Path) -> None:
    """Copy the parent's CPU and memory sets, which a new cgroup of version 1 needs."""
    for name in _INHERITED:
        setting = cgroup / name
        if setting.exists() and not setting.read_text().strip():
            setting.write_text((cgroup.parent / name).read_text())


def _remove_tree(path: Path) -> bool:
    """Remove a tree of cgroups, leaves first; return whether all were removed."""
    for directory, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True
