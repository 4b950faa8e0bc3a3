"""Informers of metadata, alone and in a pool, on a real kube-apiserver."""

from __future__ import annotations

import uuid

from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.informer_pool import InformerPool, Need
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, SECRETS
from kubeocean.runtime.objects import Key, Resource, Untyped
from support.background import running
from support.faults import Faults, watches
from support.wait import until

CONFIG: Resource[Untyped] = Resource("", "v1", "configmaps", "ConfigMap", True, Untyped)


async def make(client: Client, namespace: str, name: str) -> None:
    body = {"metadata": {"name": name, "labels": {"app": name}}, "data": {"large": "x" * 1000}}
    await client.create(CONFIG_MAPS, body, namespace=namespace)


async def another_namespace(client: Client) -> str:
    name = f"test-{uuid.uuid4().hex[:10]}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


async def test_only_metadata_is_sent(cluster: Cluster, client: Client, namespace: str) -> None:
    await make(client, namespace, "before")
    informer = Informer(client, CONFIG, namespace=namespace, metadata_only=True, keep_raw=True)
    async with running(informer):
        await informer.synced()
        await make(client, namespace, "after")
        await until(lambda: informer.get(Key(namespace, "after")))
        for name in ("before", "after"):
            obj = informer.get(Key(namespace, name))
            assert obj is not None
            assert obj.labels == {"app": name}
            assert obj.content()["kind"] == "PartialObjectMetadata"
            assert "data" not in obj.content()


async def test_lists_in_pages_are_metadata_too(client: Client, namespace: str) -> None:
    await make(client, namespace, "one")
    pages = client.pages(CONFIG, namespace, metadata_only=True, keep_raw=True)
    objects = [obj async for page in pages for obj in page.items]
    (one,) = (obj for obj in objects if obj.name == "one")
    assert "data" not in one.content()


async def test_a_pool_runs_one_informer_for_each_resource(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    faults = Faults()
    other = await another_namespace(client)
    watching = cluster.client(wrap=faults.wrap)
    seen: list[tuple[str, str]] = []
    pool: InformerPool[str] = InformerPool(
        watching,
        lambda resource, old, new: seen.append((str(resource), (new or old).key.name)),  # type: ignore[union-attr]
        linger_s=0.2,
    )

    def open_watches() -> set[str]:
        return {request.path for request in faults.requests if watches(request)}

    pool.need("a", [Need(CONFIG, namespace)])
    async with running(pool):
        await until(lambda: _is_synced(pool, Need(CONFIG, namespace)))
        assert open_watches() == {f"/api/v1/namespaces/{namespace}/configmaps"}
        await make(client, namespace, "mine")
        await make(client, other, "foreign")
        await until(lambda: ("configmaps", "mine") in seen)

        pool.need("b", [Need(CONFIG, other), Need(SECRETS, other)])
        await until(lambda: _is_synced(pool, Need(CONFIG, other)))
        assert "/api/v1/configmaps" in open_watches(), "two namespaces need all of them"
        assert pool.owners(CONFIG, namespace) == {"a"}
        assert pool.owners(CONFIG, other) == {"b"}
        await until(lambda: ("configmaps", "foreign") in seen)

        pool.need("a", [])
        pool.need("b", [])
        await until(lambda: pool.informer(Need(CONFIG, namespace)) is None)
        await until(lambda: pool.informer(Need(SECRETS, other)) is None)
    await watching.close()


def _is_synced(pool: InformerPool[str], need: Need) -> bool:
    informer = pool.informer(need)
    return informer is not None and informer.has_synced
