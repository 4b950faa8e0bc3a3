"""Limits of a fleet's objects that controllers keep to, besides those that the schemas enforce."""

from __future__ import annotations

from typing import Final

__all__ = [
    "LAST_APPLIED_BYTES",
    "LONGEST_MESSAGE",
    "MOST_NAMESPACES",
    "MOST_OVERRIDES",
    "MOST_PATCH_DETAILS",
    "MOST_REJECTED",
    "SNAPSHOT_BYTES",
    "WORK_BYTES",
]

SNAPSHOT_BYTES: Final = 800 * 1024  # of one resource snapshot's objects; a single one may be larger
WORK_BYTES: Final = 1_415_578  # of a Work with its status; etcd accepts 1.5 MiB
LAST_APPLIED_BYTES: Final = 256 * 1024  # of all annotations of a placed object
MOST_OVERRIDES: Final = 100  # ClusterResourceOverrides on a hub, ResourceOverrides in a namespace
MOST_REJECTED: Final = 20  # clusters that were not picked and are kept in a policy snapshot
MOST_PATCH_DETAILS: Final = 100  # differences that one manifest lists
MOST_NAMESPACES: Final = 200  # namespaces that a member reports
LONGEST_MESSAGE: Final = 8192  # characters of a condition's message; API servers refuse 32,769
