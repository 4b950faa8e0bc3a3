"""Lookup of physical pods in real caches, while labels and annotations are tampered with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from kubeocean.api import group, naming
from kubeocean.api.ownership import Ids, ownership_labels
from kubeocean.errors import Refusal
from kubeocean.proxier.metrics_text import PodName
from kubeocean.proxier.pod_lookup import PodLocation, PodLookup
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import NODES, PODS, Pod
from kubeocean.runtime.objects import Json, Key
from support.pod_copies_driver import make_namespace
from support.wait import until

DOMAIN = group.DEFAULT


@dataclass
class LookupEnv:
    """A binding within one cluster: virtual pods in one namespace, physical pods in another."""

    client: Client
    virtual_namespace: str
    lookup: PodLookup
    ids: Ids

    @property
    def physical_namespace(self) -> str:
        return f"{self.virtual_namespace}-physical"

    def vnode(self, pnode: str = "n1") -> str:
        return naming.virtual_node(self.ids.cluster_id, pnode)

    async def lend(self, pnode: str) -> None:
        labels = ownership_labels(self.ids, DOMAIN) | {DOMAIN.physical_node_name: pnode}
        body: Json = {"metadata": {"name": self.vnode(pnode), "labels": labels}}
        await self.client.create(NODES, body)

    async def virtual(self, name: str, pnode: str = "n1", **annotations: str) -> Pod:
        metadata: Json = {"name": name, "annotations": annotations}
        return await self._pod(metadata, self.virtual_namespace, self.vnode(pnode))

    async def physical(
        self, of: Pod, pnode: str = "n1", *, namespace: str = "", name: str = "", **labels: str
    ) -> Pod:
        annotations = {
            DOMAIN.virtual_pod_namespace: of.namespace,
            DOMAIN.virtual_pod_name: of.name,
            DOMAIN.virtual_pod_uid: of.uid,
        }
        metadata: Json = {
            "name": name or naming.physical_name(of.name, of.namespace),
            "labels": ownership_labels(self.ids, DOMAIN) | labels,
            "annotations": annotations,
        }
        return await self._pod(metadata, namespace or self.physical_namespace, pnode)

    async def _pod(self, metadata: Json, namespace: str, node: str) -> Pod:
        spec: Json = {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none"}],
        }
        return await self.client.create(
            PODS, {"metadata": metadata, "spec": spec}, namespace=namespace
        )

    def locate(self, pod: Pod, pnode: str = "n1") -> PodLocation | int:
        """Return the location of a pod, or the status of the refusal."""
        try:
            return self.lookup.locate(Key(pod.namespace, pod.name), self.vnode(pnode))
        except Refusal as refusal:
            return refusal.status

    async def until_located(self, pod: Pod, physical: Pod | None, pnode: str = "n1") -> None:
        """Wait until the pod is located as this physical pod, or is not located."""

        def located() -> bool:
            location = self.locate(pod, pnode)
            if physical is None:
                return location == 404
            return isinstance(location, PodLocation) and location.physical_uid == physical.uid

        await until(located)


@asynccontextmanager
async def _running(lookup: PodLookup) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.run()) for each in lookup.informers]
    try:
        await until(lambda: lookup.ready)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.fixture
async def env(client: Client, namespace: str) -> AsyncIterator[LookupEnv]:
    ids = Ids(namespace, f"id{namespace[-8:]}", "computing")
    physical = f"{namespace}-physical"
    lookup = PodLookup(client, client, ids=ids, domain=DOMAIN, mount_namespace=physical)
    env = LookupEnv(client, namespace, lookup, ids)
    await make_namespace(client, physical)
    async with _running(lookup):
        await env.lend("n1")
        await until(lambda: lookup.vnodes.get(Key("", env.vnode())) is not None)
        yield env
    for each in lookup.vnodes.items():
        await client.delete(NODES, each.name, uid=None)
    for namespace in (env.virtual_namespace, physical):
        for pod in (await client.list(PODS, namespace)).items:
            await client.delete(PODS, pod.name, namespace, uid=None, grace_s=0)


async def test_annotations_of_a_virtual_pod_do_not_change_its_location(env: LookupEnv) -> None:
    web, thief = await env.virtual("web"), await env.virtual("thief")
    runs = await env.physical(web)
    await env.until_located(web, runs)
    pointing = {DOMAIN.physical_pod_namespace: runs.namespace, DOMAIN.physical_pod_name: runs.name}
    liar = await env.virtual("liar", **pointing)
    # A later pod is in the caches, so the earlier ones are.
    late = await env.virtual("late")
    await env.until_located(late, await env.physical(late))
    assert [env.locate(thief), env.locate(liar)] == [404, 404]


@pytest.mark.parametrize(
    "key", [DOMAIN.cluster_binding, DOMAIN.physical_cluster_id, DOMAIN.computing_cluster_id]
)
async def test_a_pod_of_another_binding_or_cluster_is_not_located(env: LookupEnv, key: str) -> None:
    web = await env.virtual("web")
    foreign = await env.physical(web, **{key: "another"})
    await until(
        lambda: env.lookup.physical_pods.get(Key(env.physical_namespace, foreign.name)) is not None
    )
    assert env.locate(web) == 404
    assert env.lookup.pods_on(env.vnode()) == {}
    # The first name is taken; the pod with the second name is located.
    second = naming.second_physical_name(web.name, web.namespace, uid=web.uid)
    await env.until_located(web, await env.physical(web, name=second))


async def test_a_pod_outside_the_mount_namespace_is_not_located(env: LookupEnv) -> None:
    web = await env.virtual("web")
    await env.physical(web, namespace=env.virtual_namespace)
    late = await env.virtual("late")
    await env.until_located(late, await env.physical(late))
    assert env.locate(web) == 404


async def test_a_recreated_virtual_pod_is_not_located_as_the_old_physical_pod(
    env: LookupEnv,
) -> None:
    web = await env.virtual("web")
    await env.until_located(web, await env.physical(web))
    await env.client.delete(PODS, web.name, web.namespace, uid=web.uid, grace_s=0)
    again = await env.virtual("web")
    assert again.uid != web.uid
    await env.until_located(again, None)
    await until(lambda: env.lookup.pods_on(env.vnode()) == {})


async def test_labels_of_a_virtual_node_lead_to_no_pod_of_another_node(env: LookupEnv) -> None:
    await env.lend("n2")
    web, other = await env.virtual("web"), await env.virtual("other", "n2")
    runs, other_runs = await env.physical(web), await env.physical(other, "n2")
    await env.until_located(web, runs)
    await env.until_located(other, other_runs, "n2")
    shown = {other_runs.key: PodName(other.namespace, other.name, other.uid, other_runs.uid)}
    await until(lambda: env.lookup.pods_on(env.vnode("n2")) == shown)
    # The node claims the other one's machine.
    claim = {DOMAIN.physical_node_name: "n2"}
    patch = MergePatch({"metadata": {"labels": claim, "annotations": claim}})
    await env.client.patch(NODES, env.vnode(), patch)
    await until(lambda: env.lookup.pods_on(env.vnode()) == {})
    assert env.locate(other) == 404
    # The node claims to be another binding's.
    patch = MergePatch({"metadata": {"labels": {DOMAIN.cluster_binding: "another"}}})
    await env.client.patch(NODES, env.vnode(), patch)
    await env.until_located(web, None)
    await env.client.delete(NODES, env.vnode(), uid=None)
