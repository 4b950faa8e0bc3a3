"""The controller of MemberClusters on the hub: join, copy of agent reports, health, leave.

A reconcile reads caches, calls `plan_member` for the next step, and writes the difference. The
report of a member's agents is copied when its InternalMemberCluster or the generation of the
MemberCluster has changed, and at no other time: other programs may write the status of a
MemberCluster, and their values stay until the agents report again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec

from kubeocean.api.fleet.clusters import (
    INTERNAL_MEMBER_CLUSTERS,
    MEMBER_CLUSTERS,
    AgentType,
    InternalMemberCluster,
    MemberCluster,
    MembershipState,
    MemberStatus,
)
from kubeocean.api.fleet.conditions import MemberReason
from kubeocean.api.fleet.names import (
    FINALIZER_MEMBER,
    member_namespace,
)
from kubeocean.api.fleet.works import WORKS
from kubeocean.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    Unreachable,
)
from kubeocean.fleet.extensions import OURS, Extensions
from kubeocean.fleet.health import stored_instant, unhealthy_threshold
from kubeocean.fleet.membership.caches import MembershipCaches
from kubeocean.fleet.membership.forge import (
    HubObjects,
    ObjectWrite,
    is_controlled_by,
    member_metadata,
    object_writes,
)
from kubeocean.fleet.membership.plan import MembershipPlan, MembershipStep, plan_member
from kubeocean.fleet.membership.status import (
    copy_report,
    hub_conditions,
    status_changes,
    with_conditions,
)
from kubeocean.fleet.writes import write_status
from kubeocean.runtime.client import ApplyPatch, Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock, text_of
from kubeocean.runtime.controller import After, Controller, Done, Outcome, Stuck
from kubeocean.runtime.events import EventRecorder, EventType, reference
from kubeocean.runtime.kinds import NAMESPACES
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Condition, Json, Key, Untyped, decode_list

__all__ = ["FORCE_WAIT", "MEMBER_AGENTS", "NETWORKING_AGENTS", "MemberClusters"]

MEMBER_AGENTS: Final = (AgentType.MEMBER,)
NETWORKING_AGENTS: Final = (
    AgentType.MEMBER,
    AgentType.MULTI_CLUSTER_SERVICE,
    AgentType.SERVICE_EXPORT_IMPORT,
)
FORCE_WAIT: Final = timedelta(minutes=15)
_WORKERS: Final = 16  # a reconcile only waits for the hub's API server
_RECHECK_S: Final = 5.0  # Works may get finalizers while their namespace is being deleted
_STUCK_AFTER: Final = timedelta(minutes=15)
# Errors that are likely to be gone at the next attempt; others are shown on the MemberCluster
_PASSING: Final = (
    AlreadyExists,
    Conflict,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    Unreachable,
)
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_audit = get_logger("kubeocean.audit")


@dataclass(slots=True)
class _MemberRecord:
    """State that the controller keeps of one MemberCluster, by UID, between reconciles."""

    # Version of the InternalMemberCluster, generation, and problem that the status was made from
    reported: tuple[tuple[str, str, int] | None, str] | None = None
    has_warned: bool = False  # whether it warned that the namespace is not deleted


class MemberClusters:
    """Reconciles all MemberClusters of a hub.

    - `threshold`: age of a heartbeat that counts as lost; None for three periods.
    - `force_wait`: time after which a member that does not leave is removed.
    - `expected`: types of the agents that a member runs.
    """

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        *,
        extensions: Extensions = OURS,
        threshold: timedelta | None = None,
        force_wait: timedelta = FORCE_WAIT,
        expected: tuple[str, ...] = MEMBER_AGENTS,
        workers: int = _WORKERS,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        clock, metrics = clock or RealClock(), metrics or Metrics()
        self._client, self._events, self._clock = client, events, clock
        self._extensions, self._threshold = extensions, threshold
        self._force_wait, self._expected = force_wait, expected
        self._records: dict[str, _MemberRecord] = {}
        self.caches = MembershipCaches(client, clock=clock, metrics=metrics)
        self.controller: Controller[Key] = Controller(
            "membercluster",
            self.reconcile,
            workers=workers,
            gate=self.caches.caught_up,
            clock=clock,
            metrics=metrics,
        )
        self.caches.on_change(self.controller.enqueue)
        self.caches.members.on_change(self._forget)

    def _forget(self, old: MemberCluster | None, new: MemberCluster | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self._records.pop(old.uid, None)

    def _record(self, member: MemberCluster) -> _MemberRecord:
        cached = self.caches.members.get(member.key)
        if cached is None or cached.uid != member.uid:
            return _MemberRecord()  # not kept: no event would remove the record
        return self._records.setdefault(member.uid, _MemberRecord())

    @property
    def ready(self) -> bool:
        """Whether all caches of the controller are filled."""
        return self.caches.has_synced

    async def run(self) -> None:
        """Reconcile MemberClusters until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.caches.run())
            await self.caches.synced()
            await self.controller.run()

    # Reconciling

    async def reconcile(self, key: Key) -> Outcome:
        """Take the next step for one MemberCluster; report a failed step in its status."""
        member = self.caches.members.get(key)
        if member is None:
            return Done()
        objects = self.caches.objects(member.name)
        try:
            return await self._step(member, objects)
        except _PASSING:
            raise
        except ApiError as error:
            await self._report_failure(member, objects.internal, str(error))
            raise

    async def _step(self, member: MemberCluster, objects: HubObjects) -> Outcome:
        plan = plan_member(member, objects, self._expected, self._force_wait, self._clock.now())
        match plan.step:
            case MembershipStep.NOTHING:
                return Done()
            case MembershipStep.REFUSE:
                member = await self._complete_metadata(member)
                internal = objects.internal
                is_own = internal is not None and is_controlled_by(internal, member)
                await self._report(member, internal if is_own else None, problem=plan.message)
                return Stuck(MemberReason.NOT_READY_TO_JOIN, plan.message)
            case MembershipStep.AWAIT_NAMESPACE:
                return await self._await_namespace(member, objects, plan)
            case MembershipStep.JOIN:
                return await self._join(member, objects)
            case MembershipStep.ASK_TO_LEAVE:
                return await self._ask_to_leave(member, objects)
            case MembershipStep.AWAIT_LEAVE:
                await self._report(member, objects.internal)
                assert plan.again_in is not None
                return After(plan.again_in.total_seconds())
            case MembershipStep.REMOVE:
                return await self._remove(member, objects, plan)
            case MembershipStep.AWAIT_REMOVAL:
                return await self._await_removal(member, objects, plan)
            case MembershipStep.FINALIZE:
                return await self._finalize(member)

    async def _report_failure(
        self, member: MemberCluster, internal: InternalMemberCluster | None, problem: str
    ) -> None:
        with suppress(ApiError):  # the first error is raised, and leads to a retry
            member = await self._client.get(MEMBER_CLUSTERS, member.name)
            await self._report(member, internal, problem=problem)

    async def _await_namespace(
        self, member: MemberCluster, objects: HubObjects, plan: MembershipPlan
    ) -> Outcome:
        member = await self._complete_metadata(member)
        await self._report(member, None, problem=plan.message)
        namespace = objects.namespace
        assert namespace is not None
        if namespace.deleting and not is_controlled_by(namespace, member):
            await self._release_works(namespace.name)
        return After(_RECHECK_S)

    async def _join(self, member: MemberCluster, objects: HubObjects) -> Outcome:
        member = await self._complete_metadata(member)
        for write in object_writes(member, objects):
            await self._write(member, write)
        member = await self._report(member, objects.internal)
        return self._next_check(member)

    async def _complete_metadata(self, member: MemberCluster) -> MemberCluster:
        """Add the hub's finalizer and label to a MemberCluster; return it as written."""
        missing = member_metadata(member)
        if not missing:
            return member
        written = await self._patch(member, missing)
        if "finalizers" in missing:
            identity = member.spec.identity
            _audit.info(
                "Admitted member",
                member=member.name,
                uid=member.uid,
                identity=f"{identity.kind} {identity.name}",
            )
        return written

    async def _write(self, member: MemberCluster, write: ObjectWrite) -> None:
        resource, metadata = write.resource, write.body["metadata"]
        name, namespace = metadata["name"], metadata.get("namespace", "")
        if write.replaced is not None:
            await self._client.delete(resource, name, namespace, uid=write.replaced.uid)
        if write.create:
            written = await self._client.create(resource, write.body)
        else:
            patch = ApplyPatch(write.body, force=True)
            written = await self._client.patch(resource, name, patch, namespace)
        self.caches.wrote(resource.kind, written)
        verb = "Created" if write.create else "Updated"
        self._emit(member, "Normal", write.event, f"{verb} {resource.kind} {name}")

    def _next_check(self, member: MemberCluster) -> Outcome:
        now = self._clock.now()
        delay = self._extensions.health_changes_in(member, self._threshold_of(member), now)
        return Done() if delay is None else After(max(delay.total_seconds(), 0.0))

    def _threshold_of(self, member: MemberCluster) -> timedelta:
        return unhealthy_threshold(self._threshold, member.spec.heartbeat_period_seconds)

    # Leaving

    async def _ask_to_leave(self, member: MemberCluster, objects: HubObjects) -> Outcome:
        internal = objects.internal
        assert internal is not None
        body: Json = {
            "metadata": {"resourceVersion": internal.resource_version, "uid": internal.uid},
            "spec": {"state": str(MembershipState.LEAVE)},
        }
        written = await self._client.patch(
            INTERNAL_MEMBER_CLUSTERS, internal.name, MergePatch(body), internal.namespace
        )
        self.caches.wrote(INTERNAL_MEMBER_CLUSTERS.kind, written)
        _audit.info("Asked member to leave the fleet", member=member.name, uid=member.uid)
        await self._report(member, internal)
        return Done()  # the event of this write leads to the next step

    async def _remove(
        self, member: MemberCluster, objects: HubObjects, plan: MembershipPlan
    ) -> Outcome:
        await self._report(member, objects.internal)
        if plan.message:
            self._emit(member, "Warning", "MemberClusterForceDeleted", plan.message)
        namespace = objects.namespace
        assert namespace is not None
        await self._release_works(namespace.name)
        with suppress(NotFound):
            await self._client.delete(NAMESPACES, namespace.name, uid=namespace.uid)
        _audit.info(
            "Deleted namespace of member",
            member=member.name,
            uid=member.uid,
            namespace=namespace.name,
            forced=bool(plan.message),
        )
        return After(_RECHECK_S)

    async def _await_removal(
        self, member: MemberCluster, objects: HubObjects, plan: MembershipPlan
    ) -> Outcome:
        namespace = objects.namespace
        assert namespace is not None
        await self._release_works(namespace.name)
        since = stored_instant(member.metadata.deletion_timestamp)
        record = self._record(member)
        if since and self._clock.now() - since > _STUCK_AFTER and not record.has_warned:
            record.has_warned = True
            message = f"{plan.message}; look at the finalizers of the objects in it"
            self._emit(member, "Warning", "NamespaceNotDeleted", message)
        return After(_RECHECK_S)

    async def _release_works(self, namespace: str) -> None:
        """Remove all finalizers of the Works in a namespace; placed objects stay in the member."""
        body = await self._client.request("GET", WORKS.path(namespace), accept=_METADATA)
        _, works = decode_list(Untyped, body, keep_raw=False)
        for work in works:
            if not work.metadata.finalizers:
                continue
            metadata = {"resourceVersion": work.resource_version, "finalizers": None}
            with suppress(NotFound):
                await self._client.patch(
                    WORKS, work.name, MergePatch({"metadata": metadata}), namespace
                )

    async def _finalize(self, member: MemberCluster) -> Outcome:
        """Remove the hub's finalizer once the API server confirms that the namespace is gone."""
        try:
            namespace = await self._client.get(NAMESPACES, member_namespace(member.name))
        except NotFound:
            pass
        else:
            if is_controlled_by(namespace, member):
                return After(_RECHECK_S)
        others = [each for each in member.metadata.finalizers or () if each != FINALIZER_MEMBER]
        await self._patch(member, {"finalizers": others})
        _audit.info("Removed member", member=member.name, uid=member.uid)
        return Done()

    # Writing the MemberCluster

    async def _report(
        self, member: MemberCluster, internal: InternalMemberCluster | None, *, problem: str = ""
    ) -> MemberCluster:
        """Write the MemberCluster's status if it differs; return the MemberCluster as written."""
        record = self._record(member)
        now, generation = self._clock.now(), member.metadata.generation
        version = None
        if internal is not None:
            version = (internal.uid, internal.resource_version, generation)
        status = member.status
        if record.reported != (version, problem):
            if internal is not None:
                status = copy_report(member, internal)
            conditions = self._hub_conditions(member, status, problem)
            status = with_conditions(status, conditions, generation=generation, now=text_of(now))
        healthy = self._extensions.health(
            msgspec.structs.replace(member, status=status), self._threshold_of(member), now
        )
        if healthy is not None:
            status = with_conditions(status, (healthy,), generation=generation, now=text_of(now))
        written = await self._replace_status(member, status)
        record.reported = (version, problem)
        return written

    def _hub_conditions(
        self, member: MemberCluster, status: MemberStatus, problem: str
    ) -> tuple[Condition, ...]:
        if not problem:
            return hub_conditions(status.agent_status, self._expected)
        condition = self._extensions.join_problem(problem)
        if condition is not None:
            return (condition,)
        self._emit(member, "Warning", MemberReason.NOT_READY_TO_JOIN, problem)
        return ()

    async def _replace_status(self, member: MemberCluster, status: MemberStatus) -> MemberCluster:
        try:
            written = await write_status(self._client, MEMBER_CLUSTERS, member, status)
        except NotFound:
            return member  # deleted meanwhile
        if written is None:
            return member
        self.caches.members.wrote(written)
        for change in status_changes(member.status, status):
            self._emit(member, change.type, change.reason, change.message)
        return written

    async def _patch(self, member: MemberCluster, metadata: Json) -> MemberCluster:
        precondition = {"resourceVersion": member.resource_version, "uid": member.uid}
        patch = MergePatch({"metadata": precondition | metadata})
        try:
            written = await self._client.patch(MEMBER_CLUSTERS, member.name, patch)
        except NotFound:
            return member
        self.caches.members.wrote(written)
        return written

    def _emit(self, member: MemberCluster, type_: EventType, reason: str, message: str) -> None:
        self._events.emit(reference(MEMBER_CLUSTERS, member), type_, reason, message)
