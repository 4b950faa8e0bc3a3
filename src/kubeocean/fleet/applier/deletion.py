"""Deletion: how the objects of a deleted Work are deleted in the member.

The AppliedWork is deleted in the foreground: the member's garbage collector deletes all objects
that the AppliedWork owns, removes its owner reference from objects with other owners, and then
removes the AppliedWork. An object with a finalizer of another program delays the end of the
AppliedWork, and so of the Work. After `wait_s`, `blockOwnerDeletion` is removed from the objects:
AppliedWork and Work are removed, and each object when its finalizers are.

A Work with the annotation `kubeocean.io/delete-propagation: Abandon` keeps its objects: their owner
reference to the AppliedWork is removed, and the AppliedWork is deleted with its objects orphaned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from kubeocean.api.fleet.names import ANNOTATION_DELETE_PROPAGATION
from kubeocean.api.fleet.strategies import DeletePropagationPolicy
from kubeocean.api.fleet.works import APPLIED_WORKS
from kubeocean.errors import KubeoceanError, NotFound
from kubeocean.fleet.applier.leftovers import left_overs
from kubeocean.fleet.applier.manifests import Owner
from kubeocean.fleet.applier.objects import NO_ANSWER, MemberObjects
from kubeocean.fleet.pool import ObjectRef
from kubeocean.runtime.client import Client, Propagation
from kubeocean.runtime.clock import Clock, instant_of
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json

__all__ = ["DELETION_WAIT_S", "WorkDeletion"]

DELETION_WAIT_S: Final = 300.0
_UNBLOCKED_WAIT_S: Final = 60.0  # until objects that were created meanwhile are unblocked, too

_log = get_logger(__name__)


class WorkDeletion:
    """Deletes AppliedWorks, and deletes or orphans the objects that they own."""

    def __init__(
        self, member: Client, objects: MemberObjects, *, wait_s: float, clock: Clock
    ) -> None:
        self._member = member
        self._objects = objects
        self._wait_s = wait_s
        self._clock = clock

    async def advance(self, work: Json, applied_work: Json) -> float:
        """Take the next step to delete an AppliedWork: delete it, wait, or unblock its deletion.

        Returns the seconds after which to call again, if the AppliedWork still exists.
        """
        metadata = applied_work["metadata"]
        if not metadata.get("deletionTimestamp"):
            if _is_abandoned(work):
                await self._abandon(work, applied_work)
                await self._delete(applied_work, "Orphan")
            else:
                await self._delete(applied_work, "Foreground")
            return self._wait_s
        waited = self._clock.now() - instant_of(str(metadata["deletionTimestamp"]))
        left = timedelta(seconds=self._wait_s) - waited
        if left > timedelta():
            return left.total_seconds()
        await self._unblock(work, applied_work)
        return _UNBLOCKED_WAIT_S

    async def _delete(self, applied_work: Json, propagation: Propagation) -> None:
        metadata = applied_work["metadata"]
        try:
            await self._member.delete(
                APPLIED_WORKS, metadata["name"], uid=metadata["uid"], propagation=propagation
            )
        except NotFound:
            return
        _log.info("Deleted AppliedWork", name=metadata["name"], propagation=propagation)

    async def _abandon(self, work: Json, applied_work: Json) -> None:
        await self._change(work, applied_work, self._objects.abandon)

    async def _unblock(self, work: Json, applied_work: Json) -> None:
        await self._change(work, applied_work, self._objects.unblock)
        _log.warning(
            "Unblocked the deletion of a Work whose objects were not deleted in time",
            applied_work=applied_work["metadata"]["name"],
            waited_s=self._wait_s,
        )

    async def _change(
        self,
        work: Json,
        applied_work: Json,
        change: Callable[[ObjectRef, Owner], Awaitable[None]],
    ) -> None:
        """Call `change` for the owner reference of each placed object; log errors and go on."""
        metadata = applied_work["metadata"]
        owner = Owner(metadata["name"], metadata["uid"])
        for identifier in left_overs(work, applied_work, ()):
            try:
                await change(await self._objects.ref_of(identifier), owner)
            except NO_ANSWER:
                raise
            except KubeoceanError as error:
                _log.warning(
                    "Failed to change owner reference of placed object",
                    kind=identifier.kind, namespace=identifier.namespace, name=identifier.name,
                    error=str(error),
                )  # fmt: skip


def _is_abandoned(work: Json) -> bool:
    annotations = work["metadata"].get("annotations") or {}
    return bool(annotations.get(ANNOTATION_DELETE_PROPAGATION) == DeletePropagationPolicy.ABANDON)
