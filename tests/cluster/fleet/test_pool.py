"""The watch pool on a real server: which changes it reports, and which watches it opens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kubeocean.fleet.pool import ChangedPart, ObjectRef, WatchPool
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES
from kubeocean.runtime.objects import Key, Resource, Untyped
from support.background import running
from support.faults import Faults, watches
from support.wait import until

MAPS = Resource("", "v1", "configmaps", "ConfigMap", True, Untyped)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
LABELS = {"app": "a"}
DEPLOYMENT = {
    "metadata": {"name": "a"},
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": LABELS},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {"containers": [{"name": "c", "image": "app:1"}]},
        },
    },
}


class Recorder:
    """Changes that a pool has reported."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, ChangedPart]] = []

    def __call__(
        self, owner: str, ref: ObjectRef, change: ChangedPart, obj: Untyped | None
    ) -> None:
        self.changes.append((owner, ref.key.name, change))

    async def until(self, *changes: tuple[str, str, ChangedPart]) -> None:
        """Wait for these changes in any order; other changes are a failure."""

        def matches() -> bool:
            assert sorted(self.changes, key=str) == sorted(changes, key=str)
            return True

        await until(matches)
        self.changes.clear()


@pytest.fixture
def recorded() -> Recorder:
    return Recorder()


@asynccontextmanager
async def pool_of(
    cluster: Cluster, recorded: Recorder, faults: Faults | None = None, **options: Any
) -> AsyncIterator[WatchPool]:
    client = cluster.client(wrap=(faults or Faults()).wrap)
    pool = WatchPool(client, recorded, **options)
    async with running(pool):
        yield pool
    await client.close()


def ref(namespace: str, name: str = "a", resource: Resource[Untyped] = MAPS) -> ObjectRef:
    return ObjectRef(resource, Key(namespace, name))


async def current(pool: WatchPool, place: ObjectRef, version: str) -> None:
    await until(lambda: pool.is_current(place, version, with_status=True))


async def make(client: Client, namespace: str, name: str = "a") -> Any:
    return await client.create(CONFIG_MAPS, {"metadata": {"name": name, "namespace": namespace}})


async def edit(client: Client, namespace: str, value: str, name: str = "a") -> Any:
    return await client.patch(CONFIG_MAPS, name, MergePatch({"data": {"k": value}}), namespace)


async def test_changes_by_others_are_reported_and_own_writes_are_not(
    cluster: Cluster, client: Client, namespace: str, recorded: Recorder
) -> None:
    place, faults = ref(namespace), Faults()
    made = await make(client, namespace)
    async with pool_of(cluster, recorded, faults) as pool:
        pool.need("w1", [place])
        pool.need("w2", [place, ref(namespace, "b")])
        pool.saw(place, made.metadata)
        await current(pool, place, made.resource_version)
        assert recorded.changes == [], "the listing had what its owners have seen"
        changed = await edit(client, namespace, "1")
        await recorded.until(("w1", "a", ChangedPart.CONTENT), ("w2", "a", ChangedPart.CONTENT))
        assert pool.has_changed(place, made.resource_version, with_status=False)
        assert pool.is_current(place, changed.resource_version, with_status=False)
        faults.freeze()  # the event of an own write that comes before the report is a change
        own = await edit(client, namespace, "2")
        pool.saw(place, own.metadata)
        faults.thaw()
        await make(client, namespace, "b")
        await client.delete(CONFIG_MAPS, "a", namespace, uid=made.uid)
        await until(lambda: len(recorded.changes) >= 3)
        await recorded.until(
            ("w2", "b", ChangedPart.CONTENT),
            ("w1", "a", ChangedPart.GONE),
            ("w2", "a", ChangedPart.GONE),
        )
        assert not pool.is_current(place, own.resource_version, with_status=False)


