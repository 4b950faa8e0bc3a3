"""Files: small files that are read whole, and checked for changes.

A `FileSet` remembers time, size and inode of every file just before the file was read, also of
files that did not exist. `changed()` compares, following symbolic links, so that the swap of the
`..data` link of a mounted Secret is seen as a change of every file under it.

Only regular files of bounded size are read: nothing here can block on a pipe or a terminal.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO, TypeAlias

__all__ = ["FileSet", "scratch_file"]

_Stamp: TypeAlias = tuple[int, int, int]
_MAX_BYTES = 16 * 1024 * 1024  # far above any kubeconfig or CA bundle, far below a harmful size


class FileSet:
    """Files that were read together, with a check whether one of them has changed since."""

    def __init__(self) -> None:
        self._stamps: dict[Path, _Stamp | None] = {}

    def read(self, path: Path) -> bytes:
        """Return the content of a regular file.

        Raises OSError, also for a directory, a device, a pipe and a file that is too large.
        """
        # Before the read: if the file changes in between, `changed` finds another stamp.
        self._stamps[path] = _stamp(path)
        with open(_open(path), "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise OSError("not a regular file")
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise OSError(f"larger than {_MAX_BYTES // 1024**2} MiB")
        return content

    def changed(self) -> bool:
        """Return whether any of the files was created, deleted or changed since it was read."""
        return any(_stamp(path) != stamp for path, stamp in self._stamps.items())


def scratch_file() -> BinaryIO:
    """Return a file for secrets, without a name: in memory if the kernel can, deleted when
    closed."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("kubeocean"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _open(path: Path) -> int:
    """Open a file and return its descriptor; O_NONBLOCK, because opening a pipe would wait for a
    writer."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise FileNotFoundError("not a file name") from error


def _stamp(path: Path) -> _Stamp | None:
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino
