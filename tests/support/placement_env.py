"""A hub with placements, and programs that report for its members as outside parties may."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
from kubeocean.api.fleet.kinds import CLUSTER, NAMESPACED, scope_of
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.snapshots import PolicySnapshot, ResourceSnapshot
from kubeocean.api.fleet.works import WORKS, Work
from kubeocean.errors import AlreadyExists, ApiError, Conflict, NotFound
from kubeocean.fleet.extensions import OURS, Extensions
from kubeocean.fleet.placement import PlacementControllers, PlacementSettings
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import RealClock, text_of
from kubeocean.runtime.components import components_of
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES
from kubeocean.runtime.objects import Json, Key, Object, Resource
from support.background import running
from support.faults import Faults
from support.wait import until

__all__ = ["MemberReports", "PlacementEnv", "conditions_of", "config_map_selector"]

Verdict = Callable[[Work], Json]


def now() -> str:
    return text_of(RealClock().now())


def conditions_of(conditions: Iterable[Any]) -> dict[str, tuple[str, str, int]]:
    """Return conditions by type: status, reason and observedGeneration."""
    return {each.type: (each.status, each.reason, each.observed_generation) for each in conditions}


def config_map_selector(name: str = "") -> Json:
    selector = {"group": "", "version": "v1", "kind": "ConfigMap"}
    return selector | {"name": name} if name else selector


def namespace_selector(name: str, scope: str = "NamespaceWithResources") -> Json:
    return {
        "group": "",
        "version": "v1",
        "kind": "Namespace",
        "name": name,
        "selectionScope": scope,
    }


def all_applied(work: Work) -> Json:
    """Return the status of a Work that is applied and available."""
    return work_status(work, Applied="AllManifestsApplied", Available="AllManifestsAvailable")


def work_status(work: Work, *, status: str = "True", **reasons: str) -> Json:
    conditions = [
        {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": "",
            "lastTransitionTime": now(),
            "observedGeneration": work.metadata.generation,
        }
        for type_, reason in reasons.items()
    ]
    return {"conditions": conditions}


class MemberReports:
    """Writes the status of Works as the members would, and lets deleted Works go."""

    def __init__(self, client: Client, verdict: Verdict = all_applied) -> None:
        self._client = client
        self.verdict = verdict
        self.silent: set[str] = set()  # members that report nothing
        self._queue: asyncio.Queue[Key] = asyncio.Queue()
        self.works: Informer[Work] = Informer(client, WORKS)
        self.works.on_change(lambda old, new: self._queue.put_nowait((new or old).key))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.works.run())
            while True:
                key = await self._queue.get()
                with suppress(Conflict, NotFound):
                    await self._report(key)

    async def _report(self, key: Key) -> None:
        work = self.works.get(key)
        if work is None or names.member_of_namespace(key.namespace) in self.silent:
            return
        if work.deleting:
            if work.metadata.finalizers:
                await self._patch(work, {"metadata": {"finalizers": None}}, "")
            return
        fresh = [
            each
            for each in work.status.conditions
            if each.observed_generation == work.metadata.generation
        ]
        if not fresh:
            await self._patch(work, {"status": self.verdict(work)}, "status")

    async def _patch(self, work: Work, body: Json, subresource: str) -> None:
        await self._client.patch(
            WORKS, work.name, MergePatch(body), work.namespace, subresource=subresource
        )


@dataclass
class PlacementEnv:
    """Objects of one test on a hub."""

    hub: Cluster
    client: Client
    namespace: str
    unique: str = field(default_factory=lambda: uuid.uuid4().hex[:6])

    # Members

    async def join(self, *members: str, **labels: str) -> list[str]:
        """Create MemberClusters that have joined, with their namespaces; return their names."""
        joined = []
        for short in members:
            name = f"{short}-{self.unique}"
            with suppress(AlreadyExists):
                await self.client.create(
                    NAMESPACES, {"metadata": {"name": names.member_namespace(name)}}
                )
            await self.client.create(
                MEMBER_CLUSTERS,
                {
                    "apiVersion": MEMBER_CLUSTERS.api_version,
                    "kind": MEMBER_CLUSTERS.kind,
                    "metadata": {"name": name, "labels": labels},
                    "spec": {"identity": {"kind": "User", "name": name}},
                },
            )
            await self.beat(name)
            joined.append(name)
        return joined

    async def beat(self, member: str, **status: Any) -> None:
        """Write a heartbeat of a member."""
        conditions = [
            {
                "type": type_,
                "status": "True",
                "reason": "Tested",
                "message": "",
                "lastTransitionTime": now(),
            }
            for type_ in ("Joined", "Healthy")
        ]
        agent = {"type": "MemberAgent", "conditions": conditions, "lastReceivedHeartbeat": now()}
        await self.client.patch(
            MEMBER_CLUSTERS,
            member,
            MergePatch({"status": {"agentStatus": [agent]} | status}),
            subresource="status",
        )

    # Objects

    async def config_map(self, name: str, value: str = "1", namespace: str = "") -> None:
        """Create a ConfigMap, or change it."""
        namespace = namespace or self.namespace
        body = {"metadata": {"name": name}, "data": {"value": value}}
        try:
            await self.client.create(CONFIG_MAPS, body, namespace=namespace)
        except AlreadyExists:
            await self.client.patch(CONFIG_MAPS, name, MergePatch(body), namespace)

    async def place(
        self, *selectors: Json, namespace: str = "", name: str = "", **spec: Any
    ) -> Key:
        """Create a placement: a ResourcePlacement if it has a namespace."""
        key = Key(namespace, name or f"p-{self.unique}")
        resource = scope_of(key).placements
        metadata = {"name": key.name} | ({"namespace": namespace} if namespace else {})
        await self.client.create(
            resource,
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": metadata,
                "spec": {"resourceSelectors": list(selectors), **spec},
            },
        )
        return key

    async def change(self, key: Key, **spec: Any) -> Placement:
        return await self.client.patch(
            scope_of(key).placements, key.name, MergePatch({"spec": spec}), key.namespace
        )

    async def delete(self, key: Key) -> None:
        placement = await self.placement(key)
        await self.client.delete(
            scope_of(key).placements, key.name, key.namespace, uid=placement.uid
        )

    async def placement(self, key: Key) -> Placement:
        return await self.client.get(scope_of(key).placements, key.name, key.namespace)

    async def exists(self, key: Key) -> bool:
        try:
            await self.placement(key)
        except NotFound:
            return False
        return True

    async def _children(self, key: Key, resource: Resource[Any]) -> list[Any]:
        labels = f"{names.LABEL_PARENT_PLACEMENT}={key.name}"
        return (await self.client.list(resource, key.namespace, labels=labels)).items

    async def bindings(self, key: Key) -> dict[str, Binding]:
        """Return the bindings of a placement by cluster."""
        listed = await self._children(key, scope_of(key).bindings)
        return {binding.spec.target_cluster: binding for binding in listed}

    async def policy_snapshots(self, key: Key) -> list[PolicySnapshot]:
        return await self._children(key, scope_of(key).policy_snapshots)

    async def resource_snapshots(self, key: Key) -> list[ResourceSnapshot]:
        return await self._children(key, scope_of(key).resource_snapshots)

    async def works(self, key: Key) -> list[Work]:
        labels = f"{names.LABEL_PARENT_PLACEMENT}={key.name}"
        works = (await self.client.list(WORKS, labels=labels)).items
        namespace = key.namespace
        return [
            work for work in works if work.labels.get(names.LABEL_PARENT_NAMESPACE, "") == namespace
        ]

    async def objects_of(self, key: Key) -> list[Object]:
        """Return everything that the hub has for a placement."""
        return [
            *(await self.bindings(key)).values(),
            *await self.policy_snapshots(key),
            *await self.resource_snapshots(key),
            *await self.works(key),
        ]

    async def completed(self, key: Key, *clusters: str, index: str = "") -> Placement:
        """Wait until a placement is available on exactly these clusters."""
        prefix = scope_of(key).prefix

        async def is_complete() -> Placement | None:
            placement = await self.placement(key)
            states = conditions_of(placement.status.conditions)
            expected = placement.metadata.generation
            for step in ("Scheduled", "Available") if clusters else ("Scheduled",):
                status = states.get(f"{prefix}{step}")
                assert status is not None, states
                assert status[0] == "True", states
                assert status[2] == expected, states
            placed = {entry.cluster_name for entry in placement.status.placement_statuses}
            assert placed == set(clusters)
            assert not index or placement.status.observed_resource_index == index
            return placement

        found = await until(is_complete)
        assert found is not None
        return found

    async def scheduled(self, key: Key) -> Placement:
        """Wait until the scheduler has decided on a placement."""

        async def is_decided() -> Placement | None:
            placement = await self.placement(key)
            states = conditions_of(placement.status.conditions)
            decided = states.get(f"{scope_of(key).prefix}Scheduled")
            return placement if decided is not None and decided[0] != "Unknown" else None

        found = await until(is_decided)
        assert found is not None
        return found

    # Programs

    @asynccontextmanager
    async def controlling(
        self,
        faults: Faults | None = None,
        settings: PlacementSettings | None = None,
        *,
        extensions: Extensions = OURS,
    ) -> AsyncIterator[PlacementControllers]:
        """Run the controllers of placements until the block ends."""
        client = self.hub.client(wrap=faults.wrap if faults else None)
        controllers = PlacementControllers(client, settings, extensions=extensions)
        try:
            async with running(*components_of(controllers.parts)):
                yield controllers
        finally:
            await client.close()

    @asynccontextmanager
    async def reporting(self, verdict: Verdict = all_applied) -> AsyncIterator[MemberReports]:
        """Let all members report on their Works until the block ends."""
        reports = MemberReports(self.client, verdict)
        async with running(reports):
            yield reports

    async def clear(self) -> None:
        """Remove all that tests left behind, whether or not a controller runs."""
        for scope in (CLUSTER, NAMESPACED):
            for resource in (scope.placements, scope.bindings):
                await self._clear(resource)
        await self._clear(WORKS)
        await self._clear(MEMBER_CLUSTERS)

    async def _clear(self, resource: Resource[Any]) -> None:
        for obj in (await self.client.list(resource)).items:
            with suppress(NotFound, ApiError):
                if obj.metadata.finalizers:
                    body = MergePatch({"metadata": {"finalizers": None}})
                    await self.client.patch(resource, obj.name, body, obj.namespace)
                await self.client.delete(resource, obj.name, obj.namespace, uid=obj.uid)
