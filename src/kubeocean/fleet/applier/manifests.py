"""Manifests: the objects that a Work contains, and the form in which they are written.

A manifest is read (`read_manifests`), stripped of fields that only a server may set (`sanitised`),
and prepared for writing (`prepared`): with the hash of its content, with the owner reference to the
Work's AppliedWork and, for client-side apply, with the annotation that holds the manifest itself.
The next three-way merge reads that annotation. If the annotations would grow beyond the size that a
server accepts, it is left empty and the object is applied server-side.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from kubeocean.api.fleet.conditions import ManifestReason
from kubeocean.api.fleet.hashes import canonical, content_hash
from kubeocean.api.fleet.limits import LAST_APPLIED_BYTES
from kubeocean.api.fleet.names import ANNOTATION_LAST_APPLIED, ANNOTATION_SPEC_HASH
from kubeocean.api.fleet.works import APPLIED_WORKS
from kubeocean.fleet.applier.three_way import without_nulls
from kubeocean.runtime.objects import Json

__all__ = [
    "KUBECTL_LAST_APPLIED",
    "SERVER_SET_METADATA",
    "Identifier",
    "KindMapping",
    "Manifest",
    "Owner",
    "Prepared",
    "Rejected",
    "is_applied_work",
    "last_applied",
    "normalised",
    "prepared",
    "read_manifests",
    "sanitised",
    "spec_hash",
]

KUBECTL_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

SERVER_SET_METADATA: Final = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)
_NOT_COMPARED: Final = SERVER_SET_METADATA | {"finalizers", "generateName", "name", "namespace"}
_RESERVED_DOMAINS: Final = ("kubernetes.io", "k8s.io", "kubernetes-fleet.io")


class KindMapping(NamedTuple):
    """The resource of the member's API that serves the objects of a kind."""

    resource: str  # the plural name
    namespaced: bool


