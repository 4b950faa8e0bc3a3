"""Virtual nodes are spread over the replicas of the proxier that are ready, and move when one goes.

A node that need not move is not written.
"""

from __future__ import annotations

from contextlib import suppress

from kubeocean.api import group
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.errors import AlreadyExists
from kubeocean.runtime.kinds import NAMESPACES, PODS
from kubeocean.runtime.objects import Json
from kubeocean.runtime.patches import MergePatch
from oceans import Sea
from waiting import until

DOMAIN = group.DEFAULT
NAMESPACE = DOMAIN.system_namespace
FIRST, SECOND = "10.9.0.1", "10.9.0.2"


async def replica(sea: Sea, name: str, address: str) -> str:
    """A pod that runs and is ready, as far as its status tells."""
    labels = {group.APP_NAME: DOMAIN.proxier, group.APP_INSTANCE: sea.name}
    body: Json = {
        "metadata": {"name": f"{sea.name}-{name}", "labels": labels},
        "spec": {
            "nodeName": "somewhere",
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none"}],
        },
    }
    made = await sea.above.create(PODS, body, namespace=NAMESPACE)
    await say(sea, made.name, address, ready="True")
    return made.name


async def say(sea: Sea, pod: str, address: str, *, ready: str) -> None:
    status: Json = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": ready}],
    }
    patch = MergePatch({"status": status})
    await sea.above.patch(PODS, pod, patch, NAMESPACE, subresource="status")


async def pointing(sea: Sea) -> dict[str, str]:
    """The address of each virtual node."""
    return {
        vnode.name: each["address"]
        for vnode in await sea.vnodes()
        for each in vnode.content()["status"]["addresses"]
        if each["type"] == "InternalIP"
    }


async def versions(sea: Sea) -> dict[str, str]:
    return {vnode.name: vnode.resource_version for vnode in await sea.vnodes()}


async def settled(sea: Sea) -> dict[str, str]:
    """The versions of all virtual nodes, once they are not written any more."""
    last: dict[str, str] = {}

    async def unchanged() -> bool:
        nonlocal last
        before, last = last, await versions(sea)
        return before == last

    await until(unchanged, every=1.0)
    return last


async def test_nodes_are_spread_and_only_those_of_a_replica_that_goes_move(sea: Sea) -> None:
    with suppress(AlreadyExists):
        await sea.above.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    first = await replica(sea, "a", FIRST)
    second = await replica(sea, "b", SECOND)
    await sea.bind()
    await sea.lend()
    count = 12  # all of them at one replica: once in two thousand runs
    for n in range(count):
        await sea.add_node(f"n{n}")

    async def at(*addresses: str) -> bool:
        said = await pointing(sea)
        return len(said) == count and set(said.values()) == set(addresses)

    async with sea.syncing():
        await until(lambda: at(FIRST, SECOND))
        written, before = await settled(sea), await pointing(sea)
        stay = {name for name, address in before.items() if address == SECOND}

        await say(sea, first, FIRST, ready="False")
        await until(lambda: at(SECOND), within=20.0)
        now = await versions(sea)
        assert {name for name in now if now[name] == written[name]} == stay

        await say(sea, first, FIRST, ready="True")

        async def as_before() -> bool:
            return await pointing(sea) == before

        await until(as_before, within=20.0)
        now = await versions(sea)
        assert {name for name in now if now[name] == written[name]} == stay

        # On its way out, though still ready: a pod is told to go before it is killed.
        await sea.above.delete(PODS, first, NAMESPACE, uid=None, grace_s=60)
        await until(lambda: at(SECOND), within=20.0)
        urls = {vnode.annotations[DOMAIN.prometheus_url] for vnode in await sea.vnodes()}
        assert {url.partition(":")[0] for url in urls} == {SECOND}
    await leave(sea, first, second)


async def leave(sea: Sea, *replicas: str) -> None:
    for name in replicas:
        await sea.above.delete(PODS, name, NAMESPACE, uid=None, grace_s=0)


async def test_a_node_that_is_taken_back_moves_while_it_has_pods(sea: Sea, namespace: str) -> None:
    with suppress(AlreadyExists):
        await sea.above.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    first = await replica(sea, "a", FIRST)
    await sea.bind()
    policy = await sea.lend()
    await sea.add_node("n")
    async with sea.syncing():
        (vnode,) = await until(sea.vnodes)
        await sea.guest(namespace, "p", vnode.name)
        found = await sea.below.get(RESOURCE_LEASING_POLICIES, policy)
        await sea.below.delete(RESOURCE_LEASING_POLICIES, policy, uid=found.uid)

        async def told() -> bool:
            keys = {taint.key for each in await sea.vnodes() for taint in each.spec.taints or ()}
            return bool(keys & {DOMAIN.taint_vnode_deleting, DOMAIN.taint_out_of_time_windows})

        await until(told)
        second = await replica(sea, "b", SECOND)
        await leave(sea, first)

        async def moved() -> bool:
            return await pointing(sea) == {vnode.name: SECOND}

        await until(moved)
        (vnode,) = await sea.vnodes()
        assert vnode.annotations[DOMAIN.prometheus_url].startswith(f"{SECOND}:")
    await leave(sea, second)
