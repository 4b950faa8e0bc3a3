"""Objects: what we keep of what an API server sends.

An object is a frozen msgspec struct with only the fields that we read; decoding skips the rest,
which makes a Pod eight times cheaper than a dict and a cache fourteen times smaller. Because it is
partial it is never sent back: writes are built from plain `Json` or as patches. Sequences are
tuples, which the garbage collector stops looking at; a list in each of 50,000 cached objects would
stall the event loop.

Where the whole object matters, `raw` keeps the server's bytes and `content()` decodes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from kubeocean.errors import ConfigError

__all__ = [
    "Condition",
    "Json",
    "Key",
    "Meta",
    "Object",
    "ObjectT",
    "OwnerReference",
    "Resource",
    "Untyped",
    "controller_of",
    "find_condition",
    "prune_json",
    "set_condition",
]

Json: TypeAlias = dict[str, Any]


class Key(NamedTuple):
    """The identity of an object within its cluster and kind; no namespace means cluster scope."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def parse(cls, text: str) -> Key:
        """The inverse of `str`."""
        namespace, _, name = text.rpartition("/")
        return cls(namespace, name)


class OwnerReference(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Who this object goes away with."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Meta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The part of ObjectMeta that decisions are made from; managedFields is never kept."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    finalizers: tuple[str, ...] | None = None


class Object(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True):
    """The base of every kind that we read."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    # Filled by whoever decodes, never from a document: no Kubernetes field has a space in its name.
    raw: bytes = msgspec.field(default=b"", name=" raw")

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def resource_version(self) -> str:
        return self.metadata.resource_version

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}

    @property
    def deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    def content(self) -> Json:
        """The whole object as the server sent it; only where the raw bytes were kept."""
        if not self.raw:
            raise LookupError(f"the bytes of {self.key} were not kept")
        return _decode_json(self.raw)


class Untyped(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """An object of a kind known only at run time: metadata, and the rest through `content()`."""

    api_version: str = ""
    kind: str = ""


class Condition(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One entry of `status.conditions`."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


ObjectT = TypeVar("ObjectT", bound=Object)


@dataclass(frozen=True, slots=True)
class Resource(Generic[ObjectT]):
    """Where a kind lives in the API, and the type that its objects decode to."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    type: type[ObjectT]

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path; an empty namespace of a namespaced kind means all namespaces.

        Names come from users and other clusters: a slash or a dot segment must not reach the server
        as one, where it would name another object.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{_segment(namespace)}" if self.namespaced and namespace else ""
        tail = f"/{_segment(name)}" if name else ""
        return f"{root}{scope}/{self.plural}{tail}{'/' + subresource if subresource else ''}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _segment(name: str) -> str:
    if name in (".", ".."):
        raise ConfigError("is not a name that an object can have", field="name", value=name)
    return quote(name, safe=":")


_decode_json = msgspec.json.Decoder(dict[str, Any]).decode


def find_condition(conditions: Iterable[Condition] | None, type_: str) -> Condition | None:
    """The condition of that type, if any."""
    return next((c for c in conditions or () if c.type == type_), None)


def set_condition(
    conditions: Iterable[Condition] | None, new: Condition, *, now: str
) -> tuple[Condition, ...]:
    """The conditions with `new` in the place of its type.

    The transition time moves only when the status does (or was never told), so that an unchanged
    condition compares equal and costs no write.
    """
    result = list(conditions or ())
    for at, old in enumerate(result):
        if old.type == new.type:
            since = old.last_transition_time if old.status == new.status else None
            result[at] = msgspec.structs.replace(new, last_transition_time=since or now)
            return tuple(result)
    return (*result, msgspec.structs.replace(new, last_transition_time=now))


def controller_of(obj: Object) -> OwnerReference | None:
    """The owner that manages this object, if it has one."""
    return next((o for o in obj.metadata.owner_references or () if o.controller), None)


_SERVER_FIELDS = (
    "managedFields",
    "resourceVersion",
    "uid",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
)


def prune_json(content: Mapping[str, Any]) -> Json:
    """A copy without status and what the server fills in: what a user could have written."""
    kept = {name: value for name, value in content.items() if name != "status"}
    meta = {k: v for k, v in (kept.get("metadata") or {}).items() if k not in _SERVER_FIELDS}
    return kept | {"metadata": meta}
