"""Reservations of host ports on two real control planes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest

from kubeocean.api.group import DEFAULT, Domain
from kubeocean.api.ownership import Ids, ownership_labels
from kubeocean.errors import AlreadyExists, Forbidden
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.controller import Done, Stuck
from kubeocean.runtime.kinds import (
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    Node,
    Pod,
)
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.nodes.host_port_forge import RESERVATION_PODS, ReservationPod, ports_of
from kubeocean.syncer.nodes.host_ports import HostPorts
from kubeocean.worker_access.identity import identity_of
from support.controller_env import ControllerEnv, quiet
from support.etcd import half_delete
from support.faults import Faults, watches
from support.wait import until

NAMESPACE = "kubeocean-fake"
GO_LABELS = {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/hostport-fake-pod": "true"}


@pytest.fixture
async def env(cluster: Cluster, client: Client, worker: Cluster) -> AsyncIterator[ControllerEnv]:
    worker_api = worker.client()
    # The worker has no controller manager, which would create it.
    with suppress(AlreadyExists):
        await worker_api.create(
            SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace="default"
        )
    yield ControllerEnv(cluster, worker, client, worker_api)
    await worker_api.close()


@pytest.fixture
async def reservation_namespace(client: Client) -> None:
    """Create the namespace of reservations, ready for use."""
    await _make_namespace(client, NAMESPACE)


async def _make_namespace(client: Client, name: str) -> None:
    with suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": name}})

    async def usable() -> bool:
        try:
            await client.create(PODS, pod_body("probe", "", 0), namespace=name, dry_run=True)
        except Forbidden:
            return False
        return True

    await until(usable)


def pod_body(name: str, node: str, *ports: int, **metadata: object) -> Json:
    listed = [{"containerPort": port, "hostPort": port} for port in ports if port]
    container = {"name": "c", "image": "none", "ports": [*listed, {"containerPort": 1}]}
    spec: Json = {"containers": [container], "tolerations": [{"operator": "Exists"}]}
    return {
        "metadata": {"name": name, **metadata},
        "spec": spec | ({"nodeName": node} if node else {}),
    }


async def place(env: ControllerEnv, pnode: str, *ports: int, **metadata: object) -> Pod:
    """Create a pod on a node of the worker."""
    body = pod_body(f"{env.name}-{uuid.uuid4().hex[:6]}", pnode, *ports, **metadata)
    return await env.worker_api.create(PODS, body, namespace="default")


async def remove(env: ControllerEnv, pod: Pod) -> None:
    await env.worker_api.delete(PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=0)


async def reservations(env: ControllerEnv, pnode: str) -> list[ReservationPod]:
    """Return all reservations on the virtual node, of any owner."""
    fields = f"spec.nodeName={env.vnode(pnode)}"
    namespace = env.domain.host_port_namespace
    return (await env.computing_api.list(RESERVATION_PODS, namespace, fields=fields)).items


async def reserves(env: ControllerEnv, pnode: str, *ports: int) -> ReservationPod:
    """Return the only reservation, after checking its ports, status and labels."""
    present = await reservations(env, pnode)
    assert [sorted(port.number for port in ports_of(pod)) for pod in present] == [sorted(ports)]
    (pod,) = present
    assert pod.status.phase == "Running"
    conditions = {c.type: c.status for c in pod.status.conditions or ()}
    assert conditions == {"PodScheduled": "True"}
    assert pod.labels["kubeocean.io/cluster-binding"] == env.name
    return pod


async def is_free(env: ControllerEnv, pnode: str) -> bool:
    return not await reservations(env, pnode)


def writes(faults: Faults) -> list[str]:
    return [f"{r.method} {r.path.rpartition('/')[2]}" for r in faults.requests if r.writes]


async def lent(env: ControllerEnv, name: str = "n") -> tuple[str, Node]:
    pnode = f"{env.name}-{name}"
    return pnode, await env.lend(pnode)


@pytest.mark.usefixtures("reservation_namespace")
async def test_ports_that_others_hold_are_reserved(env: ControllerEnv) -> None:
    pnode, vnode = await lent(env)
    await place(env, pnode, 80, 443)
    await place(env, pnode, 9100)
    await place(env, pnode)  # requests none
    await place(env, pnode, 99, labels={"kubeocean.io/managed-by": "kubeocean"})  # our pod
    await place(env, f"{env.name}-other", 98)
    faults = Faults()
    async with env.syncing(HostPorts, computing_api=faults) as hostports:
        await until(lambda: reserves(env, pnode, 80, 443, 9100))
        await quiet(faults)
        held = [pod for pod in hostports.holders.items() if pod.name.startswith(env.name)]
        assert len(held) == 3  # pods without ports are not kept
    (pod,) = await reservations(env, pnode)
    assert [owner.uid for owner in pod.metadata.owner_references or ()] == [vnode.uid]
    assert writes(faults) == ["POST pods", "PATCH status"]


@pytest.mark.usefixtures("reservation_namespace")
async def test_ports_that_pods_of_other_bindings_hold_are_reserved(env: ControllerEnv) -> None:
    pnode, _ = await lent(env)
    computing_id = await identity_of(env.computing_api)
    owners = {
        80: Ids(env.name, env.cluster_id, computing_id),  # ours
        81: Ids(f"{env.name}b", f"{env.cluster_id}b", computing_id),
        82: Ids(env.name, env.cluster_id, "another-cluster"),
    }
    async with env.syncing(HostPorts):
        for port, ids in owners.items():
            await place(env, pnode, port, labels=ownership_labels(ids, DEFAULT))
        await until(lambda: reserves(env, pnode, 81, 82))


@pytest.mark.usefixtures("reservation_namespace")
async def test_the_scheduler_sees_the_ports_and_users_cannot_take_them(
    env: ControllerEnv,
) -> None:
    pnode, vnode = await lent(env)
    await place(env, pnode, 80)
    async with env.syncing(HostPorts):
        await until(lambda: reserves(env, pnode, 80))
        body = {"status": {"allocatable": {"cpu": "1", "pods": "10"}}}
        await env.computing_api.patch(NODES, vnode.name, MergePatch(body), subresource="status")
        affinity = {"kubernetes.io/hostname": vnode.name}
        for name, port in (("held", 80), ("free", 81)):
            pod = pod_body(f"{env.name}-{name}", "", port)
            pod["spec"]["nodeSelector"] = affinity
            await env.computing_api.create(PODS, pod, namespace="default")

        async def placed(name: str) -> str:
            return (
                await env.computing_api.get(PODS, f"{env.name}-{name}", "default")
            ).spec.node_name

        async def refused() -> bool:
            fields = f"involvedObject.name={env.name}-held,reason=FailedScheduling"
            events = (await env.computing_api.list(EVENTS, "default", fields=fields)).items
            return any("free ports" in event.message for event in events)

        assert await until(lambda: placed("free")) == vnode.name
        await until(refused)
        assert await placed("held") == ""


@pytest.mark.usefixtures("reservation_namespace")
async def test_finished_pods_and_duplicates_do_not_count(env: ControllerEnv) -> None:
    pnode, _ = await lent(env)
    first, second = await place(env, pnode, 80), await place(env, pnode, 80)
    async with env.syncing(HostPorts):
        await until(lambda: reserves(env, pnode, 80))
        await finish(env, first, "Succeeded")
        third = await place(env, pnode, 81)
        await until(lambda: reserves(env, pnode, 80, 81))
        await finish(env, second, "Failed")
        await until(lambda: reserves(env, pnode, 81))
        await remove(env, third)
        await until(lambda: is_free(env, pnode))


async def finish(env: ControllerEnv, pod: Pod, phase: str) -> None:
    patch = MergePatch({"status": {"phase": phase}})
    await env.worker_api.patch(PODS, pod.name, patch, pod.namespace, subresource="status")


@pytest.mark.usefixtures("reservation_namespace")
async def test_no_port_is_free_while_a_reservation_is_replaced(env: ControllerEnv) -> None:
    pnode, _ = await lent(env)
    await place(env, pnode, 80)
    faults = Faults()
    async with env.syncing(HostPorts, computing_api=faults):
        old = await until(lambda: reserves(env, pnode, 80))
        await place(env, pnode, 81)
        await until(lambda: reserves(env, pnode, 80, 81))
    created = ["POST pods", "PATCH status"]
    assert writes(faults) == [*created, *created, f"DELETE {old.name}"]


@pytest.mark.usefixtures("reservation_namespace")
async def test_a_second_run_writes_nothing(env: ControllerEnv) -> None:
    names = []
    for n in range(3):
        pnode, _ = await lent(env, f"n{n}")
        names.append(pnode)
        await place(env, pnode, 80 + n)
    async with env.syncing(HostPorts):
        for n, pnode in enumerate(names):
            await until(lambda n=n, pnode=pnode: reserves(env, pnode, 80 + n))
    faults = Faults()
    async with env.syncing(HostPorts, computing_api=faults, worker_api=faults) as hostports:
        await until(lambda: hostports.holders.has_synced and hostports.reservations.has_synced)
        await quiet(faults)
        for pnode in names:
            assert await hostports.reconcile(Key("", env.vnode(pnode))) == Done()
    assert not writes(faults)
    assert all(watches(request) for request in faults.requests)


async def test_a_worker_without_host_ports_costs_nothing_but_the_watches(
    env: ControllerEnv,
) -> None:
    pnode, _ = await lent(env)
    faults = Faults()
    async with env.syncing(HostPorts, computing_api=faults, worker_api=faults):
        await place(env, pnode)
        await quiet(faults)
    assert all(watches(request) for request in faults.requests)


@pytest.mark.usefixtures("reservation_namespace")
async def test_changes_of_a_pod_that_keeps_its_ports_cause_no_write(env: ControllerEnv) -> None:
    pnode, _ = await lent(env)
    pod = await place(env, pnode, 80)
    faults = Faults()
    async with env.syncing(HostPorts, computing_api=faults):
        await until(lambda: reserves(env, pnode, 80))
        for n in range(5):
            patch = MergePatch({"metadata": {"labels": {"n": str(n)}}})
            await env.worker_api.patch(PODS, pod.name, patch, pod.namespace)
        await finish(env, pod, "Running")
        await quiet(faults)
    assert len(writes(faults)) == 2


async def test_the_namespace_is_created_if_it_is_missing(env: ControllerEnv) -> None:
    product = f"x{uuid.uuid4().hex[:8]}"
    env = replace(env, domain=Domain(f"{product}.io"))
    names = []
    for n in range(3):
        pnode, _ = await lent(env, f"n{n}")
        names.append(pnode)
        await place(env, pnode, 80)
    async with env.syncing(HostPorts):
        for pnode in names:
            await until(lambda pnode=pnode: reservations(env, pnode))
    namespace = await env.computing_api.get(NAMESPACES, f"{product}-fake")
    assert namespace.labels[f"{product}.io/managed-by"] == product
    assert namespace.labels["pod-security.kubernetes.io/enforce"] == "privileged"


@pytest.mark.usefixtures("reservation_namespace")
async def test_a_reservation_is_deleted_when_its_virtual_node_is_deleted(
    env: ControllerEnv,
) -> None:
    pnode = f"{env.name}-n"
    vnode = await env.lend(pnode, finalizer=True)
    await place(env, pnode, 80)
    async with env.syncing(HostPorts):
        await until(lambda: reserves(env, pnode, 80))
        await env.take_back(vnode)
        await until(lambda: is_free(env, pnode))
        await place(env, pnode, 81)
        await until(lambda: env.seen(NODES, vnode.name))
    assert await is_free(env, pnode)
    await env.computing_api.patch(NODES, vnode.name, MergePatch({"metadata": {"finalizers": []}}))


@pytest.mark.usefixtures("reservation_namespace")
async def test_a_reservation_is_garbage_collected_with_its_virtual_node_without_a_syncer(
    env: ControllerEnv,
) -> None:
    pnode, vnode = await lent(env)
    await place(env, pnode, 80)
    async with env.syncing(HostPorts):
        await until(lambda: reserves(env, pnode, 80))
    await env.take_back(vnode)
    await until(lambda: is_free(env, pnode), within=150)


@pytest.mark.usefixtures("reservation_namespace")
async def test_a_virtual_node_that_was_replaced_gets_its_own_reservation(
    env: ControllerEnv,
) -> None:
    pnode, vnode = await lent(env)
    await place(env, pnode, 80)
    async with env.syncing(HostPorts):
        old = await until(lambda: reserves(env, pnode, 80))
    await env.take_back(vnode)
    again = await env.lend(pnode)
    async with env.syncing(HostPorts):

        async def renewed() -> bool:
            pod = await reserves(env, pnode, 80)
            owners = [owner.uid for owner in pod.metadata.owner_references or ()]
            return pod.uid != old.uid and owners == [again.uid]

        await until(renewed)


@pytest.mark.usefixtures("reservation_namespace")
async def test_a_reservation_that_users_delete_or_finish_is_created_again(
    env: ControllerEnv,
) -> None:
    pnode, _ = await lent(env)
    await place(env, pnode, 80)
    async with env.syncing(HostPorts):
        pod = await until(lambda: reserves(env, pnode, 80))
        await env.computing_api.delete(PODS, pod.name, NAMESPACE, uid=pod.uid)

        async def again() -> bool:
            return (await reserves(env, pnode, 80)).uid != pod.uid

        await until(again)
        (pod,) = await reservations(env, pnode)
        patch = MergePatch({"status": {"phase": "Failed"}})
        await env.computing_api.patch(PODS, pod.name, patch, NAMESPACE, subresource="status")
        await until(again)


@pytest.mark.usefixtures("reservation_namespace")
async def test_a_reservation_that_a_finalizer_holds_is_waited_for(env: ControllerEnv) -> None:
    pnode, _ = await lent(env)
    await place(env, pnode, 80)
    faults = Faults()
    async with env.syncing(HostPorts, computing_api=faults):
        pod = await until(lambda: reserves(env, pnode, 80))
        held = MergePatch({"metadata": {"finalizers": ["example.com/keep"]}})
        await env.computing_api.patch(PODS, pod.name, held, NAMESPACE)
        await env.computing_api.delete(PODS, pod.name, NAMESPACE, uid=pod.uid)
        await quiet(faults)
        await env.computing_api.patch(
            PODS, pod.name, MergePatch({"metadata": {"finalizers": []}}), NAMESPACE
        )
        await until(lambda: reserves(env, pnode, 80))


@pytest.mark.usefixtures("reservation_namespace")
async def test_a_reservation_whose_deletion_was_cut_short_is_deleted_again(
    env: ControllerEnv,
) -> None:
    pnode, _ = await lent(env)
    await place(env, pnode, 80)
    old = await place_reservation(env, pnode, 70)
    await half_delete(env.computing, env.computing_api, old.name, NAMESPACE)
    async with env.syncing(HostPorts):
        pod = await until(lambda: reserves(env, pnode, 80))
    await half_delete(env.computing, env.computing_api, pod.name, NAMESPACE)

    async def created_again() -> bool:
        return (await reserves(env, pnode, 80)).uid != pod.uid

    async with env.syncing(HostPorts):
        await until(created_again)


# Reservations of others


async def place_reservation(env: ControllerEnv, pnode: str, *ports: int, **labels: str) -> Pod:
    """Create a reservation of the earlier implementation: no binding, a random name."""
    body = pod_body("", env.vnode(pnode), *ports)
    listed = [
        {"name": f"port-{n}", "containerPort": p, "hostPort": p, "hostIP": "0.0.0.0"}
        for n, p in enumerate(ports)
    ]
    body["spec"]["containers"][0]["ports"] = listed
    body["metadata"] = {"generateName": "fake-pod-for-hostport-", "labels": GO_LABELS | labels}
    return await env.computing_api.create(PODS, body, namespace=NAMESPACE)


@pytest.mark.usefixtures("reservation_namespace")
async def test_a_reservation_of_the_earlier_implementation_that_fits_is_adopted(
    env: ControllerEnv,
) -> None:
    pnode, vnode = await lent(env)
    await place(env, pnode, 80)
    first = await place_reservation(env, pnode, 80)
    second = await place_reservation(env, pnode, 80)
    faults = Faults()
    async with env.syncing(HostPorts, computing_api=faults):
        pod = await until(lambda: reserves(env, pnode, 80))
        assert pod.uid in (first.uid, second.uid)
        await quiet(faults)
        assert sorted(word.partition(" ")[0] for word in writes(faults)) == ["DELETE", "PATCH"]
        await env.take_back(vnode)
        await until(lambda: is_free(env, pnode))


@pytest.mark.usefixtures("reservation_namespace")
async def test_a_reservation_of_the_earlier_implementation_that_does_not_fit_is_replaced(
    env: ControllerEnv,
) -> None:
    pnode, _ = await lent(env)
    pod = await place(env, pnode, 80)
    await place_reservation(env, pnode, 80, 81)
    async with env.syncing(HostPorts):
        await until(lambda: reserves(env, pnode, 80))
        await remove(env, pod)
        await until(lambda: is_free(env, pnode))
        late = await place_reservation(env, pnode, 82)  # of a leader of the earlier implementation
        await until(lambda: is_free(env, pnode))
        assert await env.seen(PODS, late.name, NAMESPACE) is None


@pytest.mark.usefixtures("reservation_namespace")
async def test_reservations_of_other_bindings_and_pods_of_users_are_left_alone(
    env: ControllerEnv,
) -> None:
    other = env.neighbour()
    pnode, vnode = await lent(env)
    await other.lend(pnode)
    await place(env, pnode, 80)
    foreign = await place_reservation(env, pnode, 7, **{"kubeocean.io/cluster-binding": "other"})
    unclaimed = await place_reservation(env.neighbour(), pnode, 8)
    plain = await env.computing_api.create(
        PODS, pod_body(f"{env.name}-user", env.vnode(pnode), 9), namespace=NAMESPACE
    )

    async def ours(of: ControllerEnv) -> list[ReservationPod]:
        present = await reservations(of, pnode)
        return [p for p in present if p.labels.get("kubeocean.io/cluster-binding") == of.name]

    async with env.syncing(HostPorts), other.syncing(HostPorts):
        await until(lambda: ours(env))
        await until(lambda: reserves(other, pnode, 80))
        (kept,) = await ours(other)
        await env.take_back(vnode)

        async def gone() -> bool:
            return not await ours(env)

        await until(gone)
        assert [p.resource_version for p in await ours(other)] == [kept.resource_version]
    names = {pod.name for pod in (foreign, unclaimed, plain)}
    touched = [
        request
        for request in env.computing.audit.requests(user_agent="kubeocean")
        if request.name in names and request.verb not in ("get", "list", "watch", "create")
    ]
    assert not touched


@pytest.mark.usefixtures("reservation_namespace")
async def test_a_foreign_pod_of_our_name_is_left_alone(env: ControllerEnv) -> None:
    pnode, vnode = await lent(env)
    held = await place(env, pnode, 80)
    async with env.syncing(HostPorts):
        pod = await until(lambda: reserves(env, pnode, 80))
        await remove(env, held)
        await until(lambda: is_free(env, pnode))
    foreign = await env.computing_api.create(PODS, pod_body(pod.name, "", 1), namespace=NAMESPACE)
    await place(env, pnode, 80)
    async with env.syncing(HostPorts) as hostports:
        (event,) = await until(lambda: env.events_about(vnode.name, "NameTaken"))
        assert event.involved_object.uid == vnode.uid
        assert isinstance(await hostports.reconcile(vnode.key), Stuck)
        stored = await env.computing_api.get(PODS, pod.name, NAMESPACE)
        assert (stored.uid, stored.labels) == (foreign.uid, {})
        await env.computing_api.delete(PODS, pod.name, NAMESPACE, uid=foreign.uid, grace_s=0)
        await until(lambda: reserves(env, pnode, 80))


# Faults


@pytest.mark.usefixtures("reservation_namespace")
async def test_nothing_is_decided_while_the_worker_does_not_answer(env: ControllerEnv) -> None:
    pnode, _ = await lent(env)
    gone, vnode = await lent(env, "gone")
    pod = await place(env, pnode, 80)
    await place(env, gone, 80)
    computing_api, worker_api = Faults(), Faults()
    async with env.syncing(
        HostPorts, computing_api=computing_api, worker_api=worker_api
    ) as hostports:
        await until(lambda: reserves(env, pnode, 80))
        await until(lambda: reserves(env, gone, 80))
        worker_api.partition()
        await until(lambda: not hostports.clusters.worker_health.answers)
        await remove(env, pod)
        await env.take_back(vnode)
        await until(lambda: is_free(env, gone))
        await quiet(computing_api)
        assert await reserves(env, pnode, 80)
        worker_api.rejoin()
        await until(lambda: is_free(env, pnode))


@pytest.mark.usefixtures("reservation_namespace")
@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 10))
async def test_a_crash_after_the_nth_write_changes_nothing(env: ControllerEnv, n: int) -> None:
    kept, _ = await lent(env, "kept")
    removed, vnode = await lent(env, "removed")
    await place(env, kept, 80)
    await place(env, removed, 80)
    await place_reservation(env, kept, 70)
    async with env.crashing(HostPorts, n) as crash:
        for pnode in (kept, removed):
            await crash.or_until(lambda pnode=pnode: reserves(env, pnode, 80))
        await place(env, kept, 81)
        await crash.or_until(lambda: reserves(env, kept, 80, 81))
        await env.take_back(vnode)
        await crash.or_until(lambda: is_free(env, removed))
    faults = Faults()
    async with env.syncing(HostPorts, computing_api=faults):
        await until(lambda: reserves(env, kept, 80, 81))
        await until(lambda: is_free(env, removed), within=150)
        await quiet(faults)


@pytest.mark.usefixtures("reservation_namespace")
async def test_lagging_and_repeating_watches_change_nothing(env: ControllerEnv) -> None:
    pnode, _ = await lent(env)
    computing_api, worker_api = Faults(), Faults()
    for faults in (computing_api, worker_api):
        faults.lag(0.3)
        faults.repeat(1)
    async with env.syncing(HostPorts, computing_api=computing_api, worker_api=worker_api):
        await place(env, pnode, 80)
        await until(lambda: reserves(env, pnode, 80))
        await place(env, pnode, 81)
        await until(lambda: reserves(env, pnode, 80, 81))
        computing_api.rewind(20)
        worker_api.rewind(20)
        await quiet(computing_api)
    assert len(writes(computing_api)) == 5


@pytest.mark.usefixtures("reservation_namespace")
async def test_two_leaders_end_where_one_does(env: ControllerEnv) -> None:
    pnode, _ = await lent(env)
    first, second = Faults(), Faults()
    async with (
        env.syncing(HostPorts, computing_api=first),
        env.syncing(HostPorts, computing_api=second),
    ):
        await place(env, pnode, 80)
        await until(lambda: reserves(env, pnode, 80))
        await place(env, pnode, 81)
        await until(lambda: reserves(env, pnode, 80, 81))
        await quiet(first, second)
