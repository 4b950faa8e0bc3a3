"""Objects of a fleet that KubeFleet's agents read, and objects that they wrote.

KubeFleet's definitions come from `support.kubefleet_schema`; the second part of this file writes
the objects of a placement as KubeFleet's hub and member agent do, with their names, labels,
annotations, owners and hashes.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import uuid
from typing import Any

import pytest

from kubeocean.api.fleet.kinds import CLUSTER, NAMESPACED, PlacementScope
from kubeocean.api.fleet.names import member_namespace
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.works import APPLIED_WORKS, WORKS, Work
from kubeocean.errors import AlreadyExists
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES
from kubeocean.runtime.objects import Json, Object, Resource, Untyped
from support.controller_env import quiet
from support.faults import Faults
from support.fleet_env import FleetEnv
from support.fleet_kinds import install_fleet_kinds
from support.kubefleet_schema import PUBLISHED, published_definition
from support.placement_env import config_map_selector, namespace_selector
from support.wait import until

from .test_place_and_report import complete, config, fleet, source

FLEET = "kubernetes-fleet.io"
STRICT = (("fieldValidation", "Strict"),)
DEPLOYMENTS: Resource[Untyped] = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
OF_THE_SERVER = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
)


# Objects that Kubeocean writes


@pytest.fixture
async def kubefleet(new_cluster: Any) -> Any:
    """Return a client of an API server with KubeFleet's definitions."""
    cluster: Cluster = await new_cluster(name="kubefleet")
    client = cluster.client()
    await install_fleet_kinds(client, [published_definition(kind) for kind in PUBLISHED])
    yield client
    await client.close()


async def place(env: FleetEnv, scope: PlacementScope, namespace: str, **spec: Any) -> str:
    """Create a placement of a namespace, or of its ConfigMaps; return its name."""
    name = f"p-{uuid.uuid4().hex[:8]}"
    metadata = {"name": name}
    selector = namespace_selector(namespace)
    if scope is NAMESPACED:
        metadata["namespace"] = namespace
        selector = config_map_selector()
    body = {
        "apiVersion": scope.placements.api_version,
        "kind": scope.placements.kind,
        "metadata": metadata,
        "spec": {"resourceSelectors": [selector], **spec},
    }
    await env.hub.create(scope.placements, body)
    return name


async def last_condition(
    env: FleetEnv, scope: PlacementScope, name: str, namespace: str, type_: str, status: str
) -> None:
    """Wait until this is the last condition of a placement."""

    async def reached() -> bool:
        placement: Placement = await env.hub.get(scope.placements, name, namespace)
        assert placement.status.conditions
        last = placement.status.conditions[-1]
        assert (last.type, last.status) == (f"{scope.prefix}{type_}", status), placement.status
        return True

    await until(reached, waiting_for=f"{type_} of {name}")


async def accepted(client: Client, resource: Resource[Any], stored: Object) -> Json:
    """Write an object, and then its status, to another API server; return it as stored there.

    A field that is not in the schema is an error.
    """
    document = stored.content()
    status = document.pop("status", None)
    metadata = document["metadata"]
    for name in OF_THE_SERVER:
        metadata.pop(name, None)
    if stored.namespace:
        with contextlib.suppress(AlreadyExists):
            await client.create(NAMESPACES, {"metadata": {"name": stored.namespace}})
    path = resource.path(stored.namespace)
    written = await client.request_json("POST", path, body=document, query=STRICT)
    if status is not None:
        path = f"{resource.path(stored.namespace, stored.name)}/status"
        body = written | {"status": status}
        written = await client.request_json("PUT", path, body=body, query=STRICT)
    return written


def content(document: Json) -> Json:
    return {name: document.get(name) for name in ("spec", "status")}


