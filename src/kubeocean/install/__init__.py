"""Objects of an installation, server-side apply, and the steps of install, join, drain and leave.

The names exported here are those that other packages and programs use. A name is imported at its
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeocean.runtime._exports import lazy_exports

if TYPE_CHECKING:
    from kubeocean.install.apply import Applier, ApplyResult
    from kubeocean.install.drain import Drain
    from kubeocean.install.join import Join, JoinRequest, join_command
    from kubeocean.install.join_options import JoinOptions, changes, read_present, requested
    from kubeocean.install.leave import Leave
    from kubeocean.install.values import PodSecurity, Size, Values, WorkerValues
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "apply": ("Applier", "ApplyResult"),
            "drain": ("Drain",),
            "join": ("Join", "JoinRequest", "join_command"),
            "join_options": ("JoinOptions", "changes", "read_present", "requested"),
            "leave": ("Leave",),
            "values": ("PodSecurity", "Size", "Values", "WorkerValues"),
        },
    )

__all__ = [
    "Applier",
    "ApplyResult",
    "Drain",
    "Join",
    "JoinOptions",
    "JoinRequest",
    "Leave",
    "PodSecurity",
    "Size",
    "Values",
    "WorkerValues",
    "changes",
    "join_command",
    "read_present",
    "requested",
]
