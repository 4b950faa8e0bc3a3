"""Files: where users keep things, and how private ones reach the disk.

A reader sees the old content or the new, never half of either, and only the owner can read it.
"""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kubeocean.errors import ConfigError

__all__ = ["private_directory", "user_directory", "write_private"]


def user_directory(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """The directory that `variable` names, else `default` in the user's home; absolute.

    :raises ConfigError: there is neither, and the system does not know the user.
    """
    if os.path.isabs(chosen := environ.get(variable, "")):  # others are to be ignored (XDG)
        return Path(chosen)
    home = environ.get("HOME", "")
    try:
        return Path(home or pwd.getpwuid(os.getuid()).pw_dir, default).absolute()
    except KeyError:
        raise ConfigError(f"set HOME or {variable}: this user has no home", field="HOME") from None


def private_directory(path: Path) -> Path:
    """The directory, made if need be, open to its owner only."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write_private(path: Path, data: bytes) -> Path:
    """Put `data` at `path` in one step, mode 0600."""
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
