"""Deletion of an orphan, confirmed by both clusters.

The object is read again from its API server, and so is the object for which it was created. It has
to be the same object, by UID, and ours by its labels. An object for a pod or a node is deleted if
that is gone; a copy is deleted if nothing uses it, which the caller proves. Every delete carries
the UID.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeAlias

from kubeocean.api import naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, bears_ids
from kubeocean.errors import Conflict, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Untyped
from kubeocean.syncer.cleanup.diff import Counterpart, Difference, counterpart

__all__ = ["Fate", "Remover", "Unused"]

# Whether nothing uses a copy, which was read from its API server just now.
Unused: TypeAlias = Callable[[Counterpart, Untyped], Awaitable[bool]]


class Fate(StrEnum):
    """The result of an attempt to delete an orphan."""

    REMOVED = "removed"
    GONE = "gone already"
    WANTED = "wanted after all"
    UNPROVEN = "not provably ours"


class Remover:
    """Deletes orphans of one binding, in either cluster."""

    def __init__(self, computing: Client, worker: Client, ids: Ids, domain: Domain) -> None:
        self._computing = computing
        self._worker = worker
        self._ids = ids
        self._domain = domain

    async def remove(self, finding: Difference, unused: Unused) -> Fate:
        """Confirm that the object of a difference is an orphan, and delete the object.

        :raises ApiError: an API server did not answer, or refused.
        """
        subject = finding.subject
        client = self._computing if subject.in_computing_cluster else self._worker
        try:
            obj = await client.get(subject.resource, subject.key.name, subject.key.namespace)
        except NotFound:
            return Fate.GONE
        if obj.uid != subject.uid or obj.deleting:
            return Fate.GONE
        if not self._is_ours(subject, obj):
            return Fate.UNPROVEN
        if subject.in_computing_cluster or subject.for_pod:
            is_used = await self._original_exists(subject)
        else:
            is_used = not await unused(subject, obj)
        if is_used:
            return Fate.WANTED
        try:
            await client.delete(
                subject.resource,
                subject.key.name,
                subject.key.namespace,
                uid=obj.uid,
                resource_version=None if subject.for_pod else obj.resource_version,
            )
        except NotFound:
            return Fate.GONE
        except Conflict:
            return Fate.WANTED  # a writer changed the object just now
        return Fate.REMOVED

    def _is_ours(self, subject: Counterpart, obj: Untyped) -> bool:
        ids, domain = self._ids, self._domain
        if subject.in_computing_cluster:
            ours = {
                domain.managed_by: domain.product,
                domain.cluster_binding: naming.label_value(ids.binding),
            }
            return ours.items() <= obj.labels.items()
        again = counterpart(
            obj,
            kind=subject.kind,
            resource=subject.resource,
            original=subject.original,
            ids=ids,
            domain=domain,
        )
        return again == subject and bears_ids(obj, ids=ids, domain=domain)

    async def _original_exists(self, subject: Counterpart) -> bool:
        """Whether the virtual object exists, by the computing cluster's server."""
        key = subject.virtual
        if not key.name:
            return True  # its annotations name none: nothing is proven
        try:
            original = await self._computing.get(subject.original, key.name, key.namespace)
        except NotFound as error:
            if not error.is_status:
                raise  # the page of something in front of the API server proves nothing
            return False
        return not subject.virtual_uid or original.uid == subject.virtual_uid
