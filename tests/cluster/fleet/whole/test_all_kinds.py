"""An application of many kinds: placed, changed, deleted and created again on hub and member."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kubeocean.api.fleet.kinds import CLUSTER
from kubeocean.api.fleet.placements import Placement
from kubeocean.errors import NotFound
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from kubeocean.runtime.objects import Json, Resource, Untyped, find_condition
from support.controller_env import quiet
from support.custom_resources import define
from support.faults import Faults
from support.fleet_env import FleetEnv
from support.placement_env import namespace_selector
from support.wait import until

from .test_place_and_report import fleet

RBAC = "rbac.authorization.k8s.io"
CHANGED = {"metadata": {"labels": {"edition": "second"}}}


def resource(group: str, plural: str, kind: str, *, namespaced: bool = True) -> Resource[Untyped]:
    return Resource(group, "v1", plural, kind, namespaced, Untyped)


def application(unique: str) -> list[tuple[Resource[Untyped], Json]]:
    """Return the objects of an application, without its namespace and definition.

    Nothing runs here: workloads have no replicas, and the Job is suspended.
    """
    labels = {"app": "app"}
    pod = {"containers": [{"name": "c", "image": "app:1"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    workload = {"selector": {"matchLabels": labels}, "template": template}
    role_ref = {"apiGroup": RBAC, "kind": "Role", "name": "app"}
    cluster_role_ref = {"apiGroup": RBAC, "kind": "ClusterRole", "name": f"app-{unique}"}
    subject = {"kind": "User", "apiGroup": RBAC, "name": "somebody"}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    cluster_wide = {"metadata": {"name": f"app-{unique}", "labels": {"app": unique}}}
    return [
        (resource(f"g{unique}.example.com", "widgets", "Widget"), {"spec": {"size": 3}}),
        (resource("apps", "deployments", "Deployment"), {"spec": {"replicas": 0, **workload}}),
        (
            resource("apps", "statefulsets", "StatefulSet"),
            {"spec": {"replicas": 0, "serviceName": "app", **workload}},
        ),
        (resource("apps", "daemonsets", "DaemonSet"), {"spec": workload}),
        (
            resource("batch", "jobs", "Job"),
            {
                "spec": {
                    "suspend": True,
                    "template": {"spec": pod | {"restartPolicy": "Never"}},
                }
            },
        ),
        (
            resource("", "services", "Service"),
            {"spec": {"selector": labels, "ports": [{"port": 1}]}},
        ),
        (resource("", "serviceaccounts", "ServiceAccount"), {}),
        (resource(RBAC, "roles", "Role"), {"rules": rules}),
        (
            resource(RBAC, "rolebindings", "RoleBinding"),
            {"roleRef": role_ref, "subjects": [subject]},
        ),
        (
            resource(RBAC, "clusterroles", "ClusterRole", namespaced=False),
            {"rules": rules, **cluster_wide},
        ),
        (
            resource(RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
            {"roleRef": cluster_role_ref, "subjects": [subject], **cluster_wide},
        ),
    ]


def named(kind: Resource[Untyped], body: Json, namespace: str) -> tuple[str, str]:
    name: str = (body.get("metadata") or {}).get("name") or "app"
    return name, namespace if kind.namespaced else ""


class Application:
    """The objects of an application on one cluster."""

    def __init__(
        self, client: Client, namespace: str, objects: list[tuple[Resource[Untyped], Json]]
    ) -> None:
        self._client, self._namespace, self._objects = client, namespace, objects

    async def create(self) -> None:
        for kind, body in self._objects:
            await self._create(kind, body)

    async def _create(self, kind: Resource[Untyped], body: Json) -> None:
        name, namespace = named(kind, body, self._namespace)
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        whole["metadata"] = {"name": name, **(body.get("metadata") or {})}

        async def is_created() -> bool:
            try:
                await self._client.create(kind, whole, namespace=namespace)
            except NotFound:
                return False  # a kind that was just defined
            return True

        await until(is_created)

    async def change(self) -> None:
        for kind, body in self._objects:
            name, namespace = named(kind, body, self._namespace)
            await self._client.patch(kind, name, MergePatch(CHANGED), namespace)

    async def damage(self) -> None:
        """Change a label of each object that the application names."""
        for kind, body in self._objects:
            name, namespace = named(kind, body, self._namespace)
            change = MergePatch({"metadata": {"labels": {"edition": "damaged"}}})
            await self._client.patch(kind, name, change, namespace)

    async def delete(self) -> None:
        for kind, body in reversed(self._objects):
            name, namespace = named(kind, body, self._namespace)
            await self._client.delete(kind, name, namespace, uid=None)

    async def stored(self) -> dict[str, Untyped | None]:
        """Return all objects by kind; None for those that do not exist."""

        async def read(kind: Resource[Untyped], body: Json) -> Untyped | None:
            name, namespace = named(kind, body, self._namespace)
            try:
                return await self._client.get(kind, name, namespace)
            except NotFound:
                return None

        found = await asyncio.gather(*(read(kind, body) for kind, body in self._objects))
        kinds = [kind.kind for kind, _ in self._objects]
        return dict(zip(kinds, found, strict=True))

    async def until_all(self, holds: Callable[[Untyped | None], bool], what: str) -> None:
        async def reached() -> bool:
            lacking = [kind for kind, obj in (await self.stored()).items() if not holds(obj)]
            assert not lacking, lacking
            return True

        await until(reached, waiting_for=what)


def exists(obj: Untyped | None) -> bool:
    return obj is not None and not obj.deleting


def is_gone(obj: Untyped | None) -> bool:
    return obj is None


def is_changed(obj: Untyped | None) -> bool:
    return obj is not None and obj.labels.get("edition") == "second"


async def complete(env: FleetEnv, name: str, count: int) -> None:
    """Wait until a placement has placed so many objects, and reports all of them available."""

    async def reached() -> bool:
        placement: Placement = await env.hub.get(CLUSTER.placements, name)
        assert len(placement.status.selected_resources) == count
        available = find_condition(placement.status.conditions, "ClusterResourcePlacementAvailable")
        assert available is not None, placement.status
        assert available.status == "True", placement.status
        (entry,) = placement.status.placement_statuses
        assert entry.observed_resource_index == placement.status.observed_resource_index
        assert entry.failed_placements == ()
        return True

    await until(reached, waiting_for=f"placement {name}")


def selectors(namespace: str, unique: str) -> list[Json]:
    cluster_wide: list[Json] = [
        {
            "group": RBAC,
            "version": "v1",
            "kind": kind,
            "labelSelector": {"matchLabels": {"app": unique}},
        }
        for kind in ("ClusterRole", "ClusterRoleBinding")
    ]
    definition: dict[str, Any] = {
        "group": CUSTOM_RESOURCE_DEFINITIONS.group,
        "version": "v1",
        "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
        "name": f"widgets.g{unique}.example.com",
    }
    return [namespace_selector(namespace), definition, *cluster_wide]


@pytest.mark.sweep(sampled=False)
async def test_an_application_of_many_kinds_follows_hub_and_member(env: FleetEnv) -> None:
    unique = uuid.uuid4().hex[:8]
    namespace, name = f"app-{unique}", f"crp-{unique}"
    objects = application(unique)
    on_hub = Application(env.hub, namespace, objects)
    on_member = Application(env.member, namespace, objects)
    member = (await env.join(heartbeat_s=600)).name
    await env.hub.create(NAMESPACES, {"metadata": {"name": namespace}})
    await define(env.hub, objects[0][0])
    await on_hub.create()
    body = {
        "apiVersion": CLUSTER.placements.api_version,
        "kind": CLUSTER.placements.kind,
        "metadata": {"name": name},
        "spec": {
            "resourceSelectors": selectors(namespace, unique),
            "policy": {"placementType": "PickFixed", "clusterNames": [member]},
        },
    }
    faults = Faults()
    async with fleet(env, [member], faults=faults):
        await env.wait_for(member, "Joined", "True")
        await env.hub.create(CLUSTER.placements, body)
        await on_member.until_all(exists, "all objects")
        everything = len(objects) + 2  # the namespace, and the definition
        await complete(env, name, everything)
        await quiet(faults)

        await on_hub.change()
        await on_member.until_all(is_changed, "the change of the hub")
        await complete(env, name, everything)

        await on_member.damage()
        await on_member.until_all(is_changed, "the correction of the member's change")
        before = await on_member.stored()
        await on_member.delete()

        async def is_made_again() -> bool:
            now = await on_member.stored()
            for kind, obj in now.items():
                assert is_changed(obj), kind
                assert obj is not None and obj.uid != getattr(before[kind], "uid", ""), kind
            return True

        await until(is_made_again, waiting_for="objects that the member deleted")
        await complete(env, name, everything)

        await on_hub.delete()
        await on_member.until_all(is_gone, "objects that the hub deleted")
        await complete(env, name, 2)
        await on_hub.create()
        await on_member.until_all(exists, "objects that the hub created anew")
        await complete(env, name, everything)
        await quiet(faults)
