"""`kubeocean drain` as its users run it: cordon, evict as budgets allow, and uncordon."""

from __future__ import annotations

import signal
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.install.drain import Drain
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.kinds import NODES, PODS, Node, Pod
from kubeocean.runtime.objects import Resource, Untyped
from support.commands import Home
from support.crds import install_our_kinds
from support.pod_env import usable
from support.wait import until

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Untyped)
MARK = "kubeocean.io/drained"


@dataclass
class DrainEnv:
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
        labels = {
            "kubeocean.io/managed-by": "kubeocean",
            "kubeocean.io/cluster-binding": self.name,
            "kubeocean.io/physical-cluster-id": self.name,
        }
        finalizers = ["kubeocean.io/vnode"]
        for number in (1, 2):
            meta = {"name": self.vnode(number), "labels": labels, "finalizers": finalizers}
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
        """Create a budget that allows no eviction; return its UID."""
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
        body = {"metadata": {"name": "keep"}, "spec": spec}
        made = await self.client.create(BUDGETS, body, namespace=self.namespace)

        async def counted() -> bool:
            actual = await self.client.get(BUDGETS, "keep", self.namespace, keep_raw=True)
            return actual.content().get("status", {}).get("currentHealthy") == 1

        await until(counted)
        return made.uid

    async def pods(self) -> set[str]:
        actual = (await self.client.list(PODS, self.namespace)).items
        return {pod.name for pod in actual if not pod.deleting}

    async def node(self, number: int) -> Node:
        return await self.client.get(NODES, self.vnode(number))

    def words(self, *words: str) -> tuple[str, ...]:
        return ("drain", *words, "--force", f"--kubeconfig={self.kubeconfig}")


@pytest.fixture
async def drain_env(cluster: Cluster, client: Client, namespace: str, tmp_path: Path) -> DrainEnv:
    await install_our_kinds(client)
    made = DrainEnv(client, namespace, Home(tmp_path / "home"), cluster.kubeconfig)
    await made.open()
    return made


async def test_budgets_are_asked_and_only_our_own_cordons_are_lifted(drain_env: DrainEnv) -> None:
    theirs = MergePatch({"spec": {"unschedulable": True}})
    await drain_env.client.patch(NODES, drain_env.vnode(2), theirs)
    for name, number in (("a", 1), ("b", 2), ("kept", 1)):
        await drain_env.pod(name, number)
    budget = await drain_env.protect("kept")

    done = await drain_env.home.run(*drain_env.words(drain_env.name, "--timeout=2", "--grace=0"))
    assert done.code == 3, done
    assert f"{drain_env.namespace}/kept: blocked by a PodDisruptionBudget" in done.err
    assert await drain_env.pods() == {"kept"}
    first, second = await drain_env.node(1), await drain_env.node(2)
    assert (first.spec.unschedulable, first.annotations.get(MARK)) == (True, "true")
    assert (second.spec.unschedulable, second.annotations.get(MARK)) == (True, None)

    await drain_env.client.delete(BUDGETS, "keep", drain_env.namespace, uid=budget)
    done = await drain_env.home.run(*drain_env.words(drain_env.name))
    assert (done.code, "is drained; evicted: 1 pod." in done.out) == (0, True), done
    assert await drain_env.pods() == set()

    done = await drain_env.home.run(*drain_env.words(drain_env.name, "--undo"))
    assert (done.code, done.out) == (0, f"uncordoned: {drain_env.vnode(1)}\n"), done
    assert not (await drain_env.node(1)).spec.unschedulable
    assert MARK not in (await drain_env.node(1)).annotations
    assert (await drain_env.node(2)).spec.unschedulable


async def test_one_node_is_emptied_alone(drain_env: DrainEnv) -> None:
    await drain_env.pod("here")
    await drain_env.pod("there", 2)
    done = await drain_env.home.run(*drain_env.words(drain_env.vnode(1)))
    assert done.code == 0, done
    assert await drain_env.pods() == {"there"}
    assert not (await drain_env.node(2)).spec.unschedulable


async def test_pods_without_a_controller_are_evicted_only_by_force(drain_env: DrainEnv) -> None:
    await drain_env.pod("bare")
    words = [word for word in drain_env.words(drain_env.name) if word != "--force"]
    done = await drain_env.home.run(*words)
    assert done.code == 2, done
    assert f"1 pod that no controller would create again: {drain_env.namespace}/bare" in done.err
    assert await drain_env.pods() == {"bare"}
    assert not (await drain_env.node(1)).spec.unschedulable


async def test_who_stops_is_told_how_things_stand(drain_env: DrainEnv) -> None:
    await drain_env.pod("kept")
    await drain_env.protect("kept")
    async with drain_env.home.running(*drain_env.words(drain_env.name)) as running:

        async def cordoned() -> bool:
            return (await drain_env.node(1)).spec.unschedulable

        await until(cordoned)
        await running.wait_for_output("draining")
        running.signal(signal.SIGINT)
        assert await running.ended() == 130
    assert "To uncordon, run: " in running.output
    assert f"cordoned: {drain_env.vnode(1)}" in running.output
    assert f"drain {drain_env.name} --undo" in running.output
    assert await drain_env.pods() == {"kept"}
    assert (await drain_env.node(1)).spec.unschedulable


async def test_what_is_not_virtual_is_not_touched(drain_env: DrainEnv) -> None:
    name = f"plain-{drain_env.name}"
    await drain_env.client.create(NODES, {"metadata": {"name": name}})
    done = await drain_env.home.run(*drain_env.words(name))
    assert (done.code, "is not a virtual node" in done.err) == (2, True), done
    done = await drain_env.home.run(*drain_env.words("nobody"))
    assert (done.code, "'nobody' is neither a binding nor a node" in done.err) == (2, True), done
    assert drain_env.name in done.err
    assert not (await drain_env.client.get(NODES, name)).spec.unschedulable


async def test_an_eviction_that_fails_does_not_delay_other_pods(drain_env: DrainEnv) -> None:
    """The API server refuses to evict a pod that two budgets protect, with code 500."""
    for name in ("a", "twice", "z"):
        await drain_env.pod(name)
    await drain_env.protect("twice")
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "twice"}}}
    body = {"metadata": {"name": "second"}, "spec": spec}
    await drain_env.client.create(BUDGETS, body, namespace=drain_env.namespace)
    done = await drain_env.home.run(*drain_env.words(drain_env.name, "--timeout=2", "--grace=0"))
    assert done.code == 3, done
    assert await drain_env.pods() == {"twice"}
    assert f"{drain_env.namespace}/twice: not evicted: " in done.err
    assert "more than one PodDisruptionBudget" in done.err


async def test_pods_that_come_again_are_evicted_at_growing_intervals(drain_env: DrainEnv) -> None:
    """No syncer takes allocatable pods from the node, and a controller creates pods again."""
    clock = VirtualClock()
    drain = Drain(drain_env.vnode(1), drain_env.client, clock=clock, force=True)
    await drain_env.pod("again")
    assert (await drain.step()).returned == ()
    evicted_at = []
    for second in range(20):
        if not await drain_env.pods():
            await drain_env.pod("again")
        before = drain.evicted
        left = await drain.step()
        assert left.returned == (f"{drain_env.namespace}/again",)
        if drain.evicted > before:
            evicted_at.append(second)
        await clock.advance(1)
    assert evicted_at == [0, 2, 6, 14]
    assert drain.evicted == 5
