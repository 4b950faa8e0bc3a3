"""Builds and compares the copies of objects that pods refer to.

A copy has the labels and annotations of its source, the labels that prove which binding owns it,
and the content of its kind. Metadata that others add to a copy stays: the annotation
`expected-metadata` of the copy records which keys the syncer wrote. When a source is deleted and
created again, the copy of the old source becomes the copy of the new one.

The cache keeps only digests of the content of a copy: enough to detect a difference, and no second
place for secret data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, ownership_labels
from kubeocean.runtime.client import JsonPatch
from kubeocean.runtime.objects import Json, Key, Object, Resource
from kubeocean.syncer.nodes.metadata import Expected
from kubeocean.syncer.pods.referenced_objects import References
from kubeocean.syncer.replication.copy_metadata import (
    copied_annotations,
    copied_labels,
    merged,
)

__all__ = [
    "ClaimRef",
    "Copy",
    "CopyContext",
    "PodReference",
    "ReplicatedKind",
    "Source",
    "changes",
    "content_digest",
    "digested",
    "forge",
    "must_be_replaced",
    "patch",
]


class Source(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A virtual object that is replicated; its content is in `raw`, which is never printed."""

    def __repr__(self) -> str:
        return f"Source({self.key})"


class ClaimRef(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The claim that a volume is bound to."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    volume_name: str = ""  # of a claim
    claim_ref: ClaimRef | None = None  # of a volume


class _Status(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""  # of a claim or a volume
    capacity: dict[str, str] | None = None  # of a claim
    conditions: tuple[Json, ...] | None = None  # of a claim
    allocated_resource_statuses: dict[str, str] | None = None  # of a claim


class Copy(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A copy of a source, in the worker cluster."""

    immutable: bool | None = None
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)
    # Set by `digested`: no Kubernetes field has a space in its name.
    synced_digest: str = msgspec.field(default="", name=" synced")
    immutable_digest: str = msgspec.field(default="", name=" immutable")

    def __repr__(self) -> str:
        return f"Copy({self.key})"


@dataclass(frozen=True, slots=True)
class PodReference:
    """The name of an object that a pod refers to, and how much the pod depends on the object."""

    name: str
    optional: bool = False  # the pod starts if the object does not exist
    best_effort: bool = False  # the pod starts even if the object exists and cannot be replicated


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedKind:
    """Describes how objects of one kind are replicated.

    - `synced_fields`: the fields of a copy that follow the source, by JSON pointer.
    - `immutable_fields`: the fields that no write changes; a source that was deleted and created
      again may need a new copy because of them.
    - `pod_references`: the objects of this kind that a pod refers to.
    - `source_references`: the sources of another kind that a source refers to, for an index.
    - `copy_references`: the copies of another kind (`refers_to`) that a copy refers to, and that
      must not be deleted before it.
    - `translate`: the content of a copy, if it depends on the content of the source alone.
    - `env_source`: the name of this kind in `envFrom` of containers.
    - `dropped_annotations`: annotations that have a meaning in the computing cluster only.
    - `lingers`: whether a copy stays for a while after its last use.
    """

    sources: Resource[Source]
    copies: Resource[Copy]
    synced_fields: Callable[[Json], Json]
    immutable_fields: Callable[[Json], Json] = lambda content: {}
    pod_references: Callable[[References], Iterable[PodReference]] = lambda references: ()
    source_references: Callable[[Json], Iterable[str]] = lambda content: ()
    copy_references: Callable[[Json], Iterable[Key]] = lambda content: ()
    refers_to: str = ""
    translate: Callable[[Json], Json] | None = None
    env_source: str = ""
    dropped_annotations: frozenset[str] = frozenset()
    lingers: bool = True

    @property
    def name(self) -> str:
        return self.sources.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyContext:
    """Everything that a copy of a source is built from."""

    kind: ReplicatedKind
    source: Source
    content: Json  # of the copy: everything except metadata
    name: str
    namespace: str  # empty for volumes
    ids: Ids
    extra_labels: Mapping[str, str] = field(default_factory=dict)
    domain: Domain = field(default=group.DEFAULT)


def forge(context: CopyContext) -> Json:
    """Return the manifest of a new copy."""
    labels, annotations = _metadata(context)
    metadata: Json = {"name": context.name, "labels": labels, "annotations": annotations}
    if context.namespace:
        metadata["namespace"] = context.namespace
    resource = context.kind.copies
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        **context.content,
    }


def changes(copy: Copy, context: CopyContext) -> Json:
    """Return the fields of a copy to set, by JSON pointer; empty if nothing differs."""
    labels, annotations = merged(copy, *_metadata(context), context.domain)
    change: Json = {}
    if labels != copy.labels:
        change["/metadata/labels"] = labels
    if annotations != copy.annotations:
        change["/metadata/annotations"] = annotations
    synced = context.kind.synced_fields(context.content)
    return change | ({} if _digest(synced) == copy.synced_digest else synced)


def patch(copy: Object, change: Json) -> JsonPatch:
    """Return a JSON patch for this version of an object, which replaces maps as a whole."""
    version = {"/metadata/uid": copy.uid, "/metadata/resourceVersion": copy.resource_version}
    return JsonPatch(
        [{"op": "add", "path": path, "value": value} for path, value in (version | change).items()]
    )


def must_be_replaced(copy: Copy, context: CopyContext, *, stale: bool) -> bool:
    """Whether a copy must be deleted and created again, because a patch cannot update it.

    `stale` means that the copy is that of an earlier source with the same name.
    """
    kind, content = context.kind, context.content
    if copy.immutable and _digest(kind.synced_fields(content)) != copy.synced_digest:
        return True
    return stale and _digest(kind.immutable_fields(content)) != copy.immutable_digest


def digested(copy: Copy, kind: ReplicatedKind) -> Copy:
    """Return a copy with digests in place of its raw bytes."""
    content = copy.content()
    synced, immutable = kind.synced_fields(content), kind.immutable_fields(content)
    msgspec.structs.force_setattr(copy, "synced_digest", _digest(synced))
    msgspec.structs.force_setattr(copy, "immutable_digest", _digest(immutable))
    msgspec.structs.force_setattr(copy, "raw", b"")
    return copy


def content_digest(context: CopyContext) -> str:
    """Return the digest of a source's synced fields, to compare with that of its copy."""
    return _digest(context.kind.synced_fields(context.content))


def _metadata(context: CopyContext) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations of a new copy."""
    domain, source = context.domain, context.source
    labels = copied_labels(source, domain) | ownership_labels(context.ids, domain)
    labels |= context.extra_labels
    annotations = copied_annotations(source, domain, dropped=context.kind.dropped_annotations)
    annotations |= {domain.virtual_name: source.name, domain.virtual_uid: source.uid}
    if source.namespace:
        annotations[domain.virtual_namespace] = source.namespace
    if source.annotations.get(domain.sync_back) == group.TRUE:
        annotations[domain.synced_hash] = content_digest(context)
    # The keys alone: the values may be as long as all annotations of an object together may be.
    keys = Expected(dict.fromkeys(labels, ""), dict.fromkeys(annotations, ""))
    return labels, annotations | {domain.expected_metadata: keys.encode()}


def _digest(content: Json) -> str:
    """Return a digest of the content; an empty field is the same as no field."""
    return hashlib.sha256(_canonical(_without_empty(content))).hexdigest()


_canonical = msgspec.json.Encoder(order="deterministic").encode


def _without_empty(content: Json) -> Json:
    return {
        key: _without_empty(value) if isinstance(value, dict) else value
        for key, value in content.items()
        if value not in (None, {}, [], False)
    }
