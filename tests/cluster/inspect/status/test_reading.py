"""Tests of the view of real control planes."""

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

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.errors import ConfigError, NotFound
from kubeocean.inspect.snapshot import WorkerState
from kubeocean.inspect.status.model import (
    ClusterView,
    ConnectionState,
    InstallationView,
    LeaseState,
    NodeState,
)
from kubeocean.inspect.status.reading import StatusReader
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch, connect
from kubeocean.runtime.clock import RealClock, instant_of
from kubeocean.runtime.kinds import NODES, PODS, SECRETS
from kubeocean.runtime.objects import Json, Resource, Untyped
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.nodes import forge
from support.binding_env import BindingEnv
from support.faults import Faults
from support.pod_env import make_namespace
from support.wait import until

RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", False, Untyped)
ROLE_BINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, Untyped)


@asynccontextmanager
async def reading(computing: Client, **options: Any) -> AsyncIterator[StatusReader]:
    reader = StatusReader(computing, **options)
    try:
        yield reader
    finally:
        await reader.close()


@contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    """Pause its API server, with all its connections."""
    cluster.pause("kube-apiserver")
    try:
        yield
    finally:
        cluster.resume("kube-apiserver")


def only(view: InstallationView, name: str) -> ClusterView:
    (cluster,) = [cluster for cluster in view.clusters if cluster.name == name]
    return cluster


async def test_a_view_shows_lent_and_used_resources(env: BindingEnv) -> None:
    await env.bind()
    policy = await env.lend(resourceLimits=[{"resource": "cpu", "percent": 50}])
    for name in ("a", "b"):
        await env.add_node(name)
    await make_namespace(env.computing_api, env.name)
    async with env.syncing(), reading(env.computing_api) as reader:
        vnodes = await until(lambda: _two(env))
        resources = {"requests": {"cpu": "1500m", "memory": "2Gi"}}
        container = {"name": "c", "image": "none", "resources": resources}
        await env.create_bound_pod(env.name, "web", vnodes[0], containers=[container])

        async def settled() -> ClusterView:
            cluster = only(await reader.look(env.name), env.name)
            assert cluster.connection.state is ConnectionState.CONNECTED
            assert cluster.pods.running == 1
            assert [lease.nodes for lease in cluster.leases] == [2]
            return cluster

        cluster = await until(settled)
        view = await reader.look(env.name)
        assert view.health.healthy, view.health
    assert (cluster.worker.state, cluster.cluster_id) == (WorkerState.ANSWERED, env.cluster_id)
    assert cluster.connection.since is not None
    assert [node.name for node in cluster.nodes] == vnodes
    node = cluster.nodes[0]
    assert (node.physical, node.policy, node.ready) == (f"{env.name}-a", policy, "True")
    assert {name: str(amount) for name, amount in node.resources.lent.items()} == {
        "cpu": "4",
        "memory": "32Gi",
        "pods": "110",
    }
    assert str(node.resources.free["cpu"]) == "2500m"
    assert str(cluster.resources.free["memory"]) == "62Gi"
    assert (cluster.leases[0].state, cluster.leases[0].limits) == (LeaseState.OPEN, ("cpu=50%",))


async def _two(env: BindingEnv) -> list[str]:
    names = [vnode.name for vnode in await env.vnodes()]
    return names if len(names) == 2 else []


async def test_a_closed_window_shows_when_it_opens(env: BindingEnv) -> None:
    now = RealClock().now()
    opens = (now + timedelta(hours=3)).strftime("%H:%M")
    closes = (now + timedelta(hours=4)).strftime("%H:%M")
    await env.bind()
    policy = await env.lend(timeWindows=[{"start": opens, "end": closes}], timeZone="UTC")
    await env.add_node("a")
    async with env.syncing(), reading(env.computing_api) as reader:

        async def closed() -> ClusterView:
            cluster = only(await reader.look(env.name), env.name)
            assert [node.state for node in cluster.nodes] == [NodeState.CLOSED]
            return cluster

        cluster = await until(closed)
        transition = await until(lambda: _transition(env, policy))
    (lease,) = cluster.leases
    assert lease.state is LeaseState.CLOSED
    assert lease.next_edge is not None
    assert lease.next_edge.opens
    assert lease.next_edge.time == instant_of(transition)
    assert f"{lease.next_edge.local:%H:%M}" == opens
    assert set(map(str, cluster.resources.lent.values())) == {"0"}


