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
from unit.leasing.cases import CASES, Case
from waiting import until

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
