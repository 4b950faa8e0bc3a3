"""Matching: which queries select an object, and which changes of an object concern its content.

Only the metadata of objects is read. A cached object has a digest of its annotations in their
place; the digest leaves out annotations that are not placed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kubeocean.fleet.selection.cleaning import UNPLACED_ANNOTATIONS
from kubeocean.fleet.selection.select import Query
from kubeocean.runtime.objects import Json, Untyped

__all__ = ["concerns_content", "matches", "metadata_document", "with_digest"]

_DIGEST: Final = "digest"
_BYTES: Final = 8


def matches(query: Query, obj: Untyped) -> bool:
    """Whether a selection query selects `obj`, an object of the query's kind."""
    if query.namespace and query.namespace != obj.namespace:
        return False
    return query.name == obj.name if query.name else query.labels.matches(obj.labels)


def concerns_content(old: Untyped | None, new: Untyped | None) -> bool:
    """Whether a change of an object may change its placed form.

    The generation of most kinds increases with each change of the spec. For kinds without a
    generation each change counts.
    """
    if old is None or new is None:
        return True
    if not new.metadata.generation:
        return True
    return _content_marks(old) != _content_marks(new)


def _content_marks(obj: Untyped) -> tuple[object, ...]:
    metadata = obj.metadata
    return (
        metadata.generation,
        metadata.labels,
        metadata.annotations,
        metadata.finalizers,
        obj.deleting,
    )


def with_digest(obj: Untyped) -> Untyped:
    """Return an object for the cache, whose annotations are replaced by a digest."""
    placed = {
        name: value for name, value in obj.annotations.items() if name not in UNPLACED_ANNOTATIONS
    }
    annotations = {_DIGEST: _digest(placed)} if placed else None
    metadata = msgspec.structs.replace(obj.metadata, annotations=annotations)
    return msgspec.structs.replace(obj, metadata=metadata)


def _digest(texts: Mapping[str, str]) -> str:
    lines = (f"{name}\0{value}" for name, value in sorted(texts.items()))
    return hashlib.blake2b("\0".join(lines).encode(), digest_size=_BYTES).hexdigest()


def metadata_document(api_version: str, kind: str, obj: Untyped) -> Json:
    """Return the cached metadata of an object as a document, for the rules of selection."""
    metadata: Json = {"name": obj.name, "namespace": obj.namespace, "labels": dict(obj.labels)}
    if obj.deleting:
        metadata["deletionTimestamp"] = obj.metadata.deletion_timestamp
    owners: Iterable[object] = obj.metadata.owner_references or ()
    if owners:
        metadata["ownerReferences"] = list(owners)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