async def _transition(env: BindingEnv, policy: str) -> str | None:
    return (await env.status(policy)).next_transition_time


async def test_silent_workers_do_not_delay_a_view(
    env: BindingEnv, new_cluster: Callable[..., Awaitable[Cluster]]
) -> None:
    still = await new_cluster(name="still")
    dead = [_with_worker(env, still) for _ in range(4)]
    await env.bind()
    await env.lend()
    for each in dead:
        await each.bind()
    async with reading(env.computing_api, patience_s=3.0) as reader:
        await reader.look()  # the Secrets are read, and connections made
        with stopped(still):
            began = time.monotonic()
            view = await reader.look()
            took_s = time.monotonic() - began
    assert took_s < 3 * 3.0, took_s  # one after the other they would take four times as long
    assert only(view, env.name).worker.state is WorkerState.ANSWERED
    for each in dead:
        shown = only(view, each.name).worker
        assert (shown.state, shown.message) == (WorkerState.SILENT, "no answer within 3 s")
    assert not view.health.healthy


def _with_worker(env: BindingEnv, worker: Cluster) -> BindingEnv:
    return replace(env.neighbour(), worker=worker)


async def test_the_report_of_a_syncer_that_lost_its_worker_is_a_problem(env: BindingEnv) -> None:
    await env.bind()
    lost = {
        "type": "Connected",
        "status": "False",
        "reason": "WorkerUnreachable",
        "message": "The worker cluster has not answered",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = MergePatch({"status": {"conditions": [lost]}})
    await env.computing_api.patch(CLUSTER_BINDINGS, env.name, status, subresource="status")
    async with reading(env.computing_api) as reader:
        view = await reader.look(env.name)
    assert [str(each) for each in view.health.problems] == [
        f"{env.name}: The worker cluster has not answered"
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "not found"),
        ({}, "is missing or empty"),
        ({"kubeconfig": "bm9uc2Vuc2U="}, "must be a mapping"),
    ],
)
async def test_a_secret_without_a_usable_kubeconfig_is_a_problem(
    env: BindingEnv, data: Json | None, message: str
) -> None:
    await env.bind()
    secret = await env.computing_api.get(SECRETS, env.name, "default")
    await env.computing_api.delete(SECRETS, env.name, "default", uid=secret.uid)
    if data is not None:
        body = {"metadata": {"name": env.name, "namespace": "default"}, "data": data}
        await env.computing_api.create(SECRETS, body)
    async with reading(env.computing_api) as reader:
        view = await reader.look(env.name)
    worker = only(view, env.name).worker
    assert worker.state is WorkerState.UNUSABLE
    assert message in worker.message
    assert f"default/{env.name}" in worker.message or data is None
    assert data is None or "data.kubeconfig" in worker.message
    assert not view.health.healthy


async def test_a_rotated_secret_is_used_from_the_next_read_on(env: BindingEnv) -> None:
    await env.bind()
    stranger = env.worker.user("stranger").read_bytes()
    async with reading(env.computing_api) as reader:
        for content, state in (
            (env.worker.kubeconfig.read_bytes(), WorkerState.ANSWERED),
            (stranger, WorkerState.REFUSED),
            (env.worker.kubeconfig.read_bytes(), WorkerState.ANSWERED),
        ):
            data = {"kubeconfig": base64.b64encode(content).decode()}
            await env.computing_api.patch(SECRETS, env.name, MergePatch({"data": data}), "default")
            view = await reader.look(env.name)
            assert only(view, env.name).worker.state is state, view.health