@dataclass(frozen=True, slots=True)
class Identifier:
    """The identity of a manifest in the status of a Work; unknown fields are empty."""

    ordinal: int
    group: str = ""
    version: str = ""
    kind: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def unplaced(self) -> Identifier:
        """Return the identifier without the manifest's position in the Work and the resource."""
        return replace(self, ordinal=0, resource="")

    @property
    def object(self) -> tuple[str, str, str, str]:
        """Return group, kind, namespace and name, which are the same in all API versions."""
        return self.group, self.kind, self.namespace, self.name

    def to_json(self) -> Json:
        fields = {
            "group": self.group,
            "version": self.version,
            "kind": self.kind,
            "resource": self.resource,
            "namespace": self.namespace,
            "name": self.name,
        }
        return {"ordinal": self.ordinal, **{name: text for name, text in fields.items() if text}}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Identifier:
        ordinal = stored.get("ordinal")
        texts = (stored.get(name) for name in cls.__slots__ if name != "ordinal")
        return cls(
            ordinal if isinstance(ordinal, int) else 0,
            *(text if isinstance(text, str) else "" for text in texts),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that names one object of a kind that the member serves."""

    identifier: Identifier
    body: Json

    @property
    def api_version(self) -> str:
        return str(self.body["apiVersion"])


@dataclass(frozen=True, slots=True)
class Rejected:
    """A manifest that cannot be processed; `reason` is the reason of its condition Applied."""

    identifier: Identifier
    reason: ManifestReason
    error: str


ReadManifest: TypeAlias = Manifest | Rejected


def read_manifests(
    bodies: Sequence[Any], mapping_of: Callable[[str, str], KindMapping | None]
) -> tuple[ReadManifest, ...]:
    """Read the manifests of a Work, in their order.

    `mapping_of` looks up an API version and a kind; None means that the member does not have the
    kind (yet). Of several manifests for one object the first counts, and the others are Duplicated.
    """
    seen: set[Identifier] = set()
    manifests: list[ReadManifest] = []
    for ordinal, body in enumerate(bodies):
        manifest = _read(ordinal, body, mapping_of)
        identity = manifest.identifier.unplaced
        if isinstance(manifest, Manifest) and identity in seen:
            error = "another manifest of the Work names the same object"
            manifest = Rejected(manifest.identifier, ManifestReason.DUPLICATED, error)
        seen.add(identity)
        manifests.append(manifest)
    return tuple(manifests)


def _read(
    ordinal: int, body: Any, mapping_of: Callable[[str, str], KindMapping | None]
) -> ReadManifest:
    api_version, kind, metadata = _header(body)
    group, _, version = api_version.rpartition("/")
    name, namespace = (_text(metadata.get(field)) for field in ("name", "namespace"))
    identifier = Identifier(ordinal, group, version, kind, "", namespace, name)
    if not api_version or not kind:
        error = "the manifest is not an object with an apiVersion and a kind"
        return Rejected(identifier, ManifestReason.DECODING_ERRED, error)
    mapping = mapping_of(api_version, kind)
    if mapping is None:
        error = f"the member cluster has no kind {kind} in {api_version}"
        return Rejected(identifier, ManifestReason.DECODING_ERRED, error)
    identifier = replace(identifier, resource=mapping.resource)
    if not name and metadata.get("generateName"):
        return Rejected(
            identifier,
            ManifestReason.FOUND_GENERATE_NAME,
            "objects with generateName are not placed",
        )
    if not name:
        return Rejected(identifier, ManifestReason.DECODING_ERRED, "the manifest has no name")
    return Manifest(identifier, body)


def _header(body: Any) -> tuple[str, str, Json]:
    if not isinstance(body, dict):
        return "", "", {}
    metadata = body.get("metadata")
    header = _text(body.get("apiVersion")), _text(body.get("kind"))
    return *header, metadata if isinstance(metadata, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def sanitised(body: Json) -> Json:
    """Return the manifest without status, fields that a server sets, and apply annotations."""
    clean = copy.deepcopy({name: value for name, value in body.items() if name != "status"})
    metadata = clean.setdefault("metadata", {})
    for name in SERVER_SET_METADATA:
        metadata.pop(name, None)
    annotations = metadata.get("annotations") or {}
    for name in (ANNOTATION_SPEC_HASH, ANNOTATION_LAST_APPLIED, KUBECTL_LAST_APPLIED):
        annotations.pop(name, None)
    if not annotations:
        metadata.pop("annotations", None)
    return clean


def normalised(body: Json) -> Json:
    """Return the part of an object that is compared and hashed.

    Removed are the status, the identity, metadata that servers and controllers set, labels and
    annotations of Kubernetes' and the fleet's domains, and nulls (which a server drops). The fields
    `labels` and `annotations` are always present, so that a comparison names each entry.
    """
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    kept = {name: value for name, value in metadata.items() if name not in _NOT_COMPARED}
    for field in ("labels", "annotations"):
        texts = kept.get(field)
        texts = texts if isinstance(texts, dict) else {}
        kept[field] = {name: value for name, value in texts.items() if not _reserved(name)}
    clean: Json = without_nulls({**body, "metadata": kept})
    clean.pop("status", None)
    return clean


def _reserved(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    return bool(slash) and domain.endswith(_RESERVED_DOMAINS)


def spec_hash(body: Json) -> str:
    """Return the hash of a manifest's content; KubeFleet's agents compute the same."""
    clean = normalised(body)
    emptied: Json = {"finalizers": [], "managedFields": [], "ownerReferences": []}
    return content_hash({**clean, "metadata": {**clean["metadata"], **emptied}})


def last_applied(live: Json) -> Json:
    """Return the manifest that was applied last, from an object's annotation; empty if unreadable.

    Users who may edit the object may edit the annotation: its content is only ever compared.
    """
    annotations = (live.get("metadata") or {}).get("annotations") or {}
    try:
        body = msgspec.json.decode(annotations.get(ANNOTATION_LAST_APPLIED) or "{}")
    except (msgspec.DecodeError, RecursionError, TypeError):
        return {}
    return body if isinstance(body, dict) else {}


@dataclass(frozen=True, slots=True)
class Owner:
    """The AppliedWork that owns the placed objects of a Work."""

    name: str
    uid: str

    def reference(self) -> Json:
        return {
            "apiVersion": APPLIED_WORKS.api_version,
            "kind": APPLIED_WORKS.kind,
            "name": self.name,
            "uid": self.uid,
            "blockOwnerDeletion": True,
        }

    def is_named_by(self, reference: Json) -> bool:
        """Whether an owner reference names the AppliedWork with this UID."""
        return is_applied_work(reference) and reference.get("uid") == self.uid


def is_applied_work(reference: Json) -> bool:
    """Whether an owner reference is to an AppliedWork."""
    kind = reference.get("apiVersion"), reference.get("kind")
    return kind == (APPLIED_WORKS.api_version, APPLIED_WORKS.kind)


class Prepared(NamedTuple):
    """The object to write, and whether the last-applied annotation fits into its metadata."""

    body: Json
    fits: bool


def prepared(
    body: Json, owner: Owner, *, remember: bool, co_owners: Iterable[Json] = ()
) -> Prepared:
    """Return the object to write for a manifest.

    `remember` adds the last-applied annotation for the next three-way merge. `co_owners` are other
    owner references that the object keeps.
    """
    desired = sanitised(body)
    metadata = desired["metadata"]
    metadata["ownerReferences"] = [*co_owners, owner.reference()]
    annotations = metadata.setdefault("annotations", {})
    annotations[ANNOTATION_SPEC_HASH] = spec_hash(body)
    if not remember:
        return Prepared(desired, fits=False)
    memory = canonical(desired).decode() + "\n"
    size = sum(len(name.encode()) + len(str(text).encode()) for name, text in annotations.items())
    fits = size + len(ANNOTATION_LAST_APPLIED) + len(memory.encode()) <= LAST_APPLIED_BYTES
    annotations[ANNOTATION_LAST_APPLIED] = memory if fits else ""
    return Prepared(desired, fits)