@pytest.mark.sweep(sampled=False)
async def test_objects_of_placements_fit_the_schema_that_kubefleet_publishes(
    env: FleetEnv, kubefleet: Client
) -> None:
    """Among them are objects with drifts, differences, failures and a status reported back."""
    member = (await env.join(heartbeat_s=600)).name
    plain, drifted, diffed, failed = [await source(env) for _ in range(4)]
    labels = {"app": "app"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "app:1"}]},
    }
    workload = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    deployment = {"metadata": {"name": "app"}, "spec": workload}
    await env.hub.create(DEPLOYMENTS, deployment, namespace=plain)
    await env.member.create(NAMESPACES, {"metadata": {"name": diffed}})
    async with fleet(env, [member]):
        await env.wait_for(member, "Joined", "True")
        term = {"labelSelector": {"matchLabels": {f"{FLEET}/member-name": member}}}
        preferred = [{"weight": 10, "preference": term}]
        affinity = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"clusterSelectorTerms": [term]},
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        }
        policy = {
            "placementType": "PickN",
            "numberOfClusters": 1,
            "affinity": {"clusterAffinity": affinity},
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "topologySpreadConstraints": [{"topologyKey": f"{FLEET}/member-name"}],
        }
        here = {"placementType": "PickFixed", "clusterNames": [member]}
        mirror = {"reportBackStrategy": {"type": "Mirror", "destination": "WorkAPI"}}
        first = await place(env, CLUSTER, plain, policy=policy, strategy=mirror)
        if_not_drifted = {"applyStrategy": {"whenToApply": "IfNotDrifted"}}
        second = await place(env, CLUSTER, drifted, policy=here, strategy=if_not_drifted)
        report_diff = {"applyStrategy": {"type": "ReportDiff"}}
        third = await place(env, NAMESPACED, diffed, policy=here, strategy=report_diff)
        fourth = await place(env, NAMESPACED, failed, policy=here)
        await complete(env, first)
        await complete(env, second)
        edit = MergePatch({"data": {"color": "green"}})
        await env.member.patch(CONFIG_MAPS, "app", edit, drifted)
        await last_condition(env, CLUSTER, second, "", "Applied", "False")
        await last_condition(env, NAMESPACED, third, diffed, "DiffReported", "True")
        await last_condition(env, NAMESPACED, fourth, failed, "Applied", "False")

        async def is_reported_back() -> bool:
            work: Work = await env.hub.get(WORKS, f"{first}-work", member_namespace(member))
            return any(each.back_reported_status for each in work.status.manifest_conditions)

        await until(is_reported_back)
    clients = {APPLIED_WORKS.kind: env.member}
    documents: list[tuple[str, str]] = []
    for kind in PUBLISHED:
        resource = kind.resource
        client = clients.get(resource.kind, env.hub)
        for stored in (await client.list(resource, keep_raw=True)).items:
            written = await accepted(kubefleet, resource, stored)
            assert content(written) == content(stored.content()), stored.name
            documents.append((resource.kind, json.dumps(content(written))))
    assert {kind for kind, _ in documents} == {kind.resource.kind for kind in PUBLISHED}
    for kind_name, field in (
        ("Work", "driftDetails"),
        ("Work", "diffDetails"),
        ("Work", "backReportedStatus"),
        ("Work", "reportBackStrategy"),
        ("ClusterResourceBinding", "driftedPlacements"),
        ("ClusterResourceBinding", "clusterScore"),
        ("ResourceBinding", "diffedPlacements"),
        ("ResourceBinding", "failedPlacements"),
        ("ClusterSchedulingPolicySnapshot", "tolerations"),
    ):
        assert any(field in text for kind, text in documents if kind == kind_name), field


# Objects that KubeFleet wrote


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def owned_by(kind: str, owner: Object, *, controller: bool = False) -> Json:
    reference = {
        "apiVersion": "placement.kubernetes-fleet.io/v1beta1",
        "kind": kind,
        "name": owner.name,
        "uid": owner.uid,
        "blockOwnerDeletion": True,
    }
    return {"ownerReferences": [reference | ({"controller": True} if controller else {})]}


