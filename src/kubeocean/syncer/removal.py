"""Removal: an orphan goes, once both clusters have confirmed that it is one.

The object is read again where it lives, and what it stands for on the other side. It has to be the
very object that was found, and ours by what it says. What stands for a pod or a node goes if that
is gone; a copy goes if nothing needs it, by what the caller can prove. Then it is deleted, by UID.
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
from kubeocean.syncer.comparison import Finding, Trace, trace

__all__ = ["Fate", "Remover", "Unused"]

# Whether nothing needs a copy, which was read fresh.
Unused: TypeAlias = Callable[[Trace, Untyped], Awaitable[bool]]


class Fate(StrEnum):
    """What became of an orphan."""

    REMOVED = "removed"
    GONE = "gone already"
    WANTED = "wanted after all"
    UNPROVEN = "not provably ours"


class Remover:
    """Removes orphans of one binding, on either side."""

    def __init__(self, computing: Client, worker: Client, ids: Ids, domain: Domain) -> None:
        self._computing = computing
        self._worker = worker
        self._ids = ids
        self._domain = domain

    async def remove(self, finding: Finding, unused: Unused) -> Fate:
        """Confirm the finding, and delete its object.

        :raises ApiError: one of the servers did not say.
        """
        subject = finding.subject
        client = self._computing if subject.above else self._worker
        try:
            there = await client.get(subject.resource, subject.key.name, subject.key.namespace)
        except NotFound:
            return Fate.GONE
        if there.uid != subject.uid or there.deleting:
            return Fate.GONE
        if not self._is_ours(subject, there):
            return Fate.UNPROVEN
        if subject.above or subject.for_pod:
            wanted = await self._original_exists(subject)
        else:
            wanted = not await unused(subject, there)
        if wanted:
            return Fate.WANTED
        try:
            await client.delete(
                subject.resource,
                subject.key.name,
                subject.key.namespace,
                uid=there.uid,
                resource_version=None if subject.for_pod else there.resource_version,
            )
        except NotFound:
            return Fate.GONE
        except Conflict:
            return Fate.WANTED  # somebody changed it just now
        return Fate.REMOVED

    def _is_ours(self, subject: Trace, there: Untyped) -> bool:
        ids, domain = self._ids, self._domain
        if subject.above:
            ours = {
                domain.managed_by: domain.product,
                domain.cluster_binding: naming.label_value(ids.binding),
            }
            return ours.items() <= there.labels.items()
        again = trace(
            there,
            kind=subject.kind,
            resource=subject.resource,
            original=subject.original,
            ids=ids,
            domain=domain,
        )
        return again == subject and bears_ids(there, ids=ids, domain=domain)

    async def _original_exists(self, subject: Trace) -> bool:
        """Whether what it stands for is there, asked of the computing cluster."""
        name = subject.virtual
        if not name.name:
            return True  # it does not say: nothing is proven
        try:
            original = await self._computing.get(subject.original, name.name, name.namespace)
        except NotFound:
            return False
        return not subject.virtual_uid or original.uid == subject.virtual_uid
