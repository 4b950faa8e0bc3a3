"""Virtual pods in the computing cluster: every read and write of them, with its precondition."""

from __future__ import annotations

from contextlib import suppress

from kubeocean.errors import Conflict, Invalid, NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.events import reference
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.metadata import location
from kubeocean.syncer.pods.status import without_refused
from kubeocean.syncer.pods.views import VIRTUAL_PODS, VirtualPod

__all__ = ["VirtualPods"]

_log = get_logger(__name__)


class VirtualPods:
    """The virtual pods of one binding, as the computing cluster's API server has them."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    async def get(self, key: Key) -> VirtualPod | None:
        """Read a virtual pod from the API server; None if it does not exist."""
        try:
            return await self._clusters.computing.get(
                VIRTUAL_PODS, key.name, key.namespace, keep_raw=True
            )
        except NotFound as error:
            if not error.is_status:
                raise  # the page of something in front of the API server proves nothing
            return None

    async def patch_status(
        self, vpod: VirtualPod, status: Json, metadata: Json | None = None
    ) -> VirtualPod | None:
        """Patch status and metadata of this version of a virtual pod; None if the pod is gone."""
        precondition = {"uid": vpod.uid, "resourceVersion": vpod.resource_version}
        body: Json = {"metadata": (metadata or {}) | precondition}
        if status:
            body["status"] = status
        try:
            written = await self._clusters.computing.patch(
                VIRTUAL_PODS, vpod.name, MergePatch(body), vpod.namespace, subresource="status"
            )
        except NotFound:
            return None
        self._clusters.vpods.wrote(written)
        return written

    async def show(
        self, vpod: VirtualPod, status: Json, metadata: Json
    ) -> tuple[VirtualPod | None, str]:
        """Patch as much of a virtual pod's status and metadata as the API server accepts.

        Return the pod, or None if the pod is gone, and the server's message if it refused a part:
        fields of the status that the server names are left out, else all metadata except the name
        of the physical pod.
        """
        synced_at = {self._clusters.domain.last_sync_time: self._clusters.now_text()}
        dated = metadata | {"annotations": metadata.get("annotations", {}) | synced_at}
        try:
            return await self.patch_status(vpod, status, dated), ""
        except Invalid as error:
            # Without the time of the sync: a patch that changes nothing makes no new version.
            accepted = without_refused(status, error)
            if accepted == status:
                metadata = location(metadata, self._clusters.domain)
            return await self.patch_status(vpod, accepted, metadata), str(error)

    async def remove(self, vpod: VirtualPod) -> None:
        """Delete a virtual pod without grace period, as a kubelet does at the end of a pod."""
        with suppress(NotFound, Conflict):
            await self._clusters.computing.delete(
                VIRTUAL_PODS, vpod.name, vpod.namespace, uid=vpod.uid, grace_s=0
            )
        _log.debug("Deleted virtual pod without grace period", vpod=str(vpod.key))

    def warn(self, vpod: VirtualPod, reason: str, message: str) -> None:
        """Emit a Warning event of a virtual pod."""
        self._clusters.events.emit(reference(VIRTUAL_PODS, vpod), "Warning", reason, message)

    def inform(self, vpod: VirtualPod, reason: str, message: str) -> None:
        """Emit a Normal event of a virtual pod."""
        self._clusters.events.emit(reference(VIRTUAL_PODS, vpod), "Normal", reason, message)