def condition(type_: str, reason: str, generation: int = 1, message: str = "") -> Json:
    return {
        "type": type_,
        "status": "True",
        "reason": reason,
        "message": message or reason,
        "observedGeneration": generation,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


class KubeFleetObjects:
    """The objects of a complete placement of a namespace on one member, as KubeFleet has them."""

    def __init__(self, env: FleetEnv, member: str, namespace: str) -> None:
        self.env, self.member, self.namespace = env, member, namespace
        self.name = f"crp-{uuid.uuid4().hex[:8]}"
        self.work = f"{self.name}-work"

    async def write(self) -> None:
        await self._write_to_hub(await self._manifests())
        await self._write_to_member(await self._manifests())

    async def _manifests(self) -> list[Json]:
        """Return the hub's objects without the fields that servers set."""
        namespace = await self.env.hub.get(NAMESPACES, self.namespace, keep_raw=True)
        labels = namespace.content()["metadata"]["labels"]
        return [
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"labels": labels, "name": self.namespace},
                "spec": {"finalizers": ["kubernetes"]},
            },
            {
                "apiVersion": "v1",
                "data": {"color": "red"},
                "kind": "ConfigMap",
                "metadata": {"name": "app", "namespace": self.namespace},
            },
        ]

    async def _write_to_hub(self, manifests: list[Json]) -> None:
        hub, parent = self.env.hub, {f"{FLEET}/parent-CRP": self.name}
        policy = {"placementType": "PickFixed", "clusterNames": [self.member]}
        # Go encodes a struct in the order of its fields
        policy_hash = digest(json.dumps(policy, separators=(",", ":")))
        apply_strategy = {
            "type": "ClientSideApply",
            "comparisonOption": "PartialComparison",
            "whenToApply": "Always",
            "whenToTakeOver": "Always",
        }
        placement = await self._create(
            hub,
            CLUSTER.placements,
            self.name,
            {"finalizers": [f"{FLEET}/crp-cleanup", f"{FLEET}/scheduler-cleanup"]},
            {
                "resourceSelectors": [namespace_selector(self.namespace)],
                "policy": policy,
                "strategy": {"applyStrategy": apply_strategy},
            },
        )
        owner = owned_by("ClusterResourcePlacement", placement, controller=True)
        latest = {f"{FLEET}/is-latest-snapshot": "true"}
        decision = {
            "clusterName": self.member,
            "selected": True,
            "reason": f'Successfully scheduled resources for placement in "{self.member}": '
            "picked by scheduling policy",
        }
        await self._create(
            hub,
            CLUSTER.policy_snapshots,
            f"{self.name}-0",
            {
                "labels": parent | latest | {f"{FLEET}/policy-index": "0"},
                "annotations": {f"{FLEET}/CRP-generation": "1"},
                **owner,
            },
            {"policy": policy, "policyHash": base64.b64encode(policy_hash.encode()).decode()},
            {
                "observedCRPGeneration": 1,
                "conditions": [condition("Scheduled", "SchedulingPolicyFulfilled")],
                "targetClusters": [decision],
            },
        )
        await self._create(
            hub,
            CLUSTER.resource_snapshots,
            f"{self.name}-0-snapshot",
            {
                "labels": parent | latest | {f"{FLEET}/resource-index": "0"},
                "annotations": {
                    f"{FLEET}/resource-hash": digest(compact({"selectedResources": manifests})),
                    f"{FLEET}/number-of-resource-snapshots": "1",
                    f"{FLEET}/number-of-enveloped-object": "0",
                },
                **owner,
            },
            {"selectedResources": manifests},
        )
        binding = await self._create(
            hub,
            CLUSTER.bindings,
            f"{self.name[:26]}-{self.member[:27]}-0a1b2c3d",
            {
                "labels": parent,
                "finalizers": [f"{FLEET}/scheduler-crb-cleanup", f"{FLEET}/work-cleanup"],
            },
            {
                "state": "Bound",
                "targetCluster": self.member,
                "resourceSnapshotName": f"{self.name}-0-snapshot",
                "schedulingPolicySnapshotName": f"{self.name}-0",
                "clusterDecision": decision,
                "applyStrategy": apply_strategy,
            },
            {
                "conditions": [
                    condition("RolloutStarted", "RolloutStarted"),
                    condition("Overridden", "NoOverrideSpecified"),
                    condition("WorkSynchronized", "AllWorkSynced"),
                    condition("Applied", "AllWorkHaveBeenApplied"),
                    condition("Available", "AllWorkAreAvailable"),
                ]
            },
        )
        identifiers = [
            {"ordinal": 0, "version": "v1", "kind": "Namespace", "resource": "namespaces"}
            | {"name": self.namespace},
            {"ordinal": 1, "version": "v1", "kind": "ConfigMap", "resource": "configmaps"}
            | {"namespace": self.namespace, "name": "app"},
        ]
        await self._create(
            hub,
            WORKS,
            self.work,
            {
                "namespace": member_namespace(self.member),
                "labels": parent
                | {
                    f"{FLEET}/parent-resource-binding": binding.name,
                    f"{FLEET}/parent-resource-snapshot-index": "0",
                },
                "annotations": {
                    f"{FLEET}/parent-resource-snapshot-name": f"{self.name}-0-snapshot",
                    f"{FLEET}/parent-cluster-resource-override-snapshot-hash": digest("null"),
                    f"{FLEET}/parent-resource-override-snapshot-hash": digest("null"),
                },
                "finalizers": [f"{FLEET}/work-cleanup"],
                **owned_by("ClusterResourceBinding", binding),
            },
            {"workload": {"manifests": manifests}, "applyStrategy": apply_strategy},
            {
                "conditions": [
                    condition("Applied", "AllManifestsApplied"),
                    condition("Available", "AllManifestsAvailable"),
                ],
                "manifestConditions": [
                    {
                        "identifier": identifier,
                        "conditions": [
                            condition("Applied", "Applied", 0),
                            condition("Available", "Available", 0),
                        ],
                    }
                    for identifier in identifiers
                ],
            },
        )

    async def _write_to_member(self, manifests: list[Json]) -> None:
        member = self.env.member
        work = {"workName": self.work, "workNamespace": member_namespace(self.member)}
        applied_work = await self._create(member, APPLIED_WORKS, self.work, {}, work)
        owner = owned_by("AppliedWork", applied_work)
        resources: list[Resource[Any]] = [NAMESPACES, CONFIG_MAPS]
        applied = []
        for ordinal, (resource, manifest) in enumerate(zip(resources, manifests, strict=True)):
            metadata = manifest["metadata"] | owner
            # Of the metadata, the object's name and the fields of Kubernetes are not hashed
            empty = {"annotations": {}, "labels": {}}
            empty |= {"finalizers": [], "managedFields": [], "ownerReferences": []}
            annotations = {f"{FLEET}/spec-hash": digest(compact(manifest | {"metadata": empty}))}
            remembered = manifest | {"metadata": metadata | {"annotations": annotations}}
            annotations = {
                **annotations,
                f"{FLEET}/last-applied-configuration": compact(remembered) + "\n",
            }
            body = manifest | {"metadata": metadata | {"annotations": annotations}}
            stored = await member.create(resource, body)
            identifier = {"ordinal": ordinal, "version": "v1", "kind": manifest["kind"]}
            identifier |= {"resource": resource.plural, "name": stored.name, "uid": stored.uid}
            if stored.namespace:
                identifier["namespace"] = stored.namespace
            applied.append(identifier)
        status = {"status": {"appliedResources": applied}}
        await member.patch(APPLIED_WORKS, self.work, MergePatch(status), subresource="status")

    async def _create(
        self,
        client: Client,
        resource: Resource[Any],
        name: str,
        metadata: Json,
        spec: Json,
        status: Json | None = None,
    ) -> Object:
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, **metadata},
            "spec": spec,
        }
        stored: Object = await client.create(resource, body)
        if status is not None:
            patch = MergePatch({"status": status})
            await client.patch(resource, name, patch, stored.namespace, subresource="status")
        return stored

    async def stored(self) -> dict[tuple[str, str], tuple[str, int]]:
        """Return UID and generation of all objects, by kind and name."""
        parent = f"{FLEET}/parent-CRP={self.name}"
        found: list[tuple[Resource[Any], Object]] = []
        kinds: tuple[Resource[Any], ...] = (
            CLUSTER.policy_snapshots,
            CLUSTER.resource_snapshots,
            CLUSTER.bindings,
            WORKS,
        )
        for resource in kinds:
            listed = await self.env.hub.list(resource, labels=parent)
            found += [(resource, each) for each in listed.items]
        member = self.env.member
        found += [
            (APPLIED_WORKS, await member.get(APPLIED_WORKS, self.work)),
            (NAMESPACES, await member.get(NAMESPACES, self.namespace)),
            (CONFIG_MAPS, await member.get(CONFIG_MAPS, "app", self.namespace)),
        ]
        return {
            (resource.kind, each.name): (each.uid, each.metadata.generation)
            for resource, each in found
        }

    async def placed_version(self) -> str:
        placed = await self.env.member.get(CONFIG_MAPS, "app", self.namespace)
        return placed.metadata.resource_version


