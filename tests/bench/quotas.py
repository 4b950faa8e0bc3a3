"""Quotas: processes that get a part of a core each, and not more, by the kernel's word."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["Quota"]

_FIRST: Final = Path("/sys/fs/cgroup/cpu")  # version 1; else version 2
_SECOND: Final = Path("/sys/fs/cgroup")
_PERIOD_US: Final = 100_000


class Quota:
    """A part of a core for each process that is held; given back at the end."""

    def __init__(self, cores: float) -> None:
        self._cores = cores
        self._name = f"kubeocean-{uuid.uuid4().hex[:8]}"
        self._groups: list[Path] = []

    @staticmethod
    def possible() -> bool:
        """Whether we may."""
        first = (_FIRST / "cpu.cfs_quota_us").exists() or _FIRST.is_dir()
        root = _FIRST if first else _SECOND
        controlled = first or "cpu" in (_SECOND / "cgroup.subtree_control").read_text().split()
        return controlled and os.access(root, os.W_OK)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def hold(self, pid: int) -> None:
        """Let this process have no more."""
        root = _FIRST if _FIRST.is_dir() else _SECOND
        group = root / f"{self._name}-{pid}"
        group.mkdir()
        self._groups.append(group)
        quota_us = int(self._cores * _PERIOD_US)
        if root == _FIRST:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))

    def release(self) -> None:
        """Remove the CPU limits of all processes."""
        for group in self._groups:
            for pid in (group / "cgroup.procs").read_text().split():
                (group.parent / "cgroup.procs").write_text(pid)
            group.rmdir()
        self._groups.clear()
