"""`kubeocean drain` as its users run it: cordon, evict as budgets allow, and let go again."""

from __future__ import annotations

import signal
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from commands import Home
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NODES, PODS, Node, Pod
from kubeocean.runtime.objects import Resource, Untyped
from kubeocean.runtime.patches import MergePatch
from ourkinds import install_our_kinds
from podseas import usable
from waiting import until

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Untyped)
MARK = "kubeocean.io/drained"


@dataclass
class Harbour:
    """A binding with two virtual nodes, made by hand, and pods that seem to run there."""

    client: Client
    namespace: str
    home: Home
    kubeconfig: Path
    name: str = field(default_factory=lambda: f"h{uuid.uuid4().hex[:8]}")

    def vnode(self, number: int) -> str:
        return f"vnode-{self.name}-n{number}"

    async def open(self) -> None:
        spec = {
            "clusterID": self.name,
            "secretRef": {"name": "none", "namespace": "default"},
            "mountNamespace": "m",
        }
        body = {
            "apiVersion": CLUSTER_BINDINGS.api_version,
            "kind": "ClusterBinding",
            "metadata": {"name": self.name},
            "spec": spec,
        }
        await self.client.create(CLUSTER_BINDINGS, body)
        labels = {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/cluster-binding": self.name}
        for number in (1, 2):
            meta = {"name": self.vnode(number), "labels": labels}
            await self.client.create(NODES, {"metadata": meta})
        await usable(self.client, self.namespace)

    async def pod(self, name: str, number: int = 1) -> Pod:
        body = {
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "nodeName": self.vnode(number),
                "containers": [{"name": "c", "image": "none"}],
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists"}],
            },
        }
        await self.client.create(PODS, body, namespace=self.namespace)
        ready = {"type": "Ready", "status": "True"}
        status = MergePatch({"status": {"phase": "Running", "conditions": [ready]}})
        return await self.client.patch(PODS, name, status, self.namespace, subresource="status")

    async def protect(self, app: str) -> str:
        """A budget that lets none go; its UID."""
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
        body = {"metadata": {"name": "keep"}, "spec": spec}
        made = await self.client.create(BUDGETS, body, namespace=self.namespace)

        async def counted() -> bool:
            found = await self.client.get(BUDGETS, "keep", self.namespace, keep_raw=True)
            return found.content().get("status", {}).get("currentHealthy") == 1

        await until(counted)
        return made.uid

    async def pods(self) -> set[str]:
        found = (await self.client.list(PODS, self.namespace)).items
        return {pod.name for pod in found if not pod.deleting}

    async def node(self, number: int) -> Node:
        return await self.client.get(NODES, self.vnode(number))

    def words(self, *words: str) -> tuple[str, ...]:
        return ("drain", *words, "--force", f"--kubeconfig={self.kubeconfig}")


@pytest.fixture
async def harbour(cluster: Cluster, client: Client, namespace: str, tmp_path: Path) -> Harbour:
    await install_our_kinds(client)
    made = Harbour(client, namespace, Home(tmp_path / "home"), cluster.kubeconfig)
    await made.open()
    return made


async def test_budgets_are_asked_and_only_our_own_cordons_are_lifted(harbour: Harbour) -> None:
    theirs = MergePatch({"spec": {"unschedulable": True}})
    await harbour.client.patch(NODES, harbour.vnode(2), theirs)
    for name, number in (("a", 1), ("b", 2), ("kept", 1)):
        await harbour.pod(name, number)
    budget = await harbour.protect("kept")

    done = await harbour.home.run(*harbour.words(harbour.name, "--timeout=2", "--grace=0"))
    assert done.code == 3, done
    assert f"{harbour.namespace}/kept: held by a disruption budget" in done.err
    assert await harbour.pods() == {"kept"}
    first, second = await harbour.node(1), await harbour.node(2)
    assert (first.spec.unschedulable, first.annotations.get(MARK)) == (True, "true")
    assert (second.spec.unschedulable, second.annotations.get(MARK)) == (True, None)

    await harbour.client.delete(BUDGETS, "keep", harbour.namespace, uid=budget)
    done = await harbour.home.run(*harbour.words(harbour.name))
    assert (done.code, "is empty; evicted: 1 pod." in done.out) == (0, True), done
    assert await harbour.pods() == set()

    done = await harbour.home.run(*harbour.words(harbour.name, "--undo"))
    assert (done.code, done.out) == (0, f"taking pods again: {harbour.vnode(1)}\n"), done
    assert not (await harbour.node(1)).spec.unschedulable
    assert MARK not in (await harbour.node(1)).annotations
    assert (await harbour.node(2)).spec.unschedulable


async def test_one_node_is_emptied_alone(harbour: Harbour) -> None:
    await harbour.pod("here")
    await harbour.pod("there", 2)
    done = await harbour.home.run(*harbour.words(harbour.vnode(1)))
    assert done.code == 0, done
    assert await harbour.pods() == {"there"}
    assert not (await harbour.node(2)).spec.unschedulable


async def test_pods_that_nobody_would_make_again_go_only_by_force(harbour: Harbour) -> None:
    await harbour.pod("bare")
    words = [word for word in harbour.words(harbour.name) if word != "--force"]
    done = await harbour.home.run(*words)
    assert done.code == 2, done
    assert f"1 pod that nobody would make again: {harbour.namespace}/bare" in done.err
    assert await harbour.pods() == {"bare"}
    assert not (await harbour.node(1)).spec.unschedulable


async def test_who_stops_is_told_how_things_stand(harbour: Harbour) -> None:
    await harbour.pod("kept")
    await harbour.protect("kept")
    async with harbour.home.running(*harbour.words(harbour.name)) as running:

        async def cordoned() -> bool:
            return (await harbour.node(1)).spec.unschedulable

        await until(cordoned)
        await running.says("emptying")
        running.signal(signal.SIGINT)
        assert await running.ended() == 130
    assert "takes no new pods until" in running.said
    assert f"cordoned: {harbour.vnode(1)}" in running.said
    assert f"drain {harbour.name} --undo" in running.said
    assert await harbour.pods() == {"kept"}
    assert (await harbour.node(1)).spec.unschedulable


async def test_what_is_not_virtual_is_not_touched(harbour: Harbour) -> None:
    name = f"plain-{harbour.name}"
    await harbour.client.create(NODES, {"metadata": {"name": name}})
    done = await harbour.home.run(*harbour.words(name))
    assert (done.code, "is not a virtual node" in done.err) == (2, True), done
    done = await harbour.home.run(*harbour.words("nobody"))
    assert (done.code, "'nobody' is neither a binding nor a node" in done.err) == (2, True), done
    assert harbour.name in done.err
    assert not (await harbour.client.get(NODES, name)).spec.unschedulable
