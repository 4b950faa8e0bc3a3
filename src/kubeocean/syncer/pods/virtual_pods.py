"""Virtual pods in the computing cluster: every read and write of them, with its precondition."""

from __future__ import annotations

from contextlib import suppress

from kubeocean.api.conditions import PodEvent
from kubeocean.errors import Conflict, Invalid, NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.events import reference
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.metadata import location
from kubeocean.syncer.pods.views import VIRTUAL_PODS, VirtualPod

__all__ = ["VirtualPods"]

_log = get_logger(__name__)


class VirtualPods:
    """The virtual pods of one binding, as the computing cluster's API server has them."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    async def get(self, key: Key) -> VirtualPod | None:
        """Read a virtual pod from the server; None if there is none."""
        try:
            return await self._clusters.computing.get(
                VIRTUAL_PODS, key.name, key.namespace, keep_raw=True
            )
        except NotFound:
            return None

    async def patch_status(
        self, vpod: VirtualPod, status: Json, metadata: Json | None = None
    ) -> VirtualPod | None:
        """Patch the status and metadata of this version of a virtual pod; None if it is gone.

        Where the worker's annotations do not fit, only the name of the physical pod is written.
        """
        try:
            try:
                written = await self._patch(vpod, status, metadata or {})
            except Invalid as error:
                if not metadata:
                    raise
                name_only = location(metadata, self._clusters.domain)
                written = await self._patch(vpod, status, name_only)
                message = f"Labels and annotations of the worker's pod are not shown: {error}"
                self.warn(vpod, PodEvent.FAILED_UPDATE, message)
        except NotFound:
            return None
        self._clusters.vpods.wrote(written)
        return written

    async def remove(self, vpod: VirtualPod) -> None:
        """Delete a virtual pod without grace, as a kubelet does when its containers have ended."""
        with suppress(NotFound, Conflict):
            await self._clusters.computing.delete(
                VIRTUAL_PODS, vpod.name, vpod.namespace, uid=vpod.uid, grace_s=0
            )
        _log.debug("Removed deleted pod", vpod=str(vpod.key))

    def warn(self, vpod: VirtualPod, reason: str, message: str) -> None:
        """Emit a Warning event of a virtual pod."""
        self._clusters.events.emit(reference(VIRTUAL_PODS, vpod), "Warning", reason, message)

    async def _patch(self, vpod: VirtualPod, status: Json, metadata: Json) -> VirtualPod:
        precondition = {"uid": vpod.uid, "resourceVersion": vpod.resource_version}
        body: Json = {"metadata": metadata | precondition}
        if status:
            body["status"] = status
        return await self._clusters.computing.patch(
            VIRTUAL_PODS, vpod.name, MergePatch(body), vpod.namespace, subresource="status"
        )
