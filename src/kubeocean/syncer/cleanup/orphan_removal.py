"""Deletion of an orphan, confirmed by both clusters.

The orphan and the object for which it was created are both read again from their API servers. The
orphan must have the same UID as before, and our labels. An object for a pod or a node is deleted if
that pod or node is gone; a copy is deleted if nothing uses the copy, which the caller proves. Every
delete carries the UID.

A pod of the Go implementation is ours if the node that it names is read as a virtual node of this
binding; its token Secrets, which name the same virtual pod, are deleted before the pod. A pod that
names neither a virtual pod nor a node is deleted only if the caller passes it, which a sweep does
not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from typing import TypeAlias

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, bears_ids, bears_no_ids, is_virtual_node_of, pod_marks
from kubeocean.errors import Conflict, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NODES, SECRETS
from kubeocean.runtime.objects import Untyped
from kubeocean.syncer.cleanup.diff import Counterpart, Difference, counterpart
from kubeocean.syncer.pods.referenced_objects import references

__all__ = ["OrphanFate", "Remover", "Unused"]

# Whether nothing uses a copy, which was read from its API server just now.
Unused: TypeAlias = Callable[[Counterpart, Untyped], Awaitable[bool]]


class OrphanFate(StrEnum):
    """The result of an attempt to delete an orphan."""

    REMOVED = "removed"
    GONE = "gone already"
    WANTED = "wanted after all"
    UNPROVEN = "not provably of this binding"


class Remover:
    """Deletes orphans of one binding, in either cluster."""

    def __init__(self, computing: Client, worker: Client, ids: Ids, domain: Domain) -> None:
        self._computing = computing
        self._worker = worker
        self._ids = ids
        self._domain = domain

    async def remove(self, finding: Difference, unused: Unused) -> OrphanFate:
        """Confirm that the object of a difference is an orphan, and delete the object.

        :raises ApiError: an API server did not answer, or refused.
        """
        subject = finding.subject
        client = self._computing if subject.in_computing_cluster else self._worker
        try:
            obj = await client.get(
                subject.resource, subject.key.name, subject.key.namespace, keep_raw=True
            )
        except NotFound:
            return OrphanFate.GONE
        if obj.uid != subject.uid or obj.deleting:
            return OrphanFate.GONE
        if not (self._is_ours(subject, obj) or await self._is_legacy(subject, obj)):
            return OrphanFate.UNPROVEN
        if subject.unmapped:
            is_used = False
        elif subject.in_computing_cluster or subject.for_pod:
            is_used = await self._original_exists(subject)
        else:
            is_used = not await unused(subject, obj)
        if is_used:
            return OrphanFate.WANTED
        if subject.legacy_node:
            await self._remove_legacy_tokens(subject, obj)
        try:
            await client.delete(
                subject.resource,
                subject.key.name,
                subject.key.namespace,
                uid=obj.uid,
                resource_version=None if subject.for_pod else obj.resource_version,
            )
        except NotFound:
            return OrphanFate.GONE
        except Conflict:
            return OrphanFate.WANTED  # a writer changed the object just now
        return OrphanFate.REMOVED

    def _is_ours(self, subject: Counterpart, obj: Untyped) -> bool:
        ids, domain = self._ids, self._domain
        if subject.in_computing_cluster:
            ours = {
                domain.managed_by: domain.product,
                domain.cluster_binding: naming.label_value(ids.binding),
            }
            return ours.items() <= obj.labels.items()
        return self._is_unchanged(subject, obj) and bears_ids(obj, ids=ids, domain=domain)

    async def _is_legacy(self, subject: Counterpart, obj: Untyped) -> bool:
        """Whether an unlabelled pod names our virtual node, or no virtual object at all."""
        if subject.in_computing_cluster or not self._is_unchanged(subject, obj):
            return False
        if not subject.legacy_node:
            return subject.unmapped
        try:
            node = await self._computing.get(NODES, subject.legacy_node)
        except NotFound as error:
            if not error.is_status:
                raise
            return False
        ids = self._ids
        return is_virtual_node_of(
            node, binding=ids.binding, cluster_id=ids.cluster_id, domain=self._domain
        )

    def _is_unchanged(self, subject: Counterpart, obj: Untyped) -> bool:
        """Whether an object names the same owner and virtual object as in the comparison."""
        again = counterpart(
            obj,
            kind=subject.kind,
            resource=subject.resource,
            original=subject.original,
            ids=self._ids,
            domain=self._domain,
            vnodes=(subject.legacy_node,),
        )
        return again == subject

    async def _remove_legacy_tokens(self, subject: Counterpart, pod: Untyped) -> None:
        """Delete the token Secrets that a pod of the Go implementation mounts, and no other pod."""
        domain = self._domain
        labels = {domain.managed_by: domain.product, domain.service_account_token: group.TRUE}
        marks = pod_marks(subject.virtual, subject.virtual_uid, domain)
        for name in references(pod.content()).secrets:
            with suppress(NotFound, Conflict):
                secret = await self._worker.get(SECRETS, name, subject.key.namespace)
                is_token = labels.items() <= secret.labels.items()
                is_pods = marks.items() <= secret.annotations.items()
                if is_token and is_pods and bears_no_ids(secret, domain=domain):
                    await self._worker.delete(SECRETS, name, secret.namespace, uid=secret.uid)

    async def _original_exists(self, subject: Counterpart) -> bool:
        """Whether the API server of the computing cluster has the virtual object of `subject`, with
        the same UID; True if `subject` names none.
        """
        key = subject.virtual
        if not key.name:
            return True  # no virtual object is named: nothing is proven
        try:
            original = await self._computing.get(subject.original, key.name, key.namespace)
        except NotFound as error:
            if not error.is_status:
                raise  # the page of something in front of the API server proves nothing
            return False
        return not subject.virtual_uid or original.uid == subject.virtual_uid
