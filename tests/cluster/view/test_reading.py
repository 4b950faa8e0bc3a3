"""Both sides of real control planes, as they are shown."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.errors import ConfigError, NotFound
from kubeocean.leasing.instants import instant_of
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Faults
from kubeocean.runtime.client import Client, connect
from kubeocean.runtime.clock import RealClock
from kubeocean.runtime.kinds import NODES, PODS, SECRETS
from kubeocean.runtime.objects import Json, Resource, Untyped
from kubeocean.runtime.patches import MergePatch
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.forge import nodes as forge
from kubeocean.view.model import (
    ClusterView,
    ConnectionState,
    LeaseState,
    NodeState,
    OceanView,
    WorkerState,
)
from kubeocean.view.reading import Reader
from oceans import Sea
from podseas import make_namespace
from waiting import until

RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", False, Untyped)
ROLE_BINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, Untyped)


@asynccontextmanager
async def reading(computing: Client, **options: Any) -> AsyncIterator[Reader]:
    reader = Reader(computing, **options)
    try:
        yield reader
    finally:
        await reader.close()


@contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    """Its API server stands still with all its connections."""
    cluster.pause("kube-apiserver")
    try:
        yield
    finally:
        cluster.resume("kube-apiserver")


def only(view: OceanView, name: str) -> ClusterView:
    (found,) = [cluster for cluster in view.clusters if cluster.name == name]
    return found


async def test_what_is_lent_and_used_is_shown_as_it_is(sea: Sea) -> None:
    await sea.bind()
    policy = await sea.lend(resourceLimits=[{"resource": "cpu", "percent": 50}])
    for name in ("a", "b"):
        await sea.add_node(name)
    await make_namespace(sea.above, sea.name)
    async with sea.syncing(), reading(sea.above) as reader:
        vnodes = await until(lambda: _two(sea))
        resources = {"requests": {"cpu": "1500m", "memory": "2Gi"}}
        container = {"name": "c", "image": "none", "resources": resources}
        await sea.guest(sea.name, "web", vnodes[0], containers=[container])

        async def settled() -> ClusterView:
            cluster = only(await reader.look(sea.name), sea.name)
            assert cluster.connection.state is ConnectionState.CONNECTED
            assert cluster.pods.running == 1
            assert [lease.nodes for lease in cluster.leases] == [2]
            return cluster

        cluster = await until(settled)
        view = await reader.look(sea.name)
        assert view.health.healthy, view.health
    assert (cluster.worker.state, cluster.cluster_id) == (WorkerState.ANSWERED, sea.cluster_id)
    assert cluster.connection.since is not None
    assert [node.name for node in cluster.nodes] == vnodes
    node = cluster.nodes[0]
    assert (node.physical, node.policy, node.ready) == (f"{sea.name}-a", policy, "True")
    assert {name: str(amount) for name, amount in node.resources.lent.items()} == {
        "cpu": "4",
        "memory": "32Gi",
        "pods": "110",
    }
    assert str(node.resources.free["cpu"]) == "2500m"
    assert str(cluster.resources.free["memory"]) == "62Gi"
    assert (cluster.leases[0].state, cluster.leases[0].limits) == (LeaseState.OPEN, ("cpu=50%",))


async def _two(sea: Sea) -> list[str]:
    found = [vnode.name for vnode in await sea.vnodes()]
    return found if len(found) == 2 else []


async def test_a_closed_window_shows_when_it_opens(sea: Sea) -> None:
    now = RealClock().now()
    opens = (now + timedelta(hours=3)).strftime("%H:%M")
    closes = (now + timedelta(hours=4)).strftime("%H:%M")
    await sea.bind()
    policy = await sea.lend(timeWindows=[{"start": opens, "end": closes}], timeZone="UTC")
    await sea.add_node("a")
    async with sea.syncing(), reading(sea.above) as reader:

        async def closed() -> ClusterView:
            cluster = only(await reader.look(sea.name), sea.name)
            assert [node.state for node in cluster.nodes] == [NodeState.CLOSED]
            return cluster

        cluster = await until(closed)
        told = await until(lambda: _transition(sea, policy))
    (lease,) = cluster.leases
    assert lease.state is LeaseState.CLOSED
    assert lease.next_edge is not None
    assert lease.next_edge.opens
    assert lease.next_edge.time == instant_of(told)
    assert f"{lease.next_edge.local:%H:%M}" == opens
    assert set(map(str, cluster.resources.lent.values())) == {"0"}


async def _transition(sea: Sea, policy: str) -> str | None:
    return (await sea.status(policy)).next_transition_time


async def test_a_worker_that_does_not_answer_holds_up_nobody(
    sea: Sea, new_cluster: Callable[..., Awaitable[Cluster]]
) -> None:
    still = await new_cluster(name="still")
    dead = [_with_worker(sea, still) for _ in range(4)]
    await sea.bind()
    await sea.lend()
    for each in dead:
        await each.bind()
    async with reading(sea.above, patience_s=3.0) as reader:
        await reader.look()  # all of them answer, one way or another
        with stopped(still):
            began = time.monotonic()
            view = await reader.look()
            took_s = time.monotonic() - began
    assert took_s < 3 * 3.0, took_s  # one after the other they would take four times as long
    assert only(view, sea.name).worker.state is WorkerState.ANSWERED
    for each in dead:
        shown = only(view, each.name).worker
        assert (shown.state, shown.message) == (WorkerState.SILENT, "no answer within 3 s")
    assert not view.health.healthy


def _with_worker(sea: Sea, worker: Cluster) -> Sea:
    return replace(sea.neighbour(), worker=worker)


async def test_a_syncer_that_lost_its_worker_is_believed(sea: Sea) -> None:
    await sea.bind()
    lost = {
        "type": "Connected",
        "status": "False",
        "reason": "WorkerUnreachable",
        "message": "The worker cluster has not answered",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = MergePatch({"status": {"conditions": [lost]}})
    await sea.above.patch(CLUSTER_BINDINGS, sea.name, status, subresource="status")
    async with reading(sea.above) as reader:
        view = await reader.look(sea.name)
    assert [str(each) for each in view.health.problems] == [
        f"{sea.name}: The worker cluster has not answered"
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "not found"),
        ({}, "is missing or empty"),
        ({"kubeconfig": "bm9uc2Vuc2U="}, "must be a mapping"),
    ],
)
async def test_a_secret_that_leads_nowhere_is_a_problem(
    sea: Sea, data: Json | None, message: str
) -> None:
    await sea.bind()
    secret = await sea.above.get(SECRETS, sea.name, "default")
    await sea.above.delete(SECRETS, sea.name, "default", uid=secret.uid)
    if data is not None:
        body = {"metadata": {"name": sea.name, "namespace": "default"}, "data": data}
        await sea.above.create(SECRETS, body)
    async with reading(sea.above) as reader:
        view = await reader.look(sea.name)
    worker = only(view, sea.name).worker
    assert worker.state is WorkerState.UNUSABLE
    assert message in worker.message
    assert f"default/{sea.name}" in worker.message or data is None
    assert data is None or "data.kubeconfig" in worker.message
    assert not view.health.healthy


async def test_a_rotated_secret_is_used_from_the_next_look_on(sea: Sea) -> None:
    await sea.bind()
    stranger = sea.worker.user("stranger").read_bytes()
    async with reading(sea.above) as reader:
        for content, state in (
            (sea.worker.kubeconfig.read_bytes(), WorkerState.ANSWERED),
            (stranger, WorkerState.REFUSED),
            (sea.worker.kubeconfig.read_bytes(), WorkerState.ANSWERED),
        ):
            data = {"kubeconfig": base64.b64encode(content).decode()}
            await sea.above.patch(SECRETS, sea.name, MergePatch({"data": data}), "default")
            view = await reader.look(sea.name)
            assert only(view, sea.name).worker.state is state, view.health


async def test_who_may_not_read_secrets_sees_the_computing_side_and_a_note(sea: Sea) -> None:
    await sea.bind()
    await sea.lend()
    await sea.add_node("a")
    await _allow(sea, "viewer", nodes="", pods="", clusterbindings="cloud.tencent.com")
    async with sea.syncing():
        await until(sea.vnodes)
        client = connect(sea.computing.user("viewer"), cluster="computing")
        try:
            async with reading(client) as reader:
                view = await until(lambda: _connected(reader, sea))
        finally:
            await client.close()
    cluster = only(view, sea.name)
    assert cluster.worker.state is WorkerState.NOT_ALLOWED
    assert len(cluster.nodes) == 1
    assert [(lease.policy, lease.seen) for lease in cluster.leases] == [
        (f"{sea.name}-policy", False)
    ]
    assert view.health.healthy, view.health
    assert [str(note) for note in view.health.notes] == [
        "deployments are not shown: not allowed to list them",
        "leases are not shown: not allowed to list them",
        f"{sea.name}: the worker was not asked: not allowed to read Secret default/{sea.name}",
    ]


async def _connected(reader: Reader, sea: Sea) -> OceanView | None:
    view = await reader.look(sea.name)
    connected = only(view, sea.name).connection.state is ConnectionState.CONNECTED
    return view if connected else None


async def _allow(sea: Sea, user: str, **resources: str) -> None:
    """Let a user list some resources, each of an API group."""
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": ["get", "list"]}
        for resource, group in resources.items()
    ]
    name = f"{sea.name}-{user}"
    await sea.above.create(ROLES, {"metadata": {"name": name}, "rules": rules})
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
    await sea.above.create(ROLE_BINDINGS, body)


async def test_a_name_that_no_binding_has_is_an_error_that_names_those_there_are(sea: Sea) -> None:
    await sea.bind()
    async with reading(sea.above) as reader:
        with pytest.raises(ConfigError, match=f"there are: .*{sea.name}.*got 'nobody'"):
            await reader.look("nobody")


async def test_a_cluster_without_our_kinds_says_so(
    new_cluster: Callable[..., Awaitable[Cluster]],
) -> None:
    client = (await new_cluster()).client()
    try:
        async with reading(client) as reader:
            with pytest.raises(NotFound, match="Kubeocean is not installed"):
                await reader.look()
    finally:
        await client.close()


# --- many


MANY = 1000


@pytest.mark.sweep(sampled=False)
async def test_a_thousand_nodes_are_read_in_few_requests_and_seconds(
    sea: Sea, faults: Faults
) -> None:
    await sea.bind()
    await make_namespace(sea.above, sea.name)
    gate = asyncio.Semaphore(32)

    async def lend(number: int) -> None:
        async with gate:
            node = _node(sea, number)
            await sea.above.create(NODES, node)
            await sea.above.create(PODS, _pod(number, node["metadata"]["name"]), namespace=sea.name)

    async with asyncio.TaskGroup() as group:
        for number in range(MANY):
            group.create_task(lend(number))
    client = sea.computing.client(wrap=faults.wrap)
    try:
        async with reading(client) as reader:
            began = time.monotonic()
            view = await reader.look(sea.name)
            took_s = time.monotonic() - began
    finally:
        await client.close()
        await sea.above.delete_all(NODES, labels=f"kubeocean.io/cluster-binding={sea.name}")
        await sea.above.delete_all(PODS, sea.name, fields="spec.nodeName!=", grace_s=0)
    cluster = only(view, sea.name)
    assert (len(cluster.nodes), cluster.pods.pending) == (MANY, MANY)
    assert str(cluster.resources.used["cpu"]) == str(MANY // 10)
    assert not any(request.writes for request in faults.requests)
    pages = [request for request in faults.requests if "limit" in dict(request.query)]
    assert len(faults.requests) <= 12, [request.target for request in faults.requests]
    assert len(pages) >= 4
    assert took_s < 10, took_s  # a second or two where nothing else runs


def _node(sea: Sea, number: int) -> Json:
    pnode: Json = {"metadata": {"name": f"n{number}", "uid": f"u{number}"}}
    pnode["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    lent = forge.Lent(
        pnode=pnode,
        vnode=f"vnode-{sea.name}-n{number}",
        binding=sea.name,
        cluster_id=sea.cluster_id,
        policy="policy",
        details="policy",
        offered={"cpu": Quantity.whole(4), "pods": Quantity.whole(110)},
        default_taint=True,
        reclaim_taints=(),
        unschedulable=False,
        proxier_ip="10.0.0.1",
        proxier_port=15_000,
        metrics_port=9006,
    )
    body = forge.forge(lent, now="2026-01-01T00:00:00Z")
    del body["metadata"]["finalizers"]
    return body


def _pod(number: int, node: str) -> Json:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "100m"}}}
    return {
        "metadata": {"name": f"p{number}"},
        "spec": {"nodeName": node, "containers": [container]},
    }
