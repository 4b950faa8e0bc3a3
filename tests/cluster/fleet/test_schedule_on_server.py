"""Cycles of the scheduler on a real API server: views of stored objects, written results."""

from __future__ import annotations

import uuid
from datetime import datetime

import pytest

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS, MemberCluster
from kubeocean.api.fleet.hashes import hash_bytes, policy_hash
from kubeocean.api.fleet.kinds import CLUSTER, NAMESPACED, PlacementScope
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.schema import document
from kubeocean.api.fleet.snapshots import PolicySnapshot
from kubeocean.errors import AlreadyExists, Conflict
from kubeocean.fleet.scheduler import (
    Schedule,
    binding_document,
    binding_patch,
    release_patch,
    schedule,
    snapshot_status,
    unschedule_patch,
    view_binding,
    view_member,
    view_policy,
)
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.objects import Json
from support.fleet_kinds import install_fleet_kinds

TIME = "2026-01-01T00:00:00Z"
NOW: datetime = instant_of(TIME)


@pytest.fixture(scope="module")
async def server(client: Client) -> Client:
    """Return the shared server with the kinds of a fleet."""
    await install_fleet_kinds(client)
    return client


class Hub:
    """A placement on a server, with its policy snapshots and bindings and with two members."""

    def __init__(
        self, server: Client, scope: PlacementScope, placement: Placement, members: list[str]
    ) -> None:
        self._server = server
        self._scope = scope
        self.placement = placement
        self.members = members

    @classmethod
    async def create(cls, server: Client, scope: PlacementScope, namespace: str) -> Hub:
        unique = uuid.uuid4().hex[:8]
        members = [f"m-{unique}-a", f"m-{unique}-b"]
        for name in members:
            await _create_member(server, name)
        metadata = {"name": f"p-{unique}", "namespace": namespace if scope is NAMESPACED else ""}
        selector = {"group": "", "version": "v1", "kind": "ConfigMap", "name": "x"}
        placement = await server.create(
            scope.placements,
            {
                "apiVersion": scope.placements.api_version,
                "kind": scope.placements.kind,
                "metadata": {key: value for key, value in metadata.items() if value},
                "spec": {"resourceSelectors": [selector]},
            },
        )
        return cls(server, scope, placement, members)

    async def snapshot(self, index: int, policy: Json, **annotations: str) -> PolicySnapshot:
        """Create a policy snapshot of the placement."""
        resource = self._scope.policy_snapshots
        metadata = {
            "name": names.policy_snapshot(self.placement.name, index),
            "annotations": {names.ANNOTATION_PLACEMENT_GENERATION: "1", **annotations},
        }
        if resource.namespaced:
            metadata["namespace"] = self.placement.namespace
        return await self._server.create(
            resource,
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": metadata,
                "spec": {"policy": policy, "policyHash": hash_bytes(policy_hash(policy))},
            },
        )

    async def read_snapshot(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        return await self._server.get(
            self._scope.policy_snapshots, snapshot.name, snapshot.namespace
        )

    async def bindings(self) -> list[Binding]:
        label = f"{names.LABEL_PARENT_PLACEMENT}={self.placement.name}"
        listing = await self._server.list(
            self._scope.bindings, self.placement.namespace, labels=label
        )
        return list(listing.items)

    async def cycle(self, snapshot: PolicySnapshot) -> Schedule:
        """Run one cycle over the stored objects, and write its results."""
        clusters = [await self._member(name) for name in self.members]
        current = await self.read_snapshot(snapshot)
        result = schedule(
            view_policy(current),
            map(view_member, clusters),
            map(view_binding, await self.bindings()),
            NOW,
        )
        changes = result.changes
        for gone in changes.to_release:
            await self.patch(gone.name, release_patch(gone))
        for mark in changes.to_unschedule:
            await self.patch(mark.binding.name, unschedule_patch(mark))
        for patch in changes.to_patch:
            await self.patch(patch.binding.name, binding_patch(patch))
        for new in changes.to_create:
            await self.create_binding(binding_document(self.placement, new, changes.to_release))
        if result.status is not None:
            status = snapshot_status(result.status, current.status, now=TIME)
            await self._server.patch(
                self._scope.policy_snapshots,
                current.name,
                MergePatch({"status": document(status)}),
                current.namespace,
                subresource="status",
            )
            assert (await self.read_snapshot(snapshot)).status == status
        return result

    async def _member(self, name: str) -> MemberCluster:
        return await self._server.get(MEMBER_CLUSTERS, name)

    async def create_binding(self, body: Json) -> Binding:
        return await self._server.create(self._scope.bindings, body)

    async def patch(self, name: str, patch: Json | None) -> None:
        if patch is not None:
            namespace = self.placement.namespace
            await self._server.patch(self._scope.bindings, name, MergePatch(patch), namespace)

    async def delete(self, binding: Binding) -> None:
        await self._server.delete(
            self._scope.bindings, binding.name, binding.namespace, uid=binding.uid
        )


async def _create_member(server: Client, name: str) -> None:
    await server.create(
        MEMBER_CLUSTERS,
        {
            "apiVersion": MEMBER_CLUSTERS.api_version,
            "kind": MEMBER_CLUSTERS.kind,
            "metadata": {"name": name},
            "spec": {"identity": {"kind": "User", "name": name}},
        },
    )
    conditions = [
        {
            "type": type_,
            "status": "True",
            "reason": "Tested",
            "message": "",
            "lastTransitionTime": TIME,
        }
        for type_ in ("Joined", "Healthy")
    ]
    agent = {"type": "MemberAgent", "conditions": conditions, "lastReceivedHeartbeat": TIME}
    status = MergePatch({"status": {"agentStatus": [agent]}})
    await server.patch(MEMBER_CLUSTERS, name, status, subresource="status")


@pytest.mark.parametrize("scope", [CLUSTER, NAMESPACED], ids=lambda scope: scope.prefix)
async def test_cycles_converge_on_a_server(
    server: Client, namespace: str, scope: PlacementScope
) -> None:
    hub = await Hub.create(server, scope, namespace)
    small, large = hub.members

    one = {names.ANNOTATION_NUMBER_OF_CLUSTERS: "1"}
    first = await hub.snapshot(0, {"placementType": "PickN"}, **one)
    created = await hub.cycle(first)
    (bound,) = await hub.bindings()
    assert bound.spec.target_cluster == large
    assert bound.spec.cluster_decision == created.changes.to_create[0].decision
    with pytest.raises(AlreadyExists):
        await hub.create_binding(binding_document(hub.placement, created.changes.to_create[0]))

    before = (await hub.read_snapshot(first)).resource_version
    again = await hub.cycle(first)
    assert not again.changes
    assert (await hub.read_snapshot(first)).resource_version == before
    await hub.patch(bound.name, {"spec": {"state": "Bound"}})

    second = await hub.snapshot(1, {"placementType": "PickFixed", "clusterNames": [small]})
    moved = await hub.cycle(second)
    by_cluster = {each.spec.target_cluster: each for each in await hub.bindings()}
    assert by_cluster[large].spec.state == "Unscheduled"
    assert by_cluster[large].annotations[names.ANNOTATION_PREVIOUS_STATE] == "Bound"
    assert by_cluster[small].spec.state == "Scheduled"
    with pytest.raises(Conflict):
        await hub.patch(bound.name, unschedule_patch(moved.changes.to_unschedule[0]))

    third = await hub.snapshot(2, {"placementType": "PickFixed", "clusterNames": [large]})
    await hub.cycle(third)
    revived = {each.spec.target_cluster: each for each in await hub.bindings()}[large]
    assert revived.uid == bound.uid
    assert revived.spec.state == "Bound"
    assert names.ANNOTATION_PREVIOUS_STATE not in revived.annotations
    assert bound.spec.cluster_decision.cluster_score is not None
    assert revived.spec.cluster_decision.cluster_score is None, "PickFixed has no scores"

    await hub.delete(revived)
    await hub.cycle(third)
    bindings = [each for each in await hub.bindings() if each.spec.target_cluster == large]
    deleting, successor = sorted(bindings, key=lambda each: not each.deleting)
    assert deleting.uid == revived.uid
    assert deleting.metadata.finalizers == (names.FINALIZER_WORK,)
    assert not successor.deleting
    assert not (await hub.cycle(third)).changes.to_create