async def test_a_user_without_the_right_to_secrets_sees_the_computing_cluster_and_a_note(
    env: BindingEnv,
) -> None:
    await env.bind()
    await env.lend()
    await env.add_node("a")
    await _allow(env, "viewer", nodes="", pods="", clusterbindings="cloud.tencent.com")
    async with env.syncing():
        await until(env.vnodes)
        client = connect(env.computing.user("viewer"), cluster="computing")
        try:
            async with reading(client) as reader:
                view = await until(lambda: _connected(reader, env))
        finally:
            await client.close()
    cluster = only(view, env.name)
    assert cluster.worker.state is WorkerState.NOT_ALLOWED
    assert len(cluster.nodes) == 1
    assert [(lease.policy, lease.seen) for lease in cluster.leases] == [
        (f"{env.name}-policy", False)
    ]
    assert view.health.healthy, view.health
    assert [str(note) for note in view.health.notes] == [
        "deployments are not shown: not allowed to list them",
        "leases are not shown: not allowed to list them",
        f"{env.name}: the worker was not read: not allowed to read Secret default/{env.name}",
    ]


async def _connected(reader: StatusReader, env: BindingEnv) -> InstallationView | None:
    view = await reader.look(env.name)
    connected = only(view, env.name).connection.state is ConnectionState.CONNECTED
    return view if connected else None


async def _allow(env: BindingEnv, user: str, **resources: str) -> None:
    """Let a user list some resources, each of an API group."""
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": ["get", "list"]}
        for resource, group in resources.items()
    ]
    name = f"{env.name}-{user}"
    await env.computing_api.create(ROLES, {"metadata": {"name": name}, "rules": rules})
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
    await env.computing_api.create(ROLE_BINDINGS, body)


async def test_a_name_that_no_binding_has_is_an_error_with_the_names_of_bindings(
    env: BindingEnv,
) -> None:
    await env.bind()
    async with reading(env.computing_api) as reader:
        with pytest.raises(ConfigError, match=f"there are: .*{env.name}.*got 'unknown'"):
            await reader.look("unknown")


async def test_a_cluster_without_our_kinds_is_an_error_that_names_the_installation(
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
    env: BindingEnv, faults: Faults
) -> None:
    await env.bind()
    await make_namespace(env.computing_api, env.name)
    gate = asyncio.Semaphore(32)

    async def lend(number: int) -> None:
        async with gate:
            node = _node(env, number)
            await env.computing_api.create(NODES, node)
            await env.computing_api.create(
                PODS, _pod(number, node["metadata"]["name"]), namespace=env.name
            )

    async with asyncio.TaskGroup() as group:
        for number in range(MANY):
            group.create_task(lend(number))
    client = env.computing.client(wrap=faults.wrap)
    try:
        async with reading(client) as reader:
            began = time.monotonic()
            view = await reader.look(env.name)
            took_s = time.monotonic() - began
    finally:
        await client.close()
        await env.computing_api.delete_all(NODES, labels=f"kubeocean.io/cluster-binding={env.name}")
        await env.computing_api.delete_all(PODS, env.name, fields="spec.nodeName!=", grace_s=0)
    cluster = only(view, env.name)
    assert (len(cluster.nodes), cluster.pods.pending) == (MANY, MANY)
    assert str(cluster.resources.used["cpu"]) == str(MANY // 10)
    assert not any(request.writes for request in faults.requests)
    pages = [request for request in faults.requests if "limit" in dict(request.query)]
    assert len(faults.requests) <= 12, [request.target for request in faults.requests]
    assert len(pages) >= 4
    assert took_s < 10, took_s  # a second or two where nothing else runs


def _node(env: BindingEnv, number: int) -> Json:
    pnode: Json = {"metadata": {"name": f"n{number}", "uid": f"u{number}"}}
    pnode["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    lent = forge.LentNode(
        pnode=pnode,
        vnode=f"vnode-{env.name}-n{number}",
        binding=env.name,
        cluster_id=env.cluster_id,
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
