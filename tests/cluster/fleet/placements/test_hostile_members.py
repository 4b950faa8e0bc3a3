"""Members that write what they may write on the hub, to harm other members."""

from __future__ import annotations

from typing import Any

from kubeocean.api.fleet import names
from kubeocean.api.fleet.kinds import NAMESPACED
from kubeocean.api.fleet.works import WORKS
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.objects import Json, Key, Resource
from support.placement_env import PlacementEnv, config_map_selector, work_status
from support.wait import until

OTHERS: Json = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "everything"},
    "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
}


async def create(env: PlacementEnv, resource: Resource[Any], body: Json) -> None:
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    await env.client.create(resource, kind | body)


async def test_a_member_places_nothing_on_other_members(env: PlacementEnv) -> None:
    hostile, victim = await env.join("hostile", "victim")
    namespace = names.member_namespace(hostile)
    labels = {names.LABEL_PARENT_PLACEMENT: "evil"}
    await create(
        env,
        NAMESPACED.resource_snapshots,
        {
            "metadata": {
                "name": "evil-0-snapshot",
                "namespace": namespace,
                "labels": labels
                | {names.LABEL_RESOURCE_INDEX: "0", names.LABEL_LATEST_SNAPSHOT: "true"},
                "annotations": {names.ANNOTATION_RESOURCE_SNAPSHOTS: "1"},
            },
            "spec": {"selectedResources": [OTHERS]},
        },
    )
    await create(
        env,
        NAMESPACED.bindings,
        {
            "metadata": {"name": "evil", "namespace": namespace, "labels": labels},
            "spec": {
                "state": "Bound",
                "targetCluster": victim,
                "resourceSnapshotName": "evil-0-snapshot",
                "schedulingPolicySnapshotName": "evil-0",
                "clusterDecision": {"clusterName": victim, "selected": True, "reason": "x"},
            },
        },
    )
    evil = await env.place(config_map_selector(), namespace=namespace, name="evil")
    await env.config_map("settings")
    key = await env.place(config_map_selector("settings"), namespace=env.namespace)
    async with env.controlling(), env.reporting():
        await env.completed(key, hostile, victim)
        placed = (await env.client.list(WORKS, names.member_namespace(victim))).items
        assert [work.labels[names.LABEL_PARENT_PLACEMENT] for work in placed] == [key.name]
        assert (await env.placement(evil)).status.conditions == ()


async def test_a_member_changes_neither_status_nor_end_of_other_members(env: PlacementEnv) -> None:
    hostile, victim = await env.join("hostile", "victim")
    await env.config_map("settings")
    key = await env.place(config_map_selector("settings"), namespace=env.namespace)
    async with env.controlling():
        async with env.reporting():
            await env.completed(key, hostile, victim)
        binding = (await env.bindings(key))[victim]
        namespace = names.member_namespace(hostile)
        (work,) = (await env.client.list(WORKS, namespace)).items
        failed = work_status(work, status="False", Applied="Failed")
        await env.client.patch(
            WORKS, work.name, MergePatch({"status": failed}), namespace, subresource="status"
        )
        labels = {names.LABEL_PARENT_BINDING: binding.name}
        metadata = {"labels": labels, "finalizers": ["example.com/hold"]}
        await env.client.patch(WORKS, work.name, MergePatch({"metadata": metadata}), namespace)

        async def is_removed() -> bool:
            return (await env.client.get(WORKS, work.name, namespace)).deleting

        await until(is_removed)
        status = (await env.bindings(key))[victim].status
        assert {each.status for each in status.conditions} == {"True"}
        async with env.reporting() as reports:
            reports.silent = {hostile}
            await env.delete(key)
            await until(lambda: _lacks(env, key, victim))


async def _lacks(env: PlacementEnv, key: Key, cluster: str) -> bool:
    return cluster not in await env.bindings(key)
