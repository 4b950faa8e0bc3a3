"""Reads and writes the copies of one kind in one cluster.

The cache selects copies by the labels of their owner. Every write names the UID and the version, or
the UID alone, of the copy, and is remembered under the key of the source until the cache shows the
write: nothing is decided about a source before that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic

from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, bears_ids, ownership_labels
from kubeocean.errors import AlreadyExists, ApiError, Conflict, NotFound
from kubeocean.runtime.client import Client, JsonPatch, MergePatch
from kubeocean.runtime.informer import Indexer, Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Object, ObjectT, Resource
from kubeocean.runtime.pending_writes import PendingWritesByKey
from kubeocean.syncer.clusters import Clusters

__all__ = ["CopyStore", "is_copy_of", "owned_by", "virtual_object"]

_SOURCE: Final = "source"

_log = get_logger(__name__)


def owned_by(clusters: Clusters) -> str:
    """Return the label selector of everything that the binding creates in the worker."""
    labels = ownership_labels(clusters.ids, clusters.domain)
    return ",".join(f"{key}={value}" for key, value in labels.items())


def virtual_object(copy: Object, domain: Domain, *, namespaced: bool = True) -> Key:
    """Return the virtual object that the annotations of a copy name as its source.

    The names are empty where the annotations lack the name, or the namespace that the kind has.
    """
    namespace = copy.annotations.get(domain.virtual_namespace, "")
    if bool(namespace) != namespaced:
        return Key("", "")
    return Key(namespace, copy.annotations.get(domain.virtual_name, ""))


def is_copy_of(copy: Object, source: Key, *, ids: Ids, domain: Domain) -> bool:
    """Whether the binding created an object as a copy of that source."""
    return bears_ids(copy, ids=ids, domain=domain) and virtual_object(copy, domain) == source


class CopyStore(Generic[ObjectT]):
    """The copies of one kind; `source_of` returns the key of the source of a copy.

    `is_logged`: whether writes are logged at info level, for kinds with few writes.
    """

    def __init__(
        self,
        clusters: Clusters,
        client: Client,
        resource: Resource[ObjectT],
        source_of: Callable[[ObjectT], Key],
        *,
        labels: str,
        namespace: str = "",
        indexes: Mapping[str, Indexer[ObjectT]] | None = None,
        prune: Callable[[ObjectT], ObjectT] | None = None,
        keep_raw: bool = False,
        is_logged: bool = True,
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self.source_of = source_of
        self.cache = Informer(
            client,
            resource,
            namespace=namespace,
            labels=labels,
            indexes={_SOURCE: lambda copy: (str(source_of(copy)),), **(indexes or {})},
            prune=prune,
            keep_raw=keep_raw,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        self._client = client
        self._prune = prune
        self._keep_raw = keep_raw
        self._log = _log.info if is_logged else _log.debug
        self._writes = PendingWritesByKey()  # by source
        self._deleted: set[str] = set()  # UIDs of copies until the cache shows that they are gone
        self.cache.on_change(self._copy_changed)

    def _copy_changed(self, old: ObjectT | None, new: ObjectT | None) -> None:
        if old is not None and new is None:
            self._deleted.discard(old.uid)

    async def caught_up(self, source: Key) -> bool:
        """Whether the cache shows everything that was written for a source."""
        return await self._writes.shown(source, self.cache)

    def of(self, source: Key) -> list[ObjectT]:
        """Return the cached copies of a source."""
        return self.cache.by(_SOURCE, str(source))

    def is_deleting(self, copy: ObjectT) -> bool:
        """Whether the copy is being deleted, by this process or another client."""
        return copy.deleting or copy.uid in self._deleted

    async def get(self, name: str) -> ObjectT:
        """Read the object of that name from the API server.

        :raises NotFound: there is none.
        """
        copy = await self._client.get(self.resource, name, self.namespace, keep_raw=self._keep_raw)
        return copy if self._prune is None else self._prune(copy)

    async def read_whole(self, copy: ObjectT) -> ObjectT | None:
        """Read this version of a copy from the server with its content; None if it has changed."""
        try:
            live = await self._client.get(self.resource, copy.name, copy.namespace, keep_raw=True)
        except NotFound:
            return None
        same = (live.uid, live.resource_version) == (copy.uid, copy.resource_version)
        return live if same else None

    async def create_or_get(self, source: Key, body: Json) -> tuple[ObjectT, bool]:
        """Create a copy, or read the object that has its name; True if the copy was created.

        :raises Conflict: the object that had the name was deleted in between.
        """
        name = body["metadata"]["name"]
        try:
            copy = await self._client.create(self.resource, body)
        except AlreadyExists:
            try:
                return await self.get(name), False
            except NotFound as error:
                raise Conflict(str(error)) from error
        self._writes.wrote(source, self.cache, copy)
        self._log("Created copy", kind=self.resource.kind, source=source, copy=name)
        return copy, True

    def expect(self, source: Key, copy: ObjectT) -> None:
        """Treat a copy that was read as written: `caught_up` waits until the cache shows it."""
        self._writes.wrote(source, self.cache, copy)

    async def patch(self, source: Key, copy: ObjectT, patch: JsonPatch | MergePatch) -> ObjectT:
        """Apply a patch that has the UID and the version of the copy."""
        written = await self._client.patch(self.resource, copy.name, patch, copy.namespace)
        self._writes.wrote(source, self.cache, written)
        self._log("Updated copy", kind=self.resource.kind, source=source, copy=copy.name)
        return written

    async def merge(self, source: Key, copy: ObjectT, change: Json) -> ObjectT:
        """Apply a change to this version of the copy, as a merge patch."""
        version = {"uid": copy.uid, "resourceVersion": copy.resource_version}
        metadata = change.get("metadata", {}) | version
        return await self.patch(source, copy, MergePatch(change | {"metadata": metadata}))

    async def replace(self, source: Key, body: Json) -> None:
        """Replace a copy with `body`, which has the resourceVersion of the copy that was read."""
        written = await self._client.update(self.resource, body)
        self._writes.wrote(source, self.cache, written)
        self._log("Updated copy", kind=self.resource.kind, source=source, copy=written.name)

    async def delete(self, source: Key, copy: ObjectT) -> None:
        """Delete the copy with this UID; another object of the same name stays."""
        if copy.deleting:
            return
        # No await before this: a copy that is being deleted must not be given to a pod.
        self._deleted.add(copy.uid)
        try:
            await self._client.delete(self.resource, copy.name, copy.namespace, uid=copy.uid)
        except (NotFound, Conflict):
            return  # the copy is gone, or another object has its name: the cache will show that
        except ApiError:
            self._deleted.discard(copy.uid)
            raise
        self._writes.deleted(source, self.cache, copy)
        self._log("Deleted copy", kind=self.resource.kind, source=source, copy=copy.name)
