"""Where a pod runs, as two real caches show it, while labels and annotations are tampered with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from kubeocean.api import group, naming
from kubeocean.api.ownership import Ids, ownership
from kubeocean.errors import Refusal
from kubeocean.proxier.exposition import PodName
from kubeocean.proxier.places import Place, Places
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NODES, PODS, Pod
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.patches import MergePatch
from porters import make_namespace
from waiting import until

DOMAIN = group.DEFAULT


@dataclass
class Shore:
    """Both sides of a binding in one cluster: virtual pods in a namespace, physical in another."""

    client: Client
    above: str
    places: Places
    ids: Ids

    @property
    def below(self) -> str:
        return f"{self.above}-below"

    def vnode(self, pnode: str = "n1") -> str:
        return naming.virtual_node(self.ids.cluster_id, pnode)

    async def lend(self, pnode: str) -> None:
        labels = ownership(self.ids, DOMAIN) | {DOMAIN.physical_node_name: pnode}
        body: Json = {"metadata": {"name": self.vnode(pnode), "labels": labels}}
        await self.client.create(NODES, body)

    async def virtual(self, name: str, pnode: str = "n1", **annotations: str) -> Pod:
        metadata: Json = {"name": name, "annotations": annotations}
        return await self._pod(metadata, self.above, self.vnode(pnode))

    async def physical(
        self, of: Pod, pnode: str = "n1", *, namespace: str = "", name: str = "", **labels: str
    ) -> Pod:
        said = {
            DOMAIN.virtual_pod_namespace: of.namespace,
            DOMAIN.virtual_pod_name: of.name,
            DOMAIN.virtual_pod_uid: of.uid,
        }
        metadata: Json = {
            "name": name or naming.physical_name(of.name, of.namespace),
            "labels": ownership(self.ids, DOMAIN) | labels,
            "annotations": said,
        }
        return await self._pod(metadata, namespace or self.below, pnode)

    async def _pod(self, metadata: Json, namespace: str, node: str) -> Pod:
        spec: Json = {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none"}],
        }
        return await self.client.create(
            PODS, {"metadata": metadata, "spec": spec}, namespace=namespace
        )

    def find(self, pod: Pod, pnode: str = "n1") -> Place | int:
        """Where it runs, or the status of the refusal."""
        try:
            return self.places.find(Key(pod.namespace, pod.name), self.vnode(pnode))
        except Refusal as refusal:
            return refusal.status

    async def finds(self, pod: Pod, where: Pod | None, pnode: str = "n1") -> None:
        """That it is found there in the end; or nowhere, though the caches have seen it."""

        def found() -> bool:
            place = self.find(pod, pnode)
            if where is None:
                return place == 404
            return isinstance(place, Place) and place.physical_uid == where.uid

        await until(found)


@asynccontextmanager
async def _running(places: Places) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(part.run()) for part in places.parts]
    try:
        await until(lambda: places.ready)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.fixture
async def shore(client: Client, namespace: str) -> AsyncIterator[Shore]:
    ids = Ids(namespace, f"id{namespace[-8:]}", "computing")
    below = f"{namespace}-below"
    places = Places(client, client, ids=ids, domain=DOMAIN, mount_namespace=below)
    shore = Shore(client, namespace, places, ids)
    await make_namespace(client, below)
    async with _running(places):
        await shore.lend("n1")
        await until(lambda: places.vnodes.get(Key("", shore.vnode())) is not None)
        yield shore
    for each in places.vnodes.items():
        await client.delete(NODES, each.name, uid=None)
    for namespace in (shore.above, below):
        for pod in (await client.list(PODS, namespace)).items:
            await client.delete(PODS, pod.name, namespace, uid=None, grace_s=0)


async def test_a_pod_is_found_by_what_it_is_and_not_by_what_is_said_of_it(shore: Shore) -> None:
    web, thief = await shore.virtual("web"), await shore.virtual("thief")
    runs = await shore.physical(web)
    await shore.finds(web, runs)
    pointing = {DOMAIN.physical_pod_namespace: runs.namespace, DOMAIN.physical_pod_name: runs.name}
    liar = await shore.virtual("liar", **pointing)
    # In the cache by now, since what comes later is.
    late = await shore.virtual("late")
    await shore.finds(late, await shore.physical(late))
    assert [shore.find(thief), shore.find(liar)] == [404, 404]


@pytest.mark.parametrize(
    "key", [DOMAIN.cluster_binding, DOMAIN.physical_cluster_id, DOMAIN.computing_cluster_id]
)
async def test_a_pod_of_another_binding_or_cluster_is_no_place(shore: Shore, key: str) -> None:
    web = await shore.virtual("web")
    foreign = await shore.physical(web, **{key: "another"})
    await until(lambda: shore.places._below.get(Key(shore.below, foreign.name)) is not None)
    assert shore.find(web) == 404
    assert shore.places.on(shore.vnode()) == {}
    # The name is taken: ours has the second, and that is the place.
    second = naming.second_physical_name(web.name, web.namespace, uid=web.uid)
    await shore.finds(web, await shore.physical(web, name=second))


async def test_a_pod_outside_the_namespace_of_the_binding_is_no_place(shore: Shore) -> None:
    web = await shore.virtual("web")
    await shore.physical(web, namespace=shore.above)
    late = await shore.virtual("late")
    await shore.finds(late, await shore.physical(late))
    assert shore.find(web) == 404


async def test_a_pod_that_was_made_anew_above_is_not_the_one_that_still_runs(shore: Shore) -> None:
    web = await shore.virtual("web")
    await shore.finds(web, await shore.physical(web))
    await shore.client.delete(PODS, web.name, web.namespace, uid=web.uid, grace_s=0)
    again = await shore.virtual("web")
    assert again.uid != web.uid
    await shore.finds(again, None)
    await until(lambda: shore.places.on(shore.vnode()) == {})


async def test_labels_of_a_node_lead_to_no_pod_of_another_one(shore: Shore) -> None:
    await shore.lend("n2")
    web, other = await shore.virtual("web"), await shore.virtual("other", "n2")
    runs, beside = await shore.physical(web), await shore.physical(other, "n2")
    await shore.finds(web, runs)
    await shore.finds(other, beside, "n2")
    shown = {beside.key: PodName(other.namespace, other.name, other.uid, beside.uid)}
    await until(lambda: shore.places.on(shore.vnode("n2")) == shown)
    # It says that it stands for the other's machine.
    said = {DOMAIN.physical_node_name: "n2"}
    patch = MergePatch({"metadata": {"labels": said, "annotations": said}})
    await shore.client.patch(NODES, shore.vnode(), patch)
    await until(lambda: shore.places.on(shore.vnode()) == {})
    assert shore.find(other) == 404
    # It says that it is another binding's.
    patch = MergePatch({"metadata": {"labels": {DOMAIN.cluster_binding: "another"}}})
    await shore.client.patch(NODES, shore.vnode(), patch)
    await shore.finds(web, None)
    await shore.client.delete(NODES, shore.vnode(), uid=None)
