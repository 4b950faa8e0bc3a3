"""Copies: what an object of the worker that stands for a virtual one looks like.

A copy has the virtual object's labels and annotations, those that say whose it is, and what its
kind holds. What others add to its metadata stays; of what we put there the keys are remembered on
the copy itself. A copy of a virtual object that was deleted and made again becomes the new one's.

Of a copy that is there only a digest of its content is kept: enough to see a difference, and no
second place for what is secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, ownership
from kubeocean.runtime.objects import Json, Object, Resource
from kubeocean.runtime.patches import JsonPatch
from kubeocean.syncer.forge.metadata import Expected, merge

__all__ = [
    "ClaimRef",
    "Copied",
    "Copy",
    "Original",
    "Recipe",
    "changes",
    "forge",
    "is_replaced",
    "lean",
    "patch",
]

# Of a person who applied the virtual object, and of a Secret a second copy of what it holds.
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class Original(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A virtual object that is copied; the whole of it is in its bytes, which nobody may print."""

    def __repr__(self) -> str:
        return f"Original({self.key})"


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


class Copy(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A copy in the worker."""

    immutable: bool | None = None
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)
    # Filled by `lean`: no Kubernetes field has a space in its name.
    held: str = msgspec.field(default="", name=" held")
    fixed: str = msgspec.field(default="", name=" fixed")

    def __repr__(self) -> str:
        return f"Copy({self.key})"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one kind is copied.

    - `held`: of what a copy holds, that which follows the virtual object, by JSON pointer.
    - `fixed`: that which never changes; the successor of a virtual object may need another copy.
    - `refers`: the virtual objects of the next kind that a virtual one needs.
    """

    originals: Resource[Original]
    copies: Resource[Copy]
    held: Callable[[Json], Json]
    fixed: Callable[[Json], Json]
    refers: Callable[[Json], Iterable[str]] = lambda content: ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Everything that a copy is made from."""

    original: Original
    content: Json  # what its kind holds, translated: all that is not metadata
    name: str
    namespace: str  # empty for volumes
    ids: Ids
    extra_labels: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()  # annotations that mean something above only
    domain: Domain = field(default=group.DEFAULT)


def forge(copied: Copied, recipe: Recipe) -> Json:
    """The copy as it is created."""
    labels, annotations = _wanted(copied)
    metadata: Json = {"name": copied.name, "labels": labels, "annotations": annotations}
    if copied.namespace:
        metadata["namespace"] = copied.namespace
    resource = recipe.copies
    about = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    return about | copied.content


def changes(copy: Copy, copied: Copied, recipe: Recipe) -> Json:
    """What to set, by JSON pointer, to make a copy what it should be; empty if it is."""
    before = Expected.decode(copy.annotations.get(copied.domain.expected_metadata, ""))
    labels, annotations = _wanted(copied)
    then = {
        "/metadata/labels": merge(copy.labels, before.labels, labels),
        "/metadata/annotations": merge(copy.annotations, before.annotations, annotations),
    }
    now = {"/metadata/labels": copy.labels, "/metadata/annotations": copy.annotations}
    change: Json = {path: value for path, value in then.items() if value != now[path]}
    held = recipe.held(copied.content)
    return change | ({} if _digest(held) == copy.held else held)


def patch(copy: Copy, change: Json) -> JsonPatch:
    """The change as a patch of this very version; a map is replaced whole, not key by key."""
    known = {"/metadata/uid": copy.uid, "/metadata/resourceVersion": copy.resource_version}
    return JsonPatch(
        [{"op": "add", "path": path, "value": value} for path, value in (known | change).items()]
    )


def is_replaced(copy: Copy, copied: Copied, recipe: Recipe, *, stale: bool) -> bool:
    """Whether no write makes this copy what it should be; `stale`: it was an earlier object's."""
    if copy.immutable and _digest(recipe.held(copied.content)) != copy.held:
        return True
    return stale and _digest(recipe.fixed(copied.content)) != copy.fixed


def lean(copy: Copy, recipe: Recipe) -> Copy:
    """A copy with digests in the place of its bytes."""
    content = copy.content()
    msgspec.structs.force_setattr(copy, "held", _digest(recipe.held(content)))
    msgspec.structs.force_setattr(copy, "fixed", _digest(recipe.fixed(content)))
    msgspec.structs.force_setattr(copy, "raw", b"")
    return copy


def _wanted(copied: Copied) -> tuple[dict[str, str], dict[str, str]]:
    domain, original = copied.domain, copied.original
    labels = {key: value for key, value in original.labels.items() if not domain.owns(key)}
    labels |= {**ownership(copied.ids, domain), **copied.extra_labels}
    annotations = {
        key: value
        for key, value in original.annotations.items()
        if not domain.owns(key) and key != _LAST_APPLIED and key not in copied.dropped
    }
    annotations |= {domain.virtual_name: original.name, domain.virtual_uid: original.uid}
    if original.namespace:
        annotations[domain.virtual_namespace] = original.namespace
    # The keys alone: values may be as long as all annotations together may be.
    remembered = Expected(dict.fromkeys(labels, ""), dict.fromkeys(annotations, ""))
    return labels, annotations | {domain.expected_metadata: remembered.encode()}


def _digest(content: Json) -> str:
    """What tells contents apart; what is empty is not there."""
    return hashlib.sha256(_canonical(_bare(content))).hexdigest()


_canonical = msgspec.json.Encoder(order="deterministic").encode


def _bare(content: Json) -> Json:
    return {
        key: _bare(value) if isinstance(value, dict) else value
        for key, value in content.items()
        if value not in (None, {}, [], False)
    }
