"""Virtual nodes point at a replica of the proxier that is ready, and move when it goes."""

from __future__ import annotations

from contextlib import suppress

from kubeocean.api import group
from kubeocean.errors import AlreadyExists
from kubeocean.runtime.kinds import NAMESPACES, PODS
from kubeocean.runtime.objects import Json
from kubeocean.runtime.patches import MergePatch
from oceans import Sea
from waiting import until

DOMAIN = group.DEFAULT
NAMESPACE = DOMAIN.system_namespace


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


async def test_nodes_move_to_a_ready_replica_when_theirs_goes(sea: Sea) -> None:
    with suppress(AlreadyExists):
        await sea.above.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    first = await replica(sea, "a", "10.9.0.1")
    second = await replica(sea, "b", "10.9.0.2")
    await sea.bind()
    await sea.lend()
    for n in range(2):
        await sea.add_node(f"n{n}")

    async def pointing() -> set[str]:
        contents = [vnode.content() for vnode in await sea.vnodes()]
        return {
            each["address"]
            for content in contents
            for each in content["status"]["addresses"]
            if each["type"] == "InternalIP"
        }

    async def at(address: str) -> bool:
        return await pointing() == {address}

    async with sea.syncing():
        await until(lambda: at("10.9.0.1"))
        await say(sea, first, "10.9.0.1", ready="False")
        await until(lambda: at("10.9.0.2"), within=20.0)
        await say(sea, first, "10.9.0.1", ready="True")
        await until(lambda: at("10.9.0.1"), within=20.0)
        # On its way out, though still ready: a pod is told to go before it is killed.
        await sea.above.delete(PODS, first, NAMESPACE, uid=None, grace_s=60)
        await until(lambda: at("10.9.0.2"), within=20.0)
        urls = {vnode.annotations[DOMAIN.prometheus_url] for vnode in await sea.vnodes()}
        assert {url.partition(":")[0] for url in urls} == {"10.9.0.2"}
    for name in (first, second):
        await sea.above.delete(PODS, name, NAMESPACE, uid=None, grace_s=0)
