"""A Deployment whose pods tolerate everything, with a real scheduler and ReplicaSet controller.

Its pods are created again when they are evicted. A virtual node that takes no new pods must not
attract them: each would be evicted or rejected at once, again and again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.install.apply import Applier
from kubeocean.install.drain import Drain
from kubeocean.install.leave import Leave
from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.kinds import PODS, Node, Pod
from kubeocean.runtime.objects import Json, Resource, Untyped
from support.binding_env import BindingEnv
from support.pod_env import GIVEN, make_namespace, usable
from support.wait import until

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Untyped)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
REPLICAS = 3
# The first pods, those that replace them, and as many that were bound before the scheduler knew.
MOST_CREATED = 3 * REPLICAS


@dataclass
class Returning:
    """A binding with one virtual node, and a Deployment whose pods run there."""

    env: BindingEnv
    namespace: str
    policy: str
    since: int  # in the audit log of the computing cluster

    async def deploy(self) -> None:
        app = {"app": "returning"}
        pod: Json = {
            "containers": [{"name": "c", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {DEFAULT.cluster_binding: self.env.name},
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
        }
        spec = {
            "replicas": REPLICAS,
            "selector": {"matchLabels": app},
            "template": {"metadata": {"labels": app}, "spec": pod},
        }
        body = {"metadata": {"name": "returning"}, "spec": spec}
        await self.env.computing_api.create(DEPLOYMENTS, body, namespace=self.namespace)
        await until(self.runs)

    async def pods(self) -> list[Pod]:
        pods = (await self.env.computing_api.list(PODS, self.namespace)).items
        return [pod for pod in pods if pod.labels.get("app") == "returning"]

    async def runs(self) -> bool:
        pods = await self.pods()
        return len(pods) == REPLICAS and all(pod.status.phase == "Running" for pod in pods)

    async def waits(self) -> bool:
        """Whether all replicas are pending without a node; failed pods do not count."""
        pods = [pod for pod in await self.pods() if pod.status.phase != "Failed"]
        return len(pods) == REPLICAS and not any(pod.spec.node_name for pod in pods)

    def requests(self, verb: str, resource: str, subresource: str = "") -> int:
        """Return how often a request was accepted in the namespace of the Deployment."""
        return sum(
            (each.verb, each.resource, each.subresource) == (verb, resource, subresource)
            and each.namespace == self.namespace
            and each.code < 300
            for each in self.env.computing.audit.requests(since=self.since)
        )

    async def protect(self) -> str:
        """Create a pod on the node that a budget protects; return the UID of the budget."""
        (vnode,) = await self.env.vnodes()
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
        body = {"metadata": {"name": "kept"}, "spec": spec}
        budget = await self.env.computing_api.create(BUDGETS, body, namespace=self.namespace)
        tolerations = [{"operator": "Exists"}]
        await self.env.create_bound_pod(self.namespace, "kept", vnode.name, tolerations=tolerations)

        async def counted() -> bool:
            stored = await self.env.computing_api.get(
                BUDGETS, "kept", self.namespace, keep_raw=True
            )
            return stored.content().get("status", {}).get("currentHealthy") == 1

        await until(counted)
        return budget.uid

    def check_calm(self) -> None:
        """Check that the Deployment was not created and evicted again and again."""
        assert self.requests("create", "pods") <= MOST_CREATED
        assert self.requests("create", "pods", "eviction") <= MOST_CREATED


@pytest.fixture
async def returning(
    binding_env: BindingEnv, namespace: str, kubelets: SimulatedNodes
) -> AsyncIterator[Returning]:
    await kubelets.add(1, prefix=f"k{binding_env.name}", labels=binding_env.label)
    mount = f"m-{binding_env.name}"
    await make_namespace(binding_env.worker_api, mount)
    await usable(binding_env.computing_api, namespace)
    since = binding_env.computing.audit.mark()
    await binding_env.bind(mountNamespace=mount, directScheduling=True)
    policy = await binding_env.lend(forceReclaim=True, reclaim={"respectTolerations": False})
    async with binding_env.syncing(mount=mount, given=GIVEN):
        await until(binding_env.vnodes)
        env = Returning(binding_env, namespace, policy, since)
        await env.deploy()
        yield env
        if not await binding_env.is_unbound():
            await binding_env.unbind()
            await until(binding_env.is_unbound)


def pods_of(vnode: Node) -> tuple[bool, bool]:
    """Return whether the node has capacity for pods, and whether they are allocatable."""
    amounts = vnode.status.capacity or {}, vnode.status.allocatable or {}
    capacity, allocatable = (int(each["pods"]) > 0 for each in amounts)
    return capacity, allocatable


async def test_leave_ends_although_pods_that_tolerate_everything_are_created_again(
    returning: Returning,
) -> None:
    env = returning.env
    budget = await returning.protect()
    leave = Leave(env.name, Applier(env.computing_api, domain=DEFAULT), domain=DEFAULT)
    waiting = await leave.unbind(patience_s=0, force=False, say=lambda message: None)
    assert not waiting.gone
    await until(returning.waits)
    (vnode,) = await env.vnodes()
    assert (pods_of(vnode), vnode.spec.unschedulable) == ((True, False), True)

    await env.computing_api.delete(BUDGETS, "kept", returning.namespace, uid=budget)
    assert (await leave.unbind(patience_s=120, force=False, say=lambda message: None)).gone
    assert await env.vnodes() == []
    assert await returning.waits()
    returning.check_calm()


async def test_a_closed_window_does_not_attract_pods_that_tolerate_everything(
    returning: Returning,
) -> None:
    env, start = returning.env, datetime.now(UTC) + timedelta(hours=6)
    window = {"start": f"{start:%H:%M}", "end": f"{start + timedelta(minutes=5):%H:%M}"}
    await env.patch_policy(returning.policy, timeWindows=[window])
    await until(returning.waits)
    returning.check_calm()
    assert [pods_of(vnode) for vnode in await env.vnodes()] == [(True, False)]

    await env.patch_policy(returning.policy, timeWindows=None)
    await until(returning.runs)
    assert [pods_of(vnode) for vnode in await env.vnodes()] == [(True, True)]


async def test_a_drain_ends_although_pods_that_tolerate_everything_are_created_again(
    returning: Returning,
) -> None:
    env = returning.env
    drain = Drain(env.name, env.computing_api)
    left = await drain.run(patience_s=60, say=lambda message: None)
    assert left.done, left
    await until(returning.waits)
    returning.check_calm()
    await drain.undo()
    await until(returning.runs)
