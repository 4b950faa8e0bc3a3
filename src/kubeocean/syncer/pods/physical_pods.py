"""Physical pods in the worker cluster: every read and write of them, with its precondition.

A write is remembered under its virtual pod, because that is the key of a reconcile: a virtual pod
is not reconciled before the cache shows all of its writes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from kubeocean.runtime.client import MergePatch, StrategicPatch
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Resource, Untyped
from kubeocean.runtime.pending_writes import PendingWritesByKey
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.changes import PodPatch
from kubeocean.syncer.pods.metrics import PodMetrics
from kubeocean.syncer.pods.plan import is_ours, missing_marks, ownership_of, possible_keys
from kubeocean.syncer.pods.views import PHYSICAL_PODS, PhysicalPod, VirtualPod

__all__ = ["PRIORITY_CLASSES", "PhysicalPods"]

PRIORITY_CLASSES: Final = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, Untyped
)

_log = get_logger(__name__)


class PhysicalPods:
    """The physical pods of one binding, as the worker's API server has them."""

    def __init__(self, clusters: Clusters, metrics: PodMetrics) -> None:
        self._clusters = clusters
        self._metrics = metrics
        self._pending = PendingWritesByKey()  # by virtual pod

    async def caught_up(self, key: Key) -> bool:
        """Whether the cache shows all writes that were made for a virtual pod."""
        return await self._pending.shown(key, self._clusters.ppods)

    async def find(self, vpod: VirtualPod) -> PhysicalPod | None:
        """Read the physical pod of a virtual pod from the server, under each possible name."""
        clusters = self._clusters
        for key in possible_keys(vpod, clusters.mount_namespace, clusters.domain):
            # In another namespace that we may not read there is no pod of ours: the virtual pod's
            # annotation is wrong.
            ignored = () if key.namespace == clusters.mount_namespace else (Forbidden,)
            with suppress(*ignored):
                ppod = await self._read(key)
                if ppod is not None and is_ours(
                    ownership_of(vpod, ppod, ids=clusters.ids, domain=clusters.domain)
                ):
                    return ppod
        return None

    async def exists(self, ppod: PhysicalPod) -> bool:
        """Whether the worker's API server still has the pod with this UID."""
        live = await self._read(ppod.key)
        return live is not None and live.uid == ppod.uid

    async def create(self, key: Key, body: Json) -> tuple[PhysicalPod, bool]:
        """Create a physical pod for virtual pod `key`; return it, and True if it was created now.

        A pod that has the name already is returned as it is.

        :raises NotFound: the pod that had the name was deleted meanwhile; the next attempt gets it.
        """
        name = Key(body["metadata"]["namespace"], body["metadata"]["name"])
        if (known := self._clusters.ppods.get(name)) is not None:
            return known, False
        try:
            ppod = await self._counted(body)
        except AlreadyExists:
            return await self._get(name), False
        self._pending.wrote(key, self._clusters.ppods, ppod)
        _log.info("Created physical pod", vpod=str(key), ppod=str(ppod.key))
        return ppod, True

    async def patch(self, key: Key, ppod: PhysicalPod, patch: PodPatch) -> None:
        """Patch a physical pod with a change of virtual pod `key`."""
        written = await self._clusters.worker.patch(
            PHYSICAL_PODS,
            ppod.name,
            StrategicPatch(patch.body),
            ppod.namespace,
            subresource=patch.subresource,
        )
        self._pending.wrote(key, self._clusters.ppods, written)
        _log.info("Patched physical pod", vpod=str(key), ppod=str(ppod.key), part=patch.subresource)

    async def restore_marks(self, vpod: VirtualPod, ppod: PhysicalPod) -> None:
        """Restore the labels and annotations of a physical pod that the cache selects by."""
        clusters, key = self._clusters, vpod.key
        marks = missing_marks(vpod, ppod, ids=clusters.ids, domain=clusters.domain)
        if ppod.namespace != clusters.mount_namespace or not any(marks.values()):
            return
        body = MergePatch({"metadata": {"uid": ppod.uid, **marks}})
        with suppress(NotFound, Conflict):
            written = await clusters.worker.patch(PHYSICAL_PODS, ppod.name, body, ppod.namespace)
            self._pending.wrote(key, clusters.ppods, written)
            _log.info(
                "Restored labels and annotations of physical pod", vpod=str(key), ppod=str(ppod.key)
            )

    async def delete(self, key: Key, ppod: PhysicalPod, grace_s: int | None) -> bool:
        """Delete the physical pod of virtual pod `key`; False if it was gone before."""
        accepted = False
        with suppress(NotFound, Conflict):
            await self._clusters.worker.delete(
                PHYSICAL_PODS, ppod.name, ppod.namespace, uid=ppod.uid, grace_s=grace_s
            )
            accepted = True
        self._pending.deleted(key, self._clusters.ppods, ppod)
        if accepted:
            _log.info("Deleted physical pod", vpod=str(key), ppod=str(ppod.key), grace_s=grace_s)
        return accepted

    async def delete_version(self, key: Key, ppod: PhysicalPod) -> bool:
        """Delete a physical pod if its resourceVersion is unchanged; False if not."""
        try:
            await self._clusters.worker.delete(
                PHYSICAL_PODS,
                ppod.name,
                ppod.namespace,
                uid=ppod.uid,
                resource_version=ppod.resource_version,
            )
        except (NotFound, Conflict):
            return False
        self._pending.deleted(key, self._clusters.ppods, ppod)
        return True

    async def _read(self, key: Key) -> PhysicalPod | None:
        """Read a pod from the server; None if an API server answers that there is none."""
        try:
            return await self._get(key)
        except NotFound as error:
            if not error.is_status:
                raise  # the page of something in front of the API server proves nothing
            return None

    async def _get(self, key: Key) -> PhysicalPod:
        return await self._clusters.worker.get(
            PHYSICAL_PODS, key.name, key.namespace, keep_raw=True
        )

    async def _counted(self, body: Json) -> PhysicalPod:
        self._metrics.attempts.inc()
        try:
            ppod = await self._post(body)
        except AlreadyExists:
            raise  # the pod exists: no failure
        except ApiError:
            self._metrics.failures.inc()
            raise
        self._metrics.creations.inc()
        return ppod

    async def _post(self, body: Json) -> PhysicalPod:
        """Create a physical pod; if our PriorityClass does not exist, create both."""
        worker, domain = self._clusters.worker, self._clusters.domain
        try:
            return await worker.create(PHYSICAL_PODS, body)
        except Forbidden as error:
            if not _lacks_priority_class(body, error, domain):
                raise
        try:
            await worker.create(PRIORITY_CLASSES, _priority_class(domain))
        except AlreadyExists:
            _log.debug("PriorityClass existed already")  # another syncer of this worker created it
        return await worker.create(PHYSICAL_PODS, body)


def _lacks_priority_class(body: Json, error: ApiError, domain: Domain) -> bool:
    """Whether the server refused a pod because our PriorityClass does not exist."""
    name: str = domain.priority_class
    named = body["spec"].get("priorityClassName") == name
    return named and "PriorityClass" in str(error) and name in str(error)


def _priority_class(domain: Domain) -> Json:
    return {
        "metadata": {
            "name": domain.priority_class,
            "labels": {domain.managed_by: domain.product},
        },
        "value": group.PRIORITY_CLASS_VALUE,
        "preemptionPolicy": "PreemptLowerPriority",
        "description": "Pods of other clusters, with lower priority than pods of this cluster",
    }
