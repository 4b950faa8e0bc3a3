"""What virtual nodes offer, on two real control planes: the worked cases, all at once.

Each case is a node of the worker with its own policy and its own pods; what is offered was computed
by hand.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kubeocean.errors import AlreadyExists
from kubeocean.runtime.kinds import NAMESPACES, PODS, SERVICE_ACCOUNTS, Node
from kubeocean.runtime.objects import Json
from kubeocean.runtime.patches import MergePatch
from oceans import Sea
from podseas import make_namespace
from unit.leasing.cases import CASES, Case
from waiting import until

MANAGED = "kubeocean.io/managed-by"
BINDING = "kubeocean.io/cluster-binding"
PLAIN = tuple(case for case in CASES if case.plain)


async def prepare(sea: Sea, number: int, case: Case, namespace: str) -> None:
    """The case's node, its pods and its policy."""
    node = f"case{number:02}"
    chosen = [{"key": "case", "operator": "In", "values": [f"{sea.name}-{node}"]}]
    made = await sea.add_node(
        node,
        labels={"case": f"{sea.name}-{node}"},
        allocatable=case.allocatable,
        capacity=case.capacity,
    )
    ours = {"labels": {"kubeocean.io/managed-by": "kubeocean"}}
    for whose, pods in (({}, case.others), (ours, case.ours)):
        for body in pods:
            await place(sea, made, body, namespace, whose)
    await sea.lend(
        f"{sea.name}-{node}",
        nodeSelector={"nodeSelectorTerms": [{"matchExpressions": chosen}]},
        resourceLimits=list(case.limits),
    )


async def place(sea: Sea, node: Node, body: Json, namespace: str, metadata: Json) -> None:
    spec = body["spec"] | {"nodeName": node.name, "automountServiceAccountToken": False}
    given = {"metadata": {"generateName": "p-", **metadata}, "spec": spec}
    made = await sea.below.create(PODS, given, namespace=namespace)
    if body["status"]:
        status = MergePatch({"status": body["status"]})
        await sea.below.patch(PODS, made.name, status, namespace, subresource="status")


async def test_what_is_offered_is_what_was_computed_by_hand(sea: Sea) -> None:
    assert len(PLAIN) >= 20
    namespace = f"{sea.name}-pods"
    await sea.below.create(NAMESPACES, {"metadata": {"name": namespace}})
    with suppress(AlreadyExists):  # the worker has no controllers here; they would do this
        account = {"metadata": {"name": "default"}}
        await sea.below.create(SERVICE_ACCOUNTS, account, namespace=namespace)
    await sea.bind()
    async with sea.syncing():
        async with asyncio.TaskGroup() as group:
            for number, case in enumerate(PLAIN):
                group.create_task(prepare(sea, number, case, namespace))
        wanted = {
            f"vnode-{sea.cluster_id}-{sea.name}-case{number:02}": case
            for number, case in enumerate(PLAIN)
        }

        async def all_equal() -> bool:
            nodes = {node.name: node for node in await sea.vnodes()}
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


async def test_a_pod_with_our_label_counts_as_what_it_asks_for_and_holds(sea: Sea) -> None:
    namespace = f"{sea.name}-mount"
    await make_namespace(sea.below, namespace)
    await sea.bind()
    await sea.lend()
    node = await sea.add_node("n")
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
        await sea.below.patch(PODS, "p", MergePatch(body), namespace, subresource=subresource)

    async def given(cpu: str) -> None:
        """What a kubelet says that it has given, and nothing of how it came to do so."""
        held = {"name": "c", "resources": {"requests": {"cpu": cpu}}, "state": {}}
        ids = {"image": "none", "imageID": "none", "ready": True, "restartCount": 0}
        await change("status", status={"phase": "Running", "containerStatuses": [held | ids]})

    async with sea.syncing(mount=namespace) as syncer:
        await until(sea.vnodes)

        async def counts(ours: str | None, offered: str) -> None:
            async def counted() -> bool:
                found = syncer.nodes.counting.of(node.name).ours.get("cpu")
                (vnode,) = await sea.vnodes()
                assert (str(found) if found else None, vnode.status.allocatable) == (
                    ours,
                    {"cpu": offered, "memory": "32Gi", "pods": vnode.status.allocatable["pods"]},
                )
                return True

            await until(counted)

        made = await sea.below.create(PODS, body, namespace=namespace)
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
        await sea.below.delete(PODS, "p", namespace, uid=made.uid, grace_s=30)
        await counts("1", "8")
        await sea.below.delete(PODS, "p", namespace, uid=made.uid, grace_s=0)
        await counts(None, "8")
