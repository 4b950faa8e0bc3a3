"""User directories, atomic writes of private files, and file locks.

A reader of a file that is written sees the old content or the new, never a part of either, and only
the owner can read the file.

The kernel releases a lock when its holder ends for any reason: no lock is ever stale. A lock's file
is not deleted: otherwise two holders could lock two files of one name.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from kubeocean.errors import ConfigError
from kubeocean.local.progress import Progress
from kubeocean.runtime.clock import Clock, RealClock

__all__ = ["exclusive", "private_directory", "try_lock", "user_directory", "write_private"]


def user_directory(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """Return the directory that `variable` names, else `default` in the user's home; absolute.

    :raises ConfigError: the variable is not set, and the user has no home directory.
    """
    if os.path.isabs(chosen := environ.get(variable, "")):  # relative paths are to be ignored (XDG)
        return Path(chosen)
    home = environ.get("HOME", "")
    try:
        return Path(home or pwd.getpwuid(os.getuid()).pw_dir, default).absolute()
    except KeyError:
        raise ConfigError(
            f"this user has no home directory; set HOME or {variable}", field="HOME"
        ) from None


def private_directory(path: Path) -> Path:
    """Create a directory that only its owner can open, unless it exists; return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write_private(path: Path, data: bytes) -> Path:
    """Write `data` to the file `path` atomically, with mode 0600."""
    # mkstemp creates with 0600, so the content is never readable by others, not even briefly.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


_POLL_S: Final = 0.1


@asynccontextmanager
async def exclusive(
    path: Path, *, waiting: str, progress: Progress, clock: Clock | None = None
) -> AsyncIterator[None]:
    """Hold the lock of the file `path`; show `waiting` while another process holds it."""
    clock = clock or RealClock()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        if not try_lock(file.fileno()):
            with progress.task(waiting):
                while not try_lock(file.fileno()):
                    await clock.sleep(_POLL_S)
        yield


def try_lock(handle: int) -> bool:
    """Lock an open file unless another process has locked it; return whether this succeeded."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
