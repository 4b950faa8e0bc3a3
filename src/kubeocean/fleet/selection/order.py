"""Order of the selected objects in a snapshot, a Work and a status.

Objects are sorted by kind, kinds that others depend on first. The order is the same for the same
objects, so that equal selections give equal snapshots. Users see this order in statuses; the
applier in the member has an order of its own. A long list is split into parts that an API server
can store: each part becomes a resource snapshot, and each snapshot a Work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from kubeocean.api.fleet.limits import SNAPSHOT_BYTES
from kubeocean.fleet.selection.rules import GroupVersionKind
from kubeocean.runtime.objects import Json

__all__ = ["KINDS", "Rank", "in_order", "rank", "split"]

T = TypeVar("T")

KINDS: Final = (
    "PriorityClass",
    "Namespace",
    "NetworkPolicy",
    "ResourceQuota",
    "LimitRange",
    "PodDisruptionBudget",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "StorageClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "DaemonSet",
    "Pod",
    "ReplicationController",
    "ReplicaSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "StatefulSet",
    "Job",
    "CronJob",
    "IngressClass",
    "Ingress",
    "APIService",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
)

_PLACE: Final = {kind: place for place, kind in enumerate(KINDS)}

Rank = tuple[int, str, str, str]


def rank(kind: GroupVersionKind, namespace: str, name: str) -> Rank:
    """Return the unique key by which selected objects are sorted.

    Known kinds come in their order, then by group and version; all others follow by the text of
    their group, version and kind.
    """
    place = _PLACE.get(kind.kind)
    if place is None:
        text = f"{kind.group}/{kind.version}, Kind={kind.kind}"
        return len(KINDS), text, namespace, name
    version = f"{kind.group}/{kind.version}" if kind.group else kind.version
    return place, version, namespace, name


def in_order(objects: Iterable[Json]) -> list[Json]:
    """Return the objects sorted by `rank`."""

    def key(obj: Json) -> Rank:
        metadata: Json = obj.get("metadata") or {}
        return rank(
            GroupVersionKind.of(obj), metadata.get("namespace") or "", metadata.get("name") or ""
        )

    return sorted(objects, key=key)


def split(
    objects: Sequence[T], size_of: Callable[[T], int], limit: int = SNAPSHOT_BYTES
) -> tuple[tuple[T, ...], ...]:
    """Split the list into parts whose sizes add up to `limit` at most, keeping its order.

    A part is filled before the next one begins. An object larger than `limit` gets its own part.
    There is always a first part, empty if the list is.
    """
    parts: list[list[T]] = [[]]
    filled = 0
    for obj in objects:
        size = size_of(obj)
        if parts[-1] and filled + size > limit:
            parts.append([])
            filled = 0
        parts[-1].append(obj)
        filled += size
    return tuple(map(tuple, parts))
