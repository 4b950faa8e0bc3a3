"""Capacity of virtual nodes on two real control planes: the worked cases, all at once.

Each case is a node of the worker with its own policy and its own pods; the expected offer was
computed by hand.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kubeocean.errors import AlreadyExists
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NAMESPACES, PODS, SERVICE_ACCOUNTS, Node
from kubeocean.runtime.objects import Json
from support.binding_env import BindingEnv
from support.pod_env import GIVEN, make_namespace, usable
from support.wait import until
from unit.leasing.cases import CASES, Case

MANAGED = "kubeocean.io/managed-by"
BINDING = "kubeocean.io/cluster-binding"
PLAIN = tuple(case for case in CASES if case.plain)


async def prepare(binding_env: BindingEnv, number: int, case: Case, namespace: str) -> None:
    """Create the node of a case, its pods and its policy."""
    node = f"case{number:02}"
    selected = [{"key": "case", "operator": "In", "values": [f"{binding_env.name}-{node}"]}]
    created = await binding_env.add_node(
        node,
        labels={"case": f"{binding_env.name}-{node}"},
        allocatable=case.allocatable,
        capacity=case.capacity,
    )
    ours = {"labels": {"kubeocean.io/managed-by": "kubeocean"}}
    for metadata, pods in (({}, case.others), (ours, case.ours)):
        for body in pods:
            await place(binding_env, created, body, namespace, metadata)
    await binding_env.lend(
        f"{binding_env.name}-{node}",
        nodeSelector={"nodeSelectorTerms": [{"matchExpressions": selected}]},
        resourceLimits=list(case.limits),
    )


async def place(
    binding_env: BindingEnv, node: Node, body: Json, namespace: str, metadata: Json
) -> None:
    spec = body["spec"] | {"nodeName": node.name, "automountServiceAccountToken": False}
    named = {} if "name" in metadata else {"generateName": "p-"}
    given = {"metadata": {**named, **metadata}, "spec": spec}
    created = await binding_env.worker_api.create(PODS, given, namespace=namespace)
    if body["status"]:
        status = MergePatch({"status": body["status"]})
        await binding_env.worker_api.patch(
            PODS, created.name, status, namespace, subresource="status"
        )


async def test_what_is_offered_is_what_was_computed_by_hand(binding_env: BindingEnv) -> None:
    assert len(PLAIN) >= 20
    namespace = f"{binding_env.name}-pods"
    await binding_env.worker_api.create(NAMESPACES, {"metadata": {"name": namespace}})
    with suppress(AlreadyExists):  # the worker has no controller manager, which would create it
        account = {"metadata": {"name": "default"}}
        await binding_env.worker_api.create(SERVICE_ACCOUNTS, account, namespace=namespace)
    await binding_env.bind()
    async with binding_env.syncing():
        async with asyncio.TaskGroup() as group:
            for number, case in enumerate(PLAIN):
                group.create_task(prepare(binding_env, number, case, namespace))
        wanted = {
            f"vnode-{binding_env.cluster_id}-{binding_env.name}-case{number:02}": case
            for number, case in enumerate(PLAIN)
        }

        async def all_equal() -> bool:
            nodes = {node.name: node for node in await binding_env.vnodes()}
            assert set(nodes) == set(wanted)
            wrong = {
                wanted[name].name: node.status.allocatable
                for name, node in nodes.items()
                if node.status.allocatable != wanted[name].offered
                or node.status.capacity != wanted[name].offered
            }
            assert wrong == {}
            return True

        await until(all_equal)


async def test_an_amount_beyond_all_bounds_stops_no_other_node(
    binding_env: BindingEnv, namespace: str
) -> None:
    """API servers store a request of 1e5000 CPUs, in either cluster."""
    worker_api, mount = f"{binding_env.name}-pods", f"{binding_env.name}-mount"
    for each in (worker_api, mount):
        await make_namespace(binding_env.worker_api, each)
    await usable(binding_env.computing_api, namespace)
    await binding_env.bind(directScheduling=True, mountNamespace=mount)
    await binding_env.lend()
    nodes = [await binding_env.add_node(name) for name in ("n", "m")]
    huge = {"cpu": "1e5000"}
    container = {"name": "c", "image": "none", "resources": {"requests": huge, "limits": huge}}
    body: Json = {"spec": {"containers": [container]}, "status": {}}
    await place(binding_env, nodes[0], body, worker_api, {"name": "below"})
    stored = (await binding_env.worker_api.get(PODS, "below", worker_api, keep_raw=True)).content()
    assert stored["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "100e4998"}
    vnodes = {node.name: f"vnode-{binding_env.cluster_id}-{node.name}" for node in nodes}

    async with binding_env.syncing(mount=mount, given=GIVEN):

        async def offered(**cpus: str) -> bool:
            shown = {
                each.name: (each.status.allocatable or {}) for each in await binding_env.vnodes()
            }
            wanted = {vnodes[f"{binding_env.name}-{name}"]: cpu for name, cpu in cpus.items()}
            assert {name: amounts.get("cpu") for name, amounts in shown.items()} == wanted
            return True

        await until(lambda: offered(n="0", m="8"))
        computing_api = {**body["spec"], "nodeName": vnodes[nodes[1].name]}
        computing_api |= {
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
        }
        made: Json = {"metadata": {"name": "above"}, "spec": computing_api}
        await binding_env.computing_api.create(PODS, made, namespace=namespace)

        async def rejected() -> bool:
            pod = await binding_env.computing_api.get(PODS, "above", namespace)
            return pod.status.phase == "Failed"

        await until(rejected)
        small = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "3"}}}
        small_pod: Json = {"spec": {"containers": [small]}, "status": {}}
        await place(binding_env, nodes[1], small_pod, worker_api, {"name": "small"})
        await until(lambda: offered(n="0", m="5"))


async def test_a_pod_with_our_label_counts_as_what_it_asks_for_and_holds(
    binding_env: BindingEnv,
) -> None:
    namespace = f"{binding_env.name}-mount"
    await make_namespace(binding_env.worker_api, namespace)
    await binding_env.bind()
    await binding_env.lend()
    node = await binding_env.add_node("n")
    resources = {"requests": {"cpu": "3"}}
    container = {"name": "c", "image": "none", "resources": resources}
    body = {
        "metadata": {"name": "p", "labels": {MANAGED: "kubeocean"}},
        "spec": {
            "nodeName": node.name,
            "containers": [container],
            "automountServiceAccountToken": False,
        },
    }

    async def change(subresource: str, **body: object) -> None:
        await binding_env.worker_api.patch(
            PODS, "p", MergePatch(body), namespace, subresource=subresource
        )

    async def given(cpu: str) -> None:
        """Write a kubelet status that has allocated this much, without a resize condition."""
        held = {"name": "c", "resources": {"requests": {"cpu": cpu}}, "state": {}}
        ids = {"image": "none", "imageID": "none", "ready": True, "restartCount": 0}
        await change("status", status={"phase": "Running", "containerStatuses": [held | ids]})

    async with binding_env.syncing(mount=namespace) as syncer:
        await until(binding_env.vnodes)

        async def counts(ours: str | None, offered: str) -> None:
            async def counted() -> bool:
                usage = syncer.nodes.usage.of(node.name).ours.get("cpu")
                (vnode,) = await binding_env.vnodes()
                assert (str(usage) if usage else None, vnode.status.allocatable) == (
                    ours,
                    {"cpu": offered, "memory": "32Gi", "pods": vnode.status.allocatable["pods"]},
                )
                return True

            await until(counted)

        made = await binding_env.worker_api.create(PODS, body, namespace=namespace)
        await counts("3", "8")
        await given("3")
        less = {"requests": {"cpu": "1"}}
        await change("resize", spec={"containers": [container | {"resources": less}]})
        await counts("3", "8")
        await given("1")
        await counts("1", "8")
        for _ in range(2):
            await change("", metadata={"labels": {BINDING: "another"}})
            await counts(None, "7")
            await change("", metadata={"labels": {BINDING: None}})
            await counts("1", "8")
        await binding_env.worker_api.delete(PODS, "p", namespace, uid=made.uid, grace_s=30)
        await counts("1", "8")
        await binding_env.worker_api.delete(PODS, "p", namespace, uid=made.uid, grace_s=0)
        await counts(None, "8")
