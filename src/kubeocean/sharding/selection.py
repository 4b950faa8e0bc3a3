"""Selection: how a replica gets the objects of its slots, and no others.

A ladder of three ways; `choose` takes the first that the server offers and that fits:

1. *Shard selector*: the server filters by ranges of the hash of UIDs (Kubernetes 1.36 and later,
   behind a feature gate). A server that does not know it ignores it, so it is probed: only the echo
   in a list's `shardInfo` proves that the filter was applied. Children have UIDs of their own, so
   it is for controllers without children.
2. *Slot label*: every object carries its slot in a label that never changes, and the server filters
   by `slot in (…)`. A move changes selectors, not objects. Objects without the label are given it
   once, by whoever creates them or by the assigner.
3. *Metadata only*: the server sends the metadata of everything, and we keep what is ours. Whole
   objects are read one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from kubeocean.errors import ConfigError
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Key, Meta, Object, ObjectT, Resource, controller_of
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.sharding.hashing import HASHES, hash_ranges, slot_of_uid

__all__ = [
    "Everything",
    "Selection",
    "ShardSelector",
    "SlotLabel",
    "SlotOf",
    "choose",
    "echoes",
    "named",
    "owner_key",
    "probe",
    "rewritten",
    "shard_selector",
    "slot_requirement",
]

_ObjectT = TypeVar("_ObjectT", bound=Object, contravariant=True)
SlotOf: TypeAlias = Callable[[Object], int]  # of an object of which only the name counts
_PARAMETER: Final = "shardSelector"
_UID: Final = "object.metadata.uid"
_METADATA: Final = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"


class Selection(Protocol[_ObjectT]):
    """One way. `whole` says whether objects come whole, or as metadata only."""

    @property
    def name(self) -> str: ...

    @property
    def whole(self) -> bool: ...

    def client(self, slots: Collection[int]) -> Client:
        """A client whose lists and watches of the resource give at least these slots."""

    def labels(self, slots: Collection[int]) -> str:
        """The label selector that goes with it."""

    def slot(self, obj: _ObjectT) -> int | None:
        """The slot of an object, None if it has none yet."""


@dataclass(frozen=True, slots=True)
class ShardSelector(Generic[ObjectT]):
    """The first way: ranges of hashes of UIDs."""

    base: Client
    resource: Resource[ObjectT]
    slots: int
    among: str = ""
    name: str = "shard-selector"
    whole: bool = True

    def client(self, slots: Collection[int]) -> Client:
        selector = shard_selector(slots, self.slots)
        return rewritten(self.base, _adding(self.resource, _PARAMETER, selector))

    def labels(self, slots: Collection[int]) -> str:
        return self.among

    def slot(self, obj: ObjectT) -> int | None:
        return slot_of_uid(obj.uid, self.slots)


@dataclass(frozen=True, slots=True)
class SlotLabel(Generic[ObjectT]):
    """The second way: a label on each object."""

    base: Client
    slots: int
    label: str
    among: str = ""
    name: str = "label"
    whole: bool = True

    def client(self, slots: Collection[int]) -> Client:
        return self.base

    def labels(self, slots: Collection[int]) -> str:
        chosen = slot_requirement(self.label, slots, self.slots)
        return f"{self.among},{chosen}" if self.among else chosen

    def slot(self, obj: ObjectT) -> int | None:
        said = obj.labels.get(self.label, "")
        slot = int(said) if said.isdecimal() and said.isascii() else -1
        return slot if 0 <= slot < self.slots else None


@dataclass(frozen=True, slots=True)
class Everything(Generic[ObjectT]):
    """The third way: everybody's metadata, of which we keep ours.

    `kind` is that of the owners; the slot of what they control is theirs.
    """

    base: Client
    resource: Resource[ObjectT]
    slot_of: SlotOf
    kind: str = ""
    among: str = ""
    name: str = "metadata"
    whole: bool = False

    def client(self, slots: Collection[int]) -> Client:
        return rewritten(self.base, _metadata_only(self.resource))

    def labels(self, slots: Collection[int]) -> str:
        return self.among

    def slot(self, obj: ObjectT) -> int | None:
        if not self.kind:
            return self.slot_of(obj)
        owner = owner_key(obj, self.kind)
        return None if owner is None else self.slot_of(named(owner))


def named(key: Key) -> Object:
    """An object of which only the name is known."""
    return Object(metadata=Meta(name=key.name, namespace=key.namespace))


def owner_key(obj: Object, kind: str) -> Key | None:
    """The object of that kind that controls this one; it is in the same namespace."""
    owner = controller_of(obj)
    if owner is None or owner.kind != kind:
        return None
    return Key(obj.namespace, owner.name)


# What is said to the server


def shard_selector(slots: Collection[int], total: int) -> str:
    """The ranges of these slots in the words of the server."""
    return " || ".join(
        f"shardRange({_UID}, '{_bound(start)}', '{_bound(end)}')"
        for start, end in hash_ranges(slots, total)
    )


def _bound(number: int) -> str:
    return f"0x{number:016x}" if number < HASHES else f"0x1{0:016x}"


def slot_requirement(label: str, slots: Collection[int], total: int) -> str:
    """The shortest label requirement for these slots; it names whichever are fewer."""
    ours = set(slots)
    if len(ours) == total:
        return label
    if len(ours) * 2 <= total:
        return f"{label} in ({','.join(str(slot) for slot in sorted(ours))})"
    others = sorted(set(range(total)) - ours)
    # `notin` alone would also take objects that have no slot yet.
    return f"{label},{label} notin ({','.join(str(slot) for slot in others)})"


# The probe


async def probe(client: Client, resource: Resource[Any], *, namespace: str = "") -> bool:
    """Whether the server filters by shard selector: it has to say so in its answer."""
    selector = shard_selector([0], 2)
    answer = await client.request_json(
        "GET", resource.path(namespace), query=[("limit", "1"), (_PARAMETER, selector)]
    )
    return echoes(answer, selector)


def echoes(answer: Mapping[str, Any], selector: str) -> bool:
    """Whether the answer to a list says that this selector was applied."""
    said = (answer.get("metadata") or {}).get("shardInfo") or {}
    return "".join(str(said.get("selector", "")).split()) == "".join(selector.split())


async def choose(
    client: Client,
    resource: Resource[ObjectT],
    *,
    asked: str,
    slots: int,
    label: str,
    slot_of: SlotOf,
    namespace: str = "",
    among: str = "",
    family: bool = False,
) -> Selection[ObjectT]:
    """The first way that the server offers, or the one that is asked for.

    :raises ConfigError: the one that is asked for is not to be had.
    """
    if asked in ("auto", "shard-selector"):
        if family and asked != "auto":
            raise ConfigError(
                "cannot keep children with their owners: they have UIDs of their own",
                field="sharding.filter",
                value=asked,
            )
        if not family and await probe(client, resource, namespace=namespace):
            return ShardSelector(client, resource, slots, among)
        if asked != "auto":
            raise ConfigError(
                f"the API server does not filter {resource} by shard selector",
                field="sharding.filter",
                value=asked,
            )
    if asked == "metadata":
        return Everything(client, resource, slot_of, among=among)
    return SlotLabel(client, slots, label, among)


# Requests with something added


def rewritten(client: Client, rewrite: Callable[[Request], Request]) -> Client:
    """The same client, all of whose requests are changed on their way out."""
    return Client(
        _Rewriting(client.transport, rewrite),
        cluster=client.cluster,
        field_manager=client.field_manager,
    )


def _of_collection(request: Request, resource: Resource[Any]) -> bool:
    """Whether it lists or watches the resource, in whatever namespace."""
    return request.method == "GET" and request.path.endswith(f"/{resource.plural}")


def _adding(resource: Resource[Any], name: str, value: str) -> Callable[[Request], Request]:
    def rewrite(request: Request) -> Request:
        if not _of_collection(request, resource):
            return request
        return replace(request, query=(*request.query, (name, value)))

    return rewrite


def _metadata_only(resource: Resource[Any]) -> Callable[[Request], Request]:
    def rewrite(request: Request) -> Request:
        if not _of_collection(request, resource):
            return request
        return replace(request, accept=_METADATA.format("" if request.watches else "List"))

    return rewrite


class _Rewriting:
    """A transport that changes requests; it does not own the one below it."""

    def __init__(self, inner: Transport, rewrite: Callable[[Request], Request]) -> None:
        self._inner = inner
        self._rewrite = rewrite

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        return await self._inner.send(self._rewrite(request))

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self._inner.stream(self._rewrite(request))

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        return self._inner.upgrade(self._rewrite(request), protocol)

    async def close(self) -> None:
        """Nothing: the connections are another client's."""
