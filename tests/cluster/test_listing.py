"""Listings that do not go as planned, on real kube-apiservers."""

from __future__ import annotations

import shutil

from conftest import NewCluster
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, ConfigMap
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.transport import Request, Response, Transport
from kubeocean.runtime.watch import Scope, Watch
from support.background import running
from support.wait import until


class Forgetful:
    """A server that forgets once where a list stopped; meanwhile something happens."""

    def __init__(self, inner: Transport, admin: Client, doomed: list[ConfigMap]) -> None:
        self.inner, self.admin, self.doomed = inner, admin, doomed
        self.forgot = 0

    async def send(self, request: Request) -> Response:
        if not self.forgot and "continue" in dict(request.query):
            self.forgot += 1
            for obj in self.doomed:
                await self.admin.delete(CONFIG_MAPS, obj.name, obj.namespace, uid=obj.uid)
            return Response(410, {}, b'{"kind":"Status","reason":"Expired","code":410}')
        return await self.inner.send(request)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


async def make(client: Client, name: str, namespace: str = "default") -> ConfigMap:
    body = {"metadata": {"name": name, "labels": {"app": "listed"}}}
    return await client.create(CONFIG_MAPS, body, namespace=namespace)


async def test_a_list_that_starts_over_has_no_twins(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    for n in range(5):
        await make(client, f"n{n}", namespace)
    forgetful: list[Forgetful] = []

    def wrap(inner: Transport) -> Transport:
        forgetful.append(Forgetful(inner, client, []))
        return forgetful[0]

    reading = cluster.client(wrap=wrap)
    listing = await reading.list(CONFIG_MAPS, namespace, labels="app", page=2)
    assert forgetful[0].forgot == 1
    assert [item.name for item in listing.items] == [f"n{n}" for n in range(5)]
    await reading.close()


async def test_what_went_away_while_a_list_started_over_is_not_kept(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    made = [await make(client, f"n{n}", namespace) for n in range(5)]

    def wrap(inner: Transport) -> Transport:
        return Forgetful(inner, client, made[:1])

    reading = cluster.client(wrap=wrap)
    scope = Scope(CONFIG_MAPS, namespace, labels="app")
    watch = Watch(reading, scope, streaming=False, page=2)
    informer = Informer(reading, CONFIG_MAPS, namespace=namespace, labels="app", watch=watch)
    async with running(informer):
        await informer.synced()
        assert {item.name for item in informer.items()} == {f"n{n}" for n in range(1, 5)}
    await reading.close()


async def test_a_server_that_went_back_in_time_is_listed_again(new_cluster: NewCluster) -> None:
    """All data is lost, so versions start again; the watch then requests a future version."""
    cluster = await new_cluster()
    client, metrics = cluster.client(), Metrics()
    for n in range(200):
        await client.patch(
            NAMESPACES, "default", MergePatch({"metadata": {"annotations": {"n": str(n)}}})
        )
    await make(client, "before")
    watch = Watch(
        client, Scope(CONFIG_MAPS, labels="app"), metrics=metrics, silence_s=5.0
    )  # 65 s as a rule
    informer = Informer(client, CONFIG_MAPS, labels="app", watch=watch)
    async with running(informer):
        await informer.synced()
        assert {item.name for item in informer.items()} == {"before"}
        await cluster.kill("kube-apiserver")
        await cluster.kill("etcd")
        shutil.rmtree(cluster.root / "etcd")
        await cluster.restart("etcd")
        await cluster.restart("kube-apiserver")
        await make(client, "after")
        await until(lambda: {item.name for item in informer.items()} == {"after"}, within=30)
    labels = {"cluster": cluster.name, "resource": "configmaps", "why": "silent"}
    assert metrics.value("kubeocean_watch_restarts_total", labels)
    await client.close()
