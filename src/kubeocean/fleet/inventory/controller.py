"""The controller of ClusterProfiles on the hub.

A ClusterProfile is created when the member has joined, and deleted with its MemberCluster, also if
the finalizers of the MemberCluster were removed by hand. A missing heartbeat causes no event, so
each reconcile requeues for the time at which the last heartbeat will count as lost.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final

from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS, MemberCluster
from kubeocean.api.fleet.inventory import CLUSTER_PROFILES, ClusterProfile
from kubeocean.api.fleet.names import (
    CLUSTER_MANAGER,
    FINALIZER_PROFILE,
    LABEL_CLUSTER_MANAGER,
    SYSTEM_NAMESPACE,
)
from kubeocean.errors import NotFound
from kubeocean.fleet.extensions import OURS, Extensions
from kubeocean.fleet.health import recheck_after, unhealthy_threshold
from kubeocean.fleet.inventory.profile import (
    has_profile,
    is_ours,
    profile_document,
    profile_status,
)
from kubeocean.fleet.writes import write_status
from kubeocean.runtime.client import ApplyPatch, Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.controller import After, Controller, Done, Outcome, Stuck
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key

__all__ = ["ClusterProfiles"]

_WORKERS: Final = 8  # a reconcile only waits for the hub's API server


class ClusterProfiles:
    """Reconciles the ClusterProfiles of a hub.

    `members` is the cache of MemberClusters, which another component runs.
    """

    def __init__(
        self,
        client: Client,
        members: Informer[MemberCluster],
        *,
        extensions: Extensions = OURS,
        threshold: timedelta | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        clock, metrics = clock or RealClock(), metrics or Metrics()
        self._client, self._members, self._clock = client, members, clock
        self._extensions, self._threshold = extensions, threshold
        self._profiles: Informer[ClusterProfile] = Informer(
            client, CLUSTER_PROFILES, namespace=SYSTEM_NAMESPACE, clock=clock, metrics=metrics
        )
        self.controller: Controller[Key] = Controller(
            "clusterprofile",
            self.reconcile,
            workers=_WORKERS,
            gate=self._caught_up,
            clock=clock,
            metrics=metrics,
        )
        members.on_change(self._member_changed)
        self._profiles.on_change(self._profile_changed)

    @property
    def ready(self) -> bool:
        """Whether the caches of MemberClusters and ClusterProfiles are filled."""
        return self._members.has_synced and self._profiles.has_synced

    async def run(self) -> None:
        """Reconcile ClusterProfiles until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._profiles.run())
            await self._profiles.synced()
            await self._members.synced()
            await self.controller.run()

    def _member_changed(self, old: MemberCluster | None, new: MemberCluster | None) -> None:
        for member in (old, new):
            if member is not None:
                self.controller.enqueue(member.key)

    def _profile_changed(self, old: ClusterProfile | None, new: ClusterProfile | None) -> None:
        for profile in (old, new):
            if profile is not None:
                self.controller.enqueue(Key("", profile.name))

    async def _caught_up(self, key: Key) -> bool:
        profile = Key(SYSTEM_NAMESPACE, key.name)
        return await self._members.caught_up(key) and await self._profiles.caught_up(profile)

    async def reconcile(self, key: Key) -> Outcome:
        """Reconcile the ClusterProfile of one member."""
        member = self._members.get(key)
        profile = self._profiles.get(Key(SYSTEM_NAMESPACE, key.name))
        if member is None:
            return await self._clean_up(key.name, profile)
        if member.deleting:
            return await self._remove(member, profile)
        if not has_profile(member):
            return Done()
        if profile is not None and not is_ours(profile):
            manager = profile.spec.cluster_manager.name
            message = f"the ClusterProfile {key.name} belongs to the cluster manager {manager!r}"
            return Stuck("ForeignClusterProfile", message)
        member = await self._add_finalizer(member)
        return await self._report(member, await self._ensure(member, profile))

    async def _clean_up(self, name: str, profile: ClusterProfile | None) -> Outcome:
        """Delete the ClusterProfile of a MemberCluster that does not exist."""
        if profile is None or not is_ours(profile):
            return Done()
        try:
            await self._client.get(MEMBER_CLUSTERS, name)
        except NotFound:
            await self._delete(profile)
        return Done()  # else the cache is behind, and an event follows

    async def _remove(self, member: MemberCluster, profile: ClusterProfile | None) -> Outcome:
        finalizers = member.metadata.finalizers or ()
        if FINALIZER_PROFILE not in finalizers:
            return Done()
        if profile is not None and is_ours(profile):
            await self._delete(profile)
        await self._patch(member, [each for each in finalizers if each != FINALIZER_PROFILE])
        return Done()

    async def _delete(self, profile: ClusterProfile) -> None:
        with suppress(NotFound):
            await self._client.delete(
                CLUSTER_PROFILES, profile.name, profile.namespace, uid=profile.uid
            )
            self._profiles.deleted(profile)

    async def _add_finalizer(self, member: MemberCluster) -> MemberCluster:
        finalizers = member.metadata.finalizers or ()
        if FINALIZER_PROFILE in finalizers:
            return member
        return await self._patch(member, [*finalizers, FINALIZER_PROFILE])

    async def _patch(self, member: MemberCluster, finalizers: list[str]) -> MemberCluster:
        metadata = {
            "resourceVersion": member.resource_version,
            "uid": member.uid,
            "finalizers": finalizers,
        }
        patch = MergePatch({"metadata": metadata})
        try:
            written = await self._client.patch(MEMBER_CLUSTERS, member.name, patch)
        except NotFound:
            return member
        self._members.wrote(written)
        return written

    async def _ensure(
        self, member: MemberCluster, profile: ClusterProfile | None
    ) -> ClusterProfile:
        """Create the ClusterProfile of a member, or restore its label and display name."""
        body = profile_document(member.name)
        if profile is None:
            written = await self._client.create(CLUSTER_PROFILES, body)
        elif (
            profile.labels.get(LABEL_CLUSTER_MANAGER) == CLUSTER_MANAGER
            and profile.spec.display_name == member.name
        ):
            return profile
        else:
            body["metadata"]["uid"] = profile.uid
            patch = ApplyPatch(body, force=True)
            written = await self._client.patch(
                CLUSTER_PROFILES, profile.name, patch, profile.namespace
            )
        self._profiles.wrote(written)
        return written

    async def _report(self, member: MemberCluster, profile: ClusterProfile) -> Outcome:
        now = self._clock.now()
        threshold = unhealthy_threshold(self._threshold, member.spec.heartbeat_period_seconds)
        properties = self._extensions.profile_properties(member)
        status = profile_status(profile, member, properties, threshold, now)
        written = await write_status(self._client, CLUSTER_PROFILES, profile, status)
        if written is not None:
            self._profiles.wrote(written)
        delay = recheck_after(member.status.agent_status, threshold, now)
        return Done() if delay is None else After(delay.total_seconds())