@pytest.mark.sweep(sampled=False)
async def test_a_placement_of_kubefleets_agents_is_taken_over(env: FleetEnv) -> None:
    """All objects stay as they are, follow a change under the next index, and go in the end."""
    member = (await env.join(heartbeat_s=600)).name
    namespace = await source(env)
    async with fleet(env, [member]):
        await env.wait_for(member, "Joined", "True")
    theirs = KubeFleetObjects(env, member, namespace)
    await theirs.write()
    before, version = await theirs.stored(), await theirs.placed_version()
    faults = Faults()
    async with fleet(env, [member], faults=faults):
        placement = await complete(env, theirs.name)
        selected = [(each.kind, each.name) for each in placement.status.selected_resources]
        assert selected == [("Namespace", namespace), ("ConfigMap", "app")]
        await quiet(faults)
        assert await theirs.stored() == before
        assert await theirs.placed_version() == version

        blue = MergePatch({"data": {"color": "blue"}})
        await env.hub.patch(CONFIG_MAPS, "app", blue, namespace)
        await complete(env, theirs.name, index="1")
        assert await config(env.member, namespace) == {"color": "blue"}
        after = await theirs.stored()
        assert after[("Work", theirs.work)] == (before[("Work", theirs.work)][0], 2)
        assert after[("ConfigMap", "app")][0] == before[("ConfigMap", "app")][0]
        new = after.keys() - before.keys()
        assert new == {("ClusterResourceSnapshot", f"{theirs.name}-1-snapshot")}

        await env.hub.delete(CLUSTER.placements, theirs.name, uid=placement.uid)

        async def is_gone() -> bool:
            placements = (await env.hub.list(CLUSTER.placements)).items
            assert theirs.name not in {each.name for each in placements}
            assert (await env.hub.list(WORKS, member_namespace(member))).items == []
            applied = (await env.member.list(APPLIED_WORKS)).items
            assert theirs.work not in {each.name for each in applied}
            return True

        await until(is_gone)
