"""Deletes a ClusterBinding and everything that was created for it.

The order: the syncer deletes its virtual nodes and pods; then the manager deletes the objects of
the rollout (syncer, proxier, certificates), the Leases of the syncers' election once these have
ended, the accounts of both, and at last the finalizers. Only objects that provably belong to this
binding are deleted, so the deletion of a duplicate binding deletes nothing else.

`decide` is pure: the binding waits for its syncer while one leads. If none has led for
`deadline_s`, or at once if the force annotation is set, the deletion proceeds without confirmation.
Then the manager itself deletes the virtual nodes, by UID and with only Kubeocean's finalizers
removed (their pods are left to the pod garbage collector), and the condition `Drained` and an event
list the objects that may be left. Meanwhile the condition `Ready` names the objects that the
deletion waits for, and the deadline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kubeocean.api import conditions as api_conditions
from kubeocean.api import naming
from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.conditions import BindingEvent
from kubeocean.api.group import TRUE, Domain
from kubeocean.api.ownership import is_virtual_node_of
from kubeocean.errors import ApiError, Forbidden, NotFound
from kubeocean.manager.rollout import Rollout
from kubeocean.manager.status import StatusWriter, rolled_out, with_conditions
from kubeocean.manager.syncer_leader import RECHECK_S, SyncerLeader, SyncerLeaders
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, text_of
from kubeocean.runtime.controller import After, Done, Outcome
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.logs import AUDIT_LOGGER, get_logger
from kubeocean.runtime.objects import find_condition

__all__ = [
    "DEADLINE_S",
    "BindingDeletion",
    "Proceed",
    "Wait",
    "decide",
    "delete_virtual_nodes",
    "forced",
    "unconfirmed_objects",
    "virtual_nodes_of",
]

DEADLINE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Wait:
    """The decision that the deletion waits for its syncer, at the latest `until`."""

    waits: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Proceed:
    """The decision that the deletion proceeds.

    `unconfirmed` is the reason why the syncer has not confirmed its cleanup; empty if it has.
    """

    unconfirmed: str = ""


def forced(binding: ClusterBinding, domain: Domain) -> bool:
    """Whether the annotation that skips the wait for the syncer is set."""
    return binding.annotations.get(domain.force_deletion, "").lower() == TRUE


def decide(
    binding: ClusterBinding,
    leader: SyncerLeader,
    *,
    now: datetime,
    deadline_s: float,
    domain: Domain,
) -> Wait | Proceed:
    """Decide whether the deletion of a binding waits for its syncer."""
    if domain.finalizer_syncer not in (binding.metadata.finalizers or ()):
        return Proceed()
    if forced(binding, domain):
        return Proceed("the wait was ended by force")
    if leader.leads:
        return Wait(
            "its syncer deletes nodes and pods; the condition Drained lists those that are left"
        )
    deleted = datetime.fromisoformat(binding.metadata.deletion_timestamp or text_of(now))
    since = max(deleted, leader.silent_since or deleted)
    until = since + timedelta(seconds=deadline_s)
    if now >= until:
        return Proceed(f"no syncer has led since {text_of(since)}")
    return Wait(
        f"no syncer has led since {text_of(since)} to delete nodes and pods; the wait ends at"
        f" {text_of(until)}, or at once with the annotation {domain.force_deletion}={TRUE}",
        until,
    )


def unconfirmed_objects(binding: ClusterBinding, vnodes: int, domain: Domain) -> str:
    """Describe the objects that may be left if the syncer has not confirmed its cleanup."""
    cluster_id = binding.spec.cluster_id
    deleted = f"{vnodes} virtual nodes were deleted; " if vnodes else ""
    return (
        f"{deleted}pods of this binding may still run in the worker, with copies of ConfigMaps,"
        f" Secrets and claims; its nodes may still have Kubeocean's label, its policies the"
        f" finalizer; in the computing cluster, objects labelled {domain.synced_by(cluster_id)} may"
        f" carry the finalizer {domain.finalizer_for(cluster_id)}"
    )


async def virtual_nodes_of(client: Client, binding: ClusterBinding, domain: Domain) -> list[Node]:
    """List the virtual nodes of a binding.

    :raises ApiError: the nodes could not be listed.
    """
    selector = {
        domain.managed_by: domain.product,
        domain.cluster_binding: naming.label_value(binding.name),
        domain.physical_cluster_id: naming.label_value(binding.spec.cluster_id),
    }
    labels = ",".join(f"{key}={value}" for key, value in selector.items())
    return [
        node
        for node in (await client.list(NODES, labels=labels)).items
        if is_virtual_node_of(
            node, binding=binding.name, cluster_id=binding.spec.cluster_id, domain=domain
        )
    ]


async def delete_virtual_nodes(client: Client, binding: ClusterBinding, domain: Domain) -> int:
    """Delete the virtual nodes of a binding; return their number.

    :raises ApiError: the nodes could not be listed or deleted.
    """
    vnodes = await virtual_nodes_of(client, binding, domain)
    for vnode in vnodes:
        await _delete_node(client, vnode, domain)
    return len(vnodes)


async def _delete_node(client: Client, vnode: Node, domain: Domain) -> None:
    finalizers = vnode.metadata.finalizers or ()
    others = [each for each in finalizers if not domain.owns(each)]
    body = {"metadata": {"resourceVersion": vnode.resource_version, "finalizers": others}}
    try:
        if len(others) != len(finalizers):
            await client.patch(NODES, vnode.name, MergePatch(body))
        await client.delete(NODES, vnode.name, uid=vnode.uid)
    except NotFound:
        return  # deleted meanwhile


_POLL_S: Final = 1.0
_POD_TERMINATION_S: Final = 40.0  # for pods of a deleted Deployment: killed after 30
# With this finalizer the garbage collector deletes owned objects, again and again.
_FOREGROUND: Final = "foregroundDeletion"

_log = get_logger(__name__)
_audit = get_logger(AUDIT_LOGGER)


class BindingDeletion:
    """Deletes bindings; `known` returns all bindings.

    A deletion waits for `deadline_s` while no syncer leads.
    """

    def __init__(
        self,
        client: Client,
        statuses: StatusWriter,
        rollout: Rollout,
        leaders: SyncerLeaders,
        known: Callable[[], Iterable[ClusterBinding]],
        *,
        domain: Domain,
        clock: Clock,
        deadline_s: float,
    ) -> None:
        self._client = client
        self._statuses = statuses
        self._rollout = rollout
        self._leaders = leaders
        self._known = known
        # By UID of the binding: when all objects but the pods of its syncers were deleted.
        self._terminating: dict[str, float] = {}
        self._domain = domain
        self._clock = clock
        self._deadline_s = deadline_s

    async def reconcile(self, binding: ClusterBinding) -> Outcome:
        """Take the next step in the deletion of a binding."""
        finalizers, domain = set(binding.metadata.finalizers or ()), self._domain
        if not finalizers & {domain.finalizer_manager, domain.finalizer_syncer}:
            return Done()
        if not await self._exists(binding):
            return Done()
        now, leader = self._clock.now(), SyncerLeader(False)
        if domain.finalizer_syncer in finalizers and not forced(binding, domain):
            leader = await self._leader(binding)
        match decide(binding, leader, now=now, deadline_s=self._deadline_s, domain=domain):
            case Wait() as wait:
                await self._restore(binding)
                await self._report_wait(
                    binding, wait.waits, now, BindingEvent.WAITING_SYNCER_CLEANUP
                )
                return After(_pause_s(wait, now))
            case Proceed(unconfirmed):
                return await self._proceed(binding, unconfirmed, now)

    async def _leader(self, binding: ClusterBinding) -> SyncerLeader:
        """Return whether a syncer leads; a ready Deployment counts, whatever its Lease is named."""
        if self._rollout.syncers_ready(binding):
            return SyncerLeader(True)
        return await self._leaders.of(binding)

    async def _restore(self, binding: ClusterBinding) -> None:
        """Roll out a deleted syncer again while the deletion waits for the syncer's cleanup."""
        foreground = _FOREGROUND in (binding.metadata.finalizers or ())
        if rolled_out(binding) and not foreground:
            await self._rollout.ensure(binding)

    async def _proceed(self, binding: ClusterBinding, unconfirmed: str, now: datetime) -> Outcome:
        binding, left, denied = await self._remove(binding, self._rollout.remove, now)
        if left:
            return await self._wait_for(binding, left, now)
        if not denied and (held := await self._delete_leases(binding, now)):
            waits = f"a terminating syncer still holds {held}"
            await self._report_wait(binding, waits, now, BindingEvent.CLEANUP_IN_PROGRESS)
            return After(_POLL_S)
        binding, left, refused = await self._remove(binding, self._rollout.remove_accounts, now)
        if left:
            return await self._wait_for(binding, left, now)
        denied = "; ".join(dict.fromkeys(filter(None, (denied, refused))))
        unconfirmed = "; ".join(filter(None, (unconfirmed, denied)))
        # The syncer has ended and creates no more nodes: nodes that exist now were not cleaned up.
        if not unconfirmed and await virtual_nodes_of(self._client, binding, self._domain):
            unconfirmed = "no syncer has deleted the virtual nodes of the binding"
        if unconfirmed:
            binding = await self._clean_up_unconfirmed(binding, unconfirmed, now)
        if not denied:
            message = "Deleted syncer, proxier and certificates of the binding"
            self._statuses.emit(binding, "Normal", BindingEvent.CLEANUP, message)
        await self._remove_finalizers(binding, unconfirmed)
        return Done()

    async def _remove(
        self,
        binding: ClusterBinding,
        remove: Callable[[ClusterBinding], Awaitable[list[str]]],
        now: datetime,
    ) -> tuple[ClusterBinding, list[str], str]:
        """Delete the objects that were rolled out for the binding.

        Return the binding, titles of objects to wait for, and a refusal that does not keep the
        deletion from proceeding.

        :raises ApiError: objects could not be deleted yet.
        """
        try:
            left = await remove(binding)
        except ApiError as error:
            binding = await self._failed(binding, error, now)
            if not (isinstance(error, Forbidden) and self._may_leave(binding, now)):
                raise
            return binding, [], str(error)
        return binding, [] if self._may_leave(binding, now) else left, ""

    async def _wait_for(self, binding: ClusterBinding, left: list[str], now: datetime) -> Outcome:
        waits = f"not deleted yet: {', '.join(left)}"
        await self._report_wait(binding, waits, now, BindingEvent.CLEANUP_IN_PROGRESS)
        return After(_POLL_S)

    async def _delete_leases(self, binding: ClusterBinding, now: datetime) -> str:
        """Delete the Leases of the binding's syncers; return those to wait for, or "".

        A holder that outlives its Deployment for long was not started by the manager; its Lease
        stays.
        """
        held = await self._leaders.remove(binding, self._known())
        since = self._terminating.setdefault(binding.uid, self._clock.monotonic())
        late = self._clock.monotonic() - since >= _POD_TERMINATION_S
        if not held or late or self._may_leave(binding, now):
            return ""
        return ", ".join(f"Lease {each}" for each in held)

    async def _exists(self, binding: ClusterBinding) -> bool:
        """Whether the API server has the binding; the cache may lag.

        A binding that is gone must not be reported twice or rolled out again.
        """
        try:
            current = await self._client.get(CLUSTER_BINDINGS, binding.name)
        except NotFound:
            return False
        return current.uid == binding.uid

    def _may_leave(self, binding: ClusterBinding, now: datetime) -> bool:
        """Whether the binding may be removed before its objects.

        The garbage collector deletes the objects then.
        """
        deleted = datetime.fromisoformat(binding.metadata.deletion_timestamp or text_of(now))
        late = now >= deleted + timedelta(seconds=self._deadline_s)
        return late or forced(binding, self._domain)

    async def _clean_up_unconfirmed(
        self, binding: ClusterBinding, unconfirmed: str, now: datetime
    ) -> ClusterBinding:
        """Delete virtual nodes, and report the objects that may be left."""
        try:
            vnodes = await delete_virtual_nodes(self._client, binding, self._domain)
        except ApiError as error:
            await self._failed(binding, error, now)
            raise
        left = f"{unconfirmed}; {unconfirmed_objects(binding, vnodes, self._domain)}"
        deleted = datetime.fromisoformat(binding.metadata.deletion_timestamp or text_of(now))
        drained = api_conditions.DRAIN_UNCONFIRMED.condition(
            generation=binding.metadata.generation,
            after=max(round((now - deleted).total_seconds()), 0),
            remaining=left,
        )
        status = with_conditions(binding.status, [drained], now=text_of(now))
        self._warn(binding, BindingEvent.CLEANUP_UNCONFIRMED, f"Deletion not confirmed: {left}")
        return await self._statuses.write(binding, status)

    async def _remove_finalizers(self, binding: ClusterBinding, unconfirmed: str) -> None:
        domain = self._domain
        ours = {domain.finalizer_manager, domain.finalizer_syncer}
        others = [each for each in binding.metadata.finalizers or () if each not in ours]
        await self._statuses.finalize(binding, others)
        self._statuses.emit(binding, "Normal", BindingEvent.DELETED, "The binding is deleted")
        self._leaders.forget(binding)
        self._terminating.pop(binding.uid, None)
        _audit.info(
            "Unbound cluster",
            binding=binding.name,
            uid=binding.uid,
            cluster_id=binding.spec.cluster_id,
            deleted_at=binding.metadata.deletion_timestamp,
            forced=forced(binding, domain),
            unconfirmed=unconfirmed,
        )

    # Reporting

    async def _report_wait(
        self, binding: ClusterBinding, waits: str, now: datetime, event: BindingEvent
    ) -> None:
        before = find_condition(binding.status.conditions, api_conditions.READY)
        generation = binding.metadata.generation
        deleting = api_conditions.BINDING_DELETING.condition(generation=generation, waits=waits)
        if before is None or before.message != deleting.message:
            self._statuses.emit(binding, "Normal", event, deleting.message)
        status = with_conditions(binding.status, [deleting], now=text_of(now))
        await self._statuses.write(binding, status)

    async def _failed(
        self, binding: ClusterBinding, error: ApiError, now: datetime
    ) -> ClusterBinding:
        """Report a failed request in an event, and a missing permission also in the status."""
        self._warn(binding, BindingEvent.CLEANUP_FAILED, str(error))
        if not isinstance(error, Forbidden):
            return binding
        generation = binding.metadata.generation
        deleting = api_conditions.BINDING_DELETING.condition(
            generation=generation, waits=str(error)
        )
        status = with_conditions(binding.status, [deleting], now=text_of(now))
        return await self._statuses.write(binding, status)

    def _warn(self, binding: ClusterBinding, reason: BindingEvent, message: str) -> None:
        _log.warning("Could not clean up binding", binding=binding.name, error=message)
        self._statuses.emit(binding, "Warning", reason, message)


def _pause_s(wait: Wait, now: datetime) -> float:
    left_s = RECHECK_S if wait.until is None else (wait.until - now).total_seconds()
    return min(max(left_s, _POLL_S), RECHECK_S)
