"""Filters by which a replica receives the objects of its slots, and the slot labels.

There are three filters. `choose` returns the configured one; for `auto` the first if it fits and
the API server supports it, else the second:

1. *Shard selector*: the server filters by ranges of the hash of UIDs (Kubernetes 1.36 and later,
   behind a feature gate). A server without the feature ignores the selector, so the feature is
   probed: only the echo in a list's `shardInfo` proves that the filter was applied. Children have
   UIDs of their own, so the shard selector fits controllers without children.
2. *Slot label*: every object has its slot in a label that never changes, and the server filters by
   `slot in (…)`. A move changes selectors, not objects.
3. *Metadata only*: the server sends the metadata of all objects, and the replica keeps those of its
   slots. Whole objects are read one by one.

With the slot label an object without the label has no owner. Its creator may set the label; for all
others the planner's replica watches the metadata of objects whose label is missing or is no slot,
and labels them. A label with the wrong slot is corrected by the replica that notices it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from kubeocean.errors import ConfigError, NotFound
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.controller import Controller, Done, Outcome
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Meta, Object, ObjectT, Resource, controller_of
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.sharding.placement import Unplaced
from kubeocean.sharding.slots import HASHES, hash_ranges, slot_of_uid

__all__ = [
    "Everything",
    "Labeller",
    "Selection",
    "ShardSelector",
    "SlotLabel",
    "SlotOf",
    "choose",
    "echoes",
    "named",
    "owner_key",
    "probe",
    "put_slot",
    "rewritten",
    "shard_selector",
    "slot_requirement",
]

_ObjectT = TypeVar("_ObjectT", bound=Object, contravariant=True)
SlotOf: TypeAlias = Callable[[Object], int]  # of an object; only its name counts
_PARAMETER: Final = "shardSelector"
_UID: Final = "object.metadata.uid"
_METADATA: Final = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"


class Selection(Protocol[_ObjectT]):
    """Filter by which a replica receives the objects of some slots.

    `whole` is False if only metadata is received. `stored` is False if an object does not contain
    its slot, which is computed instead.
    """

    @property
    def name(self) -> str: ...

    @property
    def whole(self) -> bool: ...

    @property
    def stored(self) -> bool: ...

    def client(self, slots: Collection[int]) -> Client:
        """Return a client whose lists and watches of the resource contain at least these slots."""

    def labels(self, slots: Collection[int]) -> str:
        """Return the label selector for lists and watches of the objects in these slots."""

    def slot(self, obj: _ObjectT) -> int | None:
        """Return the slot of an object; None if the object has no slot yet.

        :raises Unplaced: the slot is computed with code of the user, and this code failed.
        """


@dataclass(frozen=True, slots=True)
class ShardSelector(Generic[ObjectT]):
    """Filter `shard-selector`: the API server selects objects by ranges of the hash of their
    UIDs."""

    base: Client
    resource: Resource[ObjectT]
    slots: int
    among: str = ""
    name: str = "shard-selector"
    whole: bool = True
    stored: bool = True

    def client(self, slots: Collection[int]) -> Client:
        selector = shard_selector(slots, self.slots)
        return rewritten(self.base, _adding(self.resource, _PARAMETER, selector))

    def labels(self, slots: Collection[int]) -> str:
        return self.among

    def slot(self, obj: ObjectT) -> int | None:
        return slot_of_uid(obj.uid, self.slots)


@dataclass(frozen=True, slots=True)
class SlotLabel(Generic[ObjectT]):
    """Filter `label`: the API server selects objects by a label with their slot."""

    base: Client
    slots: int
    label: str
    among: str = ""
    name: str = "label"
    whole: bool = True
    stored: bool = True

    def client(self, slots: Collection[int]) -> Client:
        return self.base

    def labels(self, slots: Collection[int]) -> str:
        chosen = slot_requirement(self.label, slots, self.slots)
        return f"{self.among},{chosen}" if self.among else chosen

    def slot(self, obj: ObjectT) -> int | None:
        value = obj.labels.get(self.label, "")
        slot = int(value) if value.isdecimal() and value.isascii() else -1
        return slot if 0 <= slot < self.slots else None


@dataclass(frozen=True, slots=True)
class Everything(Generic[ObjectT]):
    """Filter `metadata`: receives the metadata of all objects, of which the cache keeps those in
    this replica's slots.

    With `kind`, the objects are children of objects of that kind: a child is in the slot of its
    owner.
    """

    base: Client
    resource: Resource[ObjectT]
    slot_of: SlotOf
    kind: str = ""
    among: str = ""
    name: str = "metadata"
    whole: bool = False
    stored: bool = False

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
    """Return an object that has only the name and the namespace of `key`."""
    return Object(metadata=Meta(name=key.name, namespace=key.namespace))


def owner_key(obj: Object, kind: str) -> Key | None:
    """Return the key of the object of this kind that controls `obj`, in the same namespace, or
    None."""
    owner = controller_of(obj)
    if owner is None or owner.kind != kind:
        return None
    return Key(obj.namespace, owner.name)


# Selectors


def shard_selector(slots: Collection[int], total: int) -> str:
    """Return the shard selector of these slots, in the syntax of the API server."""
    return " || ".join(
        f"shardRange({_UID}, '{_bound(start)}', '{_bound(end)}')"
        for start, end in hash_ranges(slots, total)
    )


def _bound(number: int) -> str:
    return f"0x{number:016x}" if number < HASHES else f"0x1{0:016x}"


def slot_requirement(label: str, slots: Collection[int], total: int) -> str:
    """Return the shortest label requirement that selects these slots: `in`, or `notin` with the
    other slots."""
    ours = set(slots)
    if len(ours) == total:
        return label
    if len(ours) * 2 <= total:
        return f"{label} in ({','.join(str(slot) for slot in sorted(ours))})"
    others = sorted(set(range(total)) - ours)
    # `notin` alone would also select objects that have no slot yet.
    return f"{label},{label} notin ({','.join(str(slot) for slot in others)})"


# The probe


async def probe(client: Client, resource: Resource[Any], *, namespace: str = "") -> bool:
    """Return whether the API server filters by shard selector: the answer must echo the
    selector."""
    selector = shard_selector([0], 2)
    answer = await client.request_json(
        "GET", resource.path(namespace), query=[("limit", "1"), (_PARAMETER, selector)]
    )
    return echoes(answer, selector)


def echoes(answer: Mapping[str, Any], selector: str) -> bool:
    """Return whether the answer to a list proves that the server applied this shard selector."""
    shard_info = (answer.get("metadata") or {}).get("shardInfo") or {}
    return "".join(str(shard_info.get("selector", "")).split()) == "".join(selector.split())


async def choose(
    client: Client,
    resource: Resource[ObjectT],
    *,
    configured: str,
    slots: int,
    label: str,
    slot_of: SlotOf,
    namespace: str = "",
    among: str = "",
    family: bool = False,
) -> Selection[ObjectT]:
    """Return the configured filter; for `auto` the shard selector if the API server supports it,
    else the slot label. With `family`, the controller has children, which excludes the shard
    selector.

    :raises ConfigError: the API server does not support the configured filter.
    """
    if configured in ("auto", "shard-selector"):
        if family and configured != "auto":
            raise ConfigError(
                "cannot assign objects to the shard of their owner: a shard selector uses the UID"
                " of the object",
                field="sharding.filter",
                value=configured,
            )
        if not family and await probe(client, resource, namespace=namespace):
            return ShardSelector(client, resource, slots, among)
        if configured != "auto":
            raise ConfigError(
                f"the API server does not filter {resource} by shard selector",
                field="sharding.filter",
                value=configured,
            )
    if configured == "metadata":
        return Everything(client, resource, slot_of, among=among)
    return SlotLabel(client, slots, label, among)


# Rewritten requests


def rewritten(client: Client, rewrite: Callable[[Request], Request]) -> Client:
    """Return a client that sends its requests as `rewrite` returns them."""
    return Client(
        _Rewriting(client.transport, rewrite),
        cluster=client.cluster,
        field_manager=client.field_manager,
    )


def _of_collection(request: Request, resource: Resource[Any]) -> bool:
    """Return whether the request lists or watches the resource, in any namespace."""
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
    """Transport that changes requests; the wrapped transport belongs to another client."""

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
        """Do nothing: the connections belong to another client."""


_WORKERS = 16


async def put_slot(
    client: Client, resource: Resource[ObjectT], obj: Object, *, label: str, slot: int
) -> None:
    """Patch the slot label of one object; an object of the same name with another UID is not
    changed."""
    meta = {"uid": obj.uid, "labels": {label: str(slot)}}
    try:
        await client.patch(resource, obj.name, MergePatch({"metadata": meta}), obj.namespace)
    except NotFound:
        return  # the object was deleted


class Labeller(Generic[ObjectT]):
    """Sets the slot label of a resource's objects where the label is missing or is not a slot."""

    def __init__(
        self,
        client: Client,
        resource: Resource[ObjectT],
        *,
        label: str,
        slots: int,
        slot_of: SlotOf,
        namespace: str = "",
        among: str = "",
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._label = label
        self._slot_of = slot_of
        self.unplaced: set[Key] = set()  # objects whose slot cannot be computed now
        metadata = Everything(client, resource, slot_of)
        # `notin` also selects objects without the label.
        unlabelled = f"{label} notin ({','.join(map(str, range(slots)))})"
        self._bare = Informer(
            metadata.client(()),
            resource,
            namespace=namespace,
            labels=f"{among},{unlabelled}" if among else unlabelled,
            clock=clock,
            metrics=metrics,
        )
        self._controller = Controller[Key](
            f"label-{resource.plural}",
            self._reconcile,
            workers=_WORKERS,
            clock=clock,
            metrics=metrics,
        )
        self._bare.on_change(self._changed)

    async def run(self) -> None:
        """Set missing labels until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._bare.run())
            group.create_task(self._controller.run())

    def place_again(self, key: Key) -> None:
        """Compute the slot of an unplaced object again, and set its label if that succeeds."""
        self._controller.enqueue(key)

    def _changed(self, old: ObjectT | None, new: ObjectT | None) -> None:
        if new is not None:
            self._controller.enqueue(new.key)
        elif old is not None:
            self.unplaced.discard(old.key)

    async def _reconcile(self, key: Key) -> Outcome:
        obj = self._bare.get(key)
        if obj is None:
            return Done()
        try:
            slot = self._slot_of(obj)
        except Unplaced:
            self.unplaced.add(key)
            return Done()
        self.unplaced.discard(key)
        await put_slot(self._client, self._resource, obj, label=self._label, slot=slot)
        return Done()
