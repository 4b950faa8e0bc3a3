"""Objects of a controller in the API server: reads beyond the cache, slot labels and finalizers.

A controller reads from its cache. Only the API server knows whether an object that left the cache
was deleted, and the last state of a deleted object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

import msgspec

from kubeocean.errors import ApiError, BadRequest, Gone, NotFound, ServerTimeout
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key, Meta, Object, ObjectT, Resource, decode_list
from kubeocean.runtime.selectors import LabelSelector
from kubeocean.sharding.fencing import stamped
from kubeocean.sharding.handlers import Presence
from kubeocean.sharding.names import Names
from kubeocean.sharding.selection import SlotLabel, put_slot
from kubeocean.sharding.slot_cache import SlotCache

__all__ = ["ServerObjects"]

_log = get_logger(__name__)


class ServerObjects(Generic[ObjectT]):
    """Reads and writes of one controller's objects in the API server. `fenced` is the client for
    writes, which checks the grant."""

    def __init__(
        self,
        client: Client,
        fenced: Client,
        resource: Resource[ObjectT],
        *,
        labels: str,
        keep_raw: bool,
        names: Names,
        shard_of: Callable[[Object], int],
        cache: Callable[[], SlotCache[ObjectT]],
    ) -> None:
        self._client = client
        self._fenced = fenced
        self._resource = resource
        self._selector = LabelSelector.parse(labels, field="labels")
        self._keep_raw = keep_raw
        self._names = names
        self._shard_of = shard_of
        self._cache = cache

    async def read(self, key: Key) -> ObjectT | None:
        """Return the whole object; None if the object is not in the cache or was deleted."""
        cache = self._cache()
        cached = cache.get(key)
        if cached is None or cache.selection.whole:
            return cached
        return await self._get(key)

    async def locate(self, key: Key, uid: str) -> tuple[Presence, ObjectT | None]:
        """Return why an object is not in the cache, and the object if it exists.

        An object whose slot label was removed or changed gets the right label.

        :raises Unplaced: the right label cannot be computed.
        """
        if key in self._cache().unplaced:
            return Presence.HIDDEN, None
        if not self._cache().selection.labels(()):
            return Presence.GONE, None  # the server filters by no label that could have changed
        obj = await self._get(key)
        if obj is None or obj.uid != uid:
            return Presence.GONE, None
        if not self._selector.matches(obj.labels):
            return Presence.DESELECTED, obj
        await self.restore_label(obj)
        return Presence.HIDDEN, obj

    async def unhide(self, key: Key) -> bool:
        """Restore the slot label of an object that is missing in the cache; return whether the
        label was wrong."""
        obj = await self._get(key)
        if obj is None or not self._selector.matches(obj.labels):
            return False
        return await self.restore_label(obj)

    async def recall(self, key: Key, uid: str, version: str) -> ObjectT:
        """Return a deleted object as it was at a resourceVersion; only its metadata if the API
        server no longer has that version."""
        if version:
            query = [
                ("fieldSelector", f"metadata.name={key.name}"),
                ("resourceVersion", version),
                ("resourceVersionMatch", "Exact"),
            ]
            path = self._resource.path(key.namespace)
            try:
                body = await self._client.request("GET", path, query=query)
                _, items = decode_list(self._resource.type, body, keep_raw=self._keep_raw)
            except (Gone, BadRequest, ServerTimeout, msgspec.DecodeError) as error:
                if isinstance(error, ServerTimeout) and not _is_ahead(error):
                    raise
                _log.info("Could not read deleted object", object=str(key), error=str(error))
            else:
                if items and items[0].uid == uid:
                    return items[0]
        meta = Meta(name=key.name, namespace=key.namespace, uid=uid)
        return self._resource.type(metadata=meta)

    async def set_finalizer(self, obj: ObjectT, finalizer: str, *, present: bool) -> ObjectT:
        """Add or remove a finalizer of an object, and return the object after the write."""
        others = [each for each in obj.metadata.finalizers or () if each != finalizer]
        meta = {
            "uid": obj.uid,
            "resourceVersion": obj.resource_version,
            "finalizers": [*others, finalizer] if present else others,
        }
        # The ring's admission policy requires the epoch of the grant.
        patch = MergePatch(stamped({"metadata": meta}, self._names))
        try:
            written = await self._fenced.patch(self._resource, obj.name, patch, obj.namespace)
        except NotFound:
            if present:
                raise
            return obj
        cache = self._cache()
        if present and cache.selection.whole:
            cache.wrote(written)
        if present and self._keep_raw:
            return await self._get(obj.key) or written
        return written

    async def restore_label(self, obj: ObjectT, *, found_in: int | None = None) -> bool:
        """Write the slot label of an object if the label is wrong; return whether it was.

        `found_in` is the slot in whose cache the object is. So a user who changes a label neither
        hides an object nor makes two replicas work on it.

        :raises Unplaced: the right label cannot be computed.
        """
        selection = self._cache().selection
        if not isinstance(selection, SlotLabel):
            return False
        right = self._shard_of(obj)
        if (selection.slot(obj) if found_in is None else found_in) == right:
            return False
        label = self._names.slot_label
        await put_slot(self._fenced, self._resource, obj, label=label, slot=right)
        return True

    async def _get(self, key: Key) -> ObjectT | None:
        try:
            return await self._client.get(
                self._resource, key.name, key.namespace, keep_raw=self._keep_raw
            )
        except NotFound:
            return None


def _is_ahead(error: ApiError) -> bool:
    """Return whether the API server does not have the resourceVersion of a request yet, nor soon:
    its data was restored from a backup."""
    return any(cause.reason == "ResourceVersionTooLarge" for cause in error.causes)
