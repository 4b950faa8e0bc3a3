"""Virtual nodes are spread over the ready replicas of the proxier, and move when one is deleted.

A node that need not move is not written.
"""

from __future__ import annotations

from contextlib import suppress

from kubeocean.api import group
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.errors import AlreadyExists
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NAMESPACES, PODS
from kubeocean.runtime.objects import Json
from support.binding_env import BindingEnv
from support.wait import until

DOMAIN = group.DEFAULT
NAMESPACE = DOMAIN.system_namespace
FIRST, SECOND = "10.9.0.1", "10.9.0.2"


async def replica(binding_env: BindingEnv, name: str, address: str) -> str:
    """Return a pod that is running and ready by its status."""
    labels = {group.APP_NAME: DOMAIN.proxier, group.APP_INSTANCE: binding_env.name}
    body: Json = {
        "metadata": {"name": f"{binding_env.name}-{name}", "labels": labels},
        "spec": {
            "nodeName": "somewhere",
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none"}],
        },
    }
    made = await binding_env.computing_api.create(PODS, body, namespace=NAMESPACE)
    await set_status(binding_env, made.name, address, ready="True")
    return made.name


async def set_status(binding_env: BindingEnv, pod: str, address: str, *, ready: str) -> None:
    status: Json = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": ready}],
    }
    patch = MergePatch({"status": status})
    await binding_env.computing_api.patch(PODS, pod, patch, NAMESPACE, subresource="status")


async def pointing(binding_env: BindingEnv) -> dict[str, str]:
    """Return the address of each virtual node."""
    return {
        vnode.name: each["address"]
        for vnode in await binding_env.vnodes()
        for each in vnode.content()["status"]["addresses"]
        if each["type"] == "InternalIP"
    }


async def versions(binding_env: BindingEnv) -> dict[str, str]:
    return {vnode.name: vnode.resource_version for vnode in await binding_env.vnodes()}


async def settled(binding_env: BindingEnv) -> dict[str, str]:
    """Return the versions of all virtual nodes, once they are not written any more."""
    last: dict[str, str] = {}

    async def unchanged() -> bool:
        nonlocal last
        before, last = last, await versions(binding_env)
        return before == last

    await until(unchanged, every=1.0)
    return last


async def test_nodes_are_spread_and_only_those_of_a_deleted_replica_move(
    binding_env: BindingEnv,
) -> None:
    with suppress(AlreadyExists):
        await binding_env.computing_api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    first = await replica(binding_env, "a", FIRST)
    second = await replica(binding_env, "b", SECOND)
    await binding_env.bind()
    await binding_env.lend()
    count = 12  # all of them at one replica: once in two thousand runs
    for n in range(count):
        await binding_env.add_node(f"n{n}")

    async def at(*addresses: str) -> bool:
        current = await pointing(binding_env)
        return len(current) == count and set(current.values()) == set(addresses)

    async with binding_env.syncing():
        await until(lambda: at(FIRST, SECOND))
        written, before = await settled(binding_env), await pointing(binding_env)
        stay = {name for name, address in before.items() if address == SECOND}

        await set_status(binding_env, first, FIRST, ready="False")
        await until(lambda: at(SECOND), within=20.0)
        now = await versions(binding_env)
        assert {name for name in now if now[name] == written[name]} == stay

        await set_status(binding_env, first, FIRST, ready="True")

        async def as_before() -> bool:
            return await pointing(binding_env) == before

        await until(as_before, within=20.0)
        now = await versions(binding_env)
        assert {name for name in now if now[name] == written[name]} == stay

        # A replica that is being deleted, though still ready.
        await binding_env.computing_api.delete(PODS, first, NAMESPACE, uid=None, grace_s=60)
        await until(lambda: at(SECOND), within=20.0)
        urls = {vnode.annotations[DOMAIN.prometheus_url] for vnode in await binding_env.vnodes()}
        assert {url.partition(":")[0] for url in urls} == {SECOND}
    await delete_replicas(binding_env, first, second)


async def delete_replicas(binding_env: BindingEnv, *replicas: str) -> None:
    for name in replicas:
        await binding_env.computing_api.delete(PODS, name, NAMESPACE, uid=None, grace_s=0)


async def test_a_node_that_is_being_reclaimed_moves_while_it_has_pods(
    binding_env: BindingEnv, namespace: str
) -> None:
    with suppress(AlreadyExists):
        await binding_env.computing_api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    first = await replica(binding_env, "a", FIRST)
    await binding_env.bind()
    policy = await binding_env.lend()
    await binding_env.add_node("n")
    async with binding_env.syncing():
        (vnode,) = await until(binding_env.vnodes)
        await binding_env.create_bound_pod(namespace, "p", vnode.name)
        actual = await binding_env.worker_api.get(RESOURCE_LEASING_POLICIES, policy)
        await binding_env.worker_api.delete(RESOURCE_LEASING_POLICIES, policy, uid=actual.uid)

        async def tainted() -> bool:
            keys = {
                taint.key for each in await binding_env.vnodes() for taint in each.spec.taints or ()
            }
            return bool(keys & {DOMAIN.taint_vnode_deleting, DOMAIN.taint_out_of_time_windows})

        await until(tainted)
        second = await replica(binding_env, "b", SECOND)
        await delete_replicas(binding_env, first)

        async def moved() -> bool:
            return await pointing(binding_env) == {vnode.name: SECOND}

        await until(moved)
        (vnode,) = await binding_env.vnodes()
        assert vnode.annotations[DOMAIN.prometheus_url].startswith(f"{SECOND}:")
    await delete_replicas(binding_env, second)
