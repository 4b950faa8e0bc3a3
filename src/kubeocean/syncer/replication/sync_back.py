"""Changes of copies that are applied to their sources, for sources whose owner requests that.

A ConfigMap or Secret of the computing cluster with the annotation `sync-back: "true"` follows the
changes that programs of the worker make to its copy. The copy records a digest of the content that
both had last, so that the changed one is known, also after a restart. If both changed, the
computing cluster's content stays. Without the annotation a source is never changed.
"""

from __future__ import annotations

from enum import Enum, auto

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.runtime.objects import Json
from kubeocean.syncer.replication.copy_forge import (
    Copy,
    CopyContext,
    ReplicatedKind,
    Source,
    content_digest,
)

__all__ = ["SyncDirection", "direction_of", "is_two_way", "returned_fields"]

_IMMUTABLE = "/immutable"


class SyncDirection(Enum):
    """The direction in which content has to be applied, between a source and its copy."""

    NONE = auto()  # source and copy are equal, or only the source counts
    BACK = auto()  # the copy changed
    CONFLICT = auto()  # source and copy changed


def is_two_way(source: Source, kind: ReplicatedKind, domain: Domain) -> bool:
    """Whether changes of a copy are applied to its source."""
    plain = kind.translate is not None  # the content of such a copy is that of its source
    return plain and source.annotations.get(domain.sync_back) == group.TRUE


def direction_of(copy: Copy, context: CopyContext) -> SyncDirection:
    """Return which of source and copy changed since both had the same content."""
    kind, domain = context.kind, context.domain
    last = copy.annotations.get(domain.synced_hash)
    if not last or not is_two_way(context.source, kind, domain):
        return SyncDirection.NONE
    current = content_digest(context)
    if copy.synced_digest in (last, current) or copy.immutable:
        return SyncDirection.NONE
    return SyncDirection.BACK if current == last else SyncDirection.CONFLICT


def returned_fields(content: Json, kind: ReplicatedKind) -> Json:
    """Return the fields of a copy to set on its source, by JSON pointer."""
    fields = kind.synced_fields(content)
    return {path: value for path, value in fields.items() if path != _IMMUTABLE}
