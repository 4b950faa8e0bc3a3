"""Files: how private things reach the disk.

A reader sees the old content or the new, never half of either, and only the owner can read it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["private_directory", "write_private"]


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