async def test_a_change_of_status_is_told_apart(
    cluster: Cluster, client: Client, namespace: str, recorded: Recorder
) -> None:
    place = ref(namespace, resource=DEPLOYMENTS)
    made = await client.create(DEPLOYMENTS, DEPLOYMENT, namespace=namespace)

    async def settled() -> bool:
        """Whether the controller of Deployments has written its last change."""
        seen = await client.get(DEPLOYMENTS, "a", namespace, keep_raw=True)
        conditions = seen.content().get("status", {}).get("conditions", ())
        return "NewReplicaSetAvailable" in {each["reason"] for each in conditions}

    await until(settled)
    seen = await client.get(DEPLOYMENTS, "a", namespace)
    async with pool_of(cluster, recorded) as pool:
        pool.need("w", [place])
        pool.saw(place, seen.metadata)
        await current(pool, place, seen.resource_version)
        assert recorded.changes == []
        status = {"status": {"conditions": [{"type": "Strange", "status": "True"}]}}
        await client.patch(DEPLOYMENTS, "a", MergePatch(status), namespace, subresource="status")
        await until(lambda: ("w", "a", ChangedPart.STATUS) in recorded.changes)
        assert {change for _, _, change in recorded.changes} == {ChangedPart.STATUS}
        assert pool.is_current(place, seen.resource_version, with_status=False)
        assert not pool.is_current(place, seen.resource_version, with_status=True)
        recorded.changes.clear()
        await client.patch(DEPLOYMENTS, "a", MergePatch({"spec": {"paused": True}}), namespace)
        await until(lambda: ("w", "a", ChangedPart.CONTENT) in recorded.changes)
    assert made.uid == seen.uid


async def test_a_deletion_during_an_interruption_is_reported(
    cluster: Cluster, client: Client, namespace: str, recorded: Recorder, faults: Faults
) -> None:
    place = ref(namespace)
    made = await make(client, namespace)
    async with pool_of(cluster, recorded, faults) as pool:
        pool.need("w", [place])
        pool.saw(place, made.metadata)
        await current(pool, place, made.resource_version)
        faults.answer(410, when=watches)
        faults.partition()
        await client.delete(CONFIG_MAPS, "a", namespace, uid=made.uid)
        faults.rejoin()
        await recorded.until(("w", "a", ChangedPart.GONE))
        again = await make(client, namespace)
        await recorded.until(("w", "a", ChangedPart.CONTENT))
        assert again.uid != made.uid


async def test_watches_are_shared_widened_limited_and_closed(
    cluster: Cluster, client: Client, namespace: str, recorded: Recorder, faults: Faults
) -> None:
    other = f"{namespace}-2"
    await client.create(NAMESPACES, {"metadata": {"name": other}})
    first, second = await make(client, namespace), await make(client, other)

    def opened() -> list[str]:
        return [request.path for request in faults.requests if request.watches]

    async with pool_of(cluster, recorded, faults, most_watches=1, linger_s=0.5) as pool:
        pool.need("w1", [ref(namespace)])
        pool.need("w2", [ref(namespace)])
        await recorded.until(("w1", "a", ChangedPart.CONTENT), ("w2", "a", ChangedPart.CONTENT))
        assert opened() == [f"/api/v1/namespaces/{namespace}/configmaps"]
        assert all("PartialObjectMetadata" in r.accept for r in faults.requests if r.watches)
        pool.need("w2", [ref(namespace), ref(other)])
        await current(pool, ref(other), second.resource_version)
        assert opened()[1:] == ["/api/v1/configmaps"]
        # A second resource does not fit: its objects are never current
        pool.need("w3", [ref(namespace, resource=DEPLOYMENTS)])
        await current(pool, ref(namespace), first.resource_version)
        assert not pool.is_current(ref(namespace, resource=DEPLOYMENTS), "1", with_status=True)
        assert len(opened()) == 2
        # No owner is left: the watch is closed, and its place taken
        pool.need("w1", ())
        pool.need("w2", ())
        await until(lambda: opened()[2:] == [f"/apis/apps/v1/namespaces/{namespace}/deployments"])
        assert not pool.is_current(ref(namespace), first.resource_version, with_status=True)
