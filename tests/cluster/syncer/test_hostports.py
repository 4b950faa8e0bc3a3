"""Reservations of host ports on two real control planes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest

from etcd import half_delete
from kubeocean.api.group import DEFAULT, Domain
from kubeocean.api.ownership import Ids, ownership
from kubeocean.bound.identities import identity_of
from kubeocean.errors import AlreadyExists, Forbidden
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Faults, watches
from kubeocean.runtime.client import Client
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
from kubeocean.runtime.outcomes import Done, Stuck
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.bottomup.hostports import HostPorts
from kubeocean.syncer.forge.hostports import RESERVATION_PODS, ReservationPod, ports_of
from straits import Strait, quiet
from waiting import until

FAKE = "kubeocean-fake"
GO_LABELS = {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/hostport-fake-pod": "true"}


@pytest.fixture
async def strait(cluster: Cluster, client: Client, worker: Cluster) -> AsyncIterator[Strait]:
    below = worker.client()
    # The worker here has no controllers; they would do this.
    with suppress(AlreadyExists):
        await below.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace="default")
    yield Strait(cluster, worker, client, below)
    await below.close()


@pytest.fixture
async def fake(client: Client) -> None:
    """The namespace of reservations, ready for use."""
    await _make_namespace(client, FAKE)


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


async def place(strait: Strait, pnode: str, *ports: int, **metadata: object) -> Pod:
    """A pod on a node of the worker."""
    body = pod_body(f"{strait.name}-{uuid.uuid4().hex[:6]}", pnode, *ports, **metadata)
    return await strait.below.create(PODS, body, namespace="default")


async def lift(strait: Strait, pod: Pod) -> None:
    await strait.below.delete(PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=0)


async def reservations(strait: Strait, pnode: str) -> list[ReservationPod]:
    """All that is on the virtual node, whoever made it."""
    fields = f"spec.nodeName={strait.vnode(pnode)}"
    namespace = strait.domain.host_port_namespace
    return (await strait.above.list(RESERVATION_PODS, namespace, fields=fields)).items


async def reserves(strait: Strait, pnode: str, *ports: int) -> ReservationPod:
    """There is exactly one reservation, of exactly these ports, and it is well."""
    found = await reservations(strait, pnode)
    assert [sorted(port.number for port in ports_of(pod)) for pod in found] == [sorted(ports)]
    (pod,) = found
    assert pod.status.phase == "Running"
    conditions = {c.type: c.status for c in pod.status.conditions or ()}
    assert conditions == {"PodScheduled": "True"}
    assert pod.labels["kubeocean.io/cluster-binding"] == strait.name
    return pod


async def free(strait: Strait, pnode: str) -> bool:
    return not await reservations(strait, pnode)


def writes(faults: Faults) -> list[str]:
    return [f"{r.method} {r.path.rpartition('/')[2]}" for r in faults.requests if r.writes]


async def lent(strait: Strait, name: str = "n") -> tuple[str, Node]:
    pnode = f"{strait.name}-{name}"
    return pnode, await strait.lend(pnode)


@pytest.mark.usefixtures("fake")
async def test_ports_that_others_hold_are_reserved(strait: Strait) -> None:
    pnode, vnode = await lent(strait)
    await place(strait, pnode, 80, 443)
    await place(strait, pnode, 9100)
    await place(strait, pnode)  # asks for none
    await place(strait, pnode, 99, labels={"kubeocean.io/managed-by": "kubeocean"})  # our guest
    await place(strait, f"{strait.name}-other", 98)
    faults = Faults()
    async with strait.syncing(HostPorts, above=faults) as hostports:
        await until(lambda: reserves(strait, pnode, 80, 443, 9100))
        await quiet(faults)
        held = [pod for pod in hostports.holders.items() if pod.name.startswith(strait.name)]
        assert len(held) == 3  # what holds no port is not even kept
    (pod,) = await reservations(strait, pnode)
    assert [owner.uid for owner in pod.metadata.owner_references or ()] == [vnode.uid]
    assert writes(faults) == ["POST pods", "PATCH status"]


@pytest.mark.usefixtures("fake")
async def test_ports_that_pods_of_other_bindings_hold_are_reserved(strait: Strait) -> None:
    pnode, _ = await lent(strait)
    here = await identity_of(strait.above)
    whose = {
        80: Ids(strait.name, strait.cluster_id, here),  # ours
        81: Ids(f"{strait.name}b", f"{strait.cluster_id}b", here),
        82: Ids(strait.name, strait.cluster_id, "elsewhere"),
    }
    async with strait.syncing(HostPorts):
        for port, ids in whose.items():
            await place(strait, pnode, port, labels=ownership(ids, DEFAULT))
        await until(lambda: reserves(strait, pnode, 81, 82))


@pytest.mark.usefixtures("fake")
async def test_the_scheduler_sees_the_ports_and_users_cannot_take_them(strait: Strait) -> None:
    pnode, vnode = await lent(strait)
    await place(strait, pnode, 80)
    async with strait.syncing(HostPorts):
        await until(lambda: reserves(strait, pnode, 80))
        body = {"status": {"allocatable": {"cpu": "1", "pods": "10"}}}
        await strait.above.patch(NODES, vnode.name, MergePatch(body), subresource="status")
        affinity = {"kubernetes.io/hostname": vnode.name}
        for name, port in (("taken", 80), ("not-taken", 81)):
            pod = pod_body(f"{strait.name}-{name}", "", port)
            pod["spec"]["nodeSelector"] = affinity
            await strait.above.create(PODS, pod, namespace="default")

        async def placed(name: str) -> str:
            return (await strait.above.get(PODS, f"{strait.name}-{name}", "default")).spec.node_name

        async def refused() -> bool:
            fields = f"involvedObject.name={strait.name}-taken,reason=FailedScheduling"
            events = (await strait.above.list(EVENTS, "default", fields=fields)).items
            return any("free ports" in event.message for event in events)

        assert await until(lambda: placed("not-taken")) == vnode.name
        await until(refused)
        assert await placed("taken") == ""


@pytest.mark.usefixtures("fake")
async def test_finished_pods_and_duplicates_do_not_count(strait: Strait) -> None:
    pnode, _ = await lent(strait)
    first, second = await place(strait, pnode, 80), await place(strait, pnode, 80)
    async with strait.syncing(HostPorts):
        await until(lambda: reserves(strait, pnode, 80))
        await finish(strait, first, "Succeeded")
        third = await place(strait, pnode, 81)
        await until(lambda: reserves(strait, pnode, 80, 81))
        await finish(strait, second, "Failed")
        await until(lambda: reserves(strait, pnode, 81))
        await lift(strait, third)
        await until(lambda: free(strait, pnode))


async def finish(strait: Strait, pod: Pod, phase: str) -> None:
    patch = MergePatch({"status": {"phase": phase}})
    await strait.below.patch(PODS, pod.name, patch, pod.namespace, subresource="status")


@pytest.mark.usefixtures("fake")
async def test_no_port_is_free_while_a_reservation_is_replaced(strait: Strait) -> None:
    pnode, _ = await lent(strait)
    await place(strait, pnode, 80)
    faults = Faults()
    async with strait.syncing(HostPorts, above=faults):
        old = await until(lambda: reserves(strait, pnode, 80))
        await place(strait, pnode, 81)
        await until(lambda: reserves(strait, pnode, 80, 81))
    made = ["POST pods", "PATCH status"]
    assert writes(faults) == [*made, *made, f"DELETE {old.name}"]


@pytest.mark.usefixtures("fake")
async def test_a_second_run_writes_nothing(strait: Strait) -> None:
    names = []
    for n in range(3):
        pnode, _ = await lent(strait, f"n{n}")
        names.append(pnode)
        await place(strait, pnode, 80 + n)
    async with strait.syncing(HostPorts):
        for n, pnode in enumerate(names):
            await until(lambda n=n, pnode=pnode: reserves(strait, pnode, 80 + n))
    faults = Faults()
    async with strait.syncing(HostPorts, above=faults, below=faults) as hostports:
        await until(lambda: hostports.holders.has_synced and hostports.reservations.has_synced)
        await quiet(faults)
        for pnode in names:
            assert await hostports.reconcile(Key("", strait.vnode(pnode))) == Done()
    assert not writes(faults)
    assert all(watches(request) for request in faults.requests)


async def test_a_worker_without_host_ports_costs_nothing_but_the_watches(strait: Strait) -> None:
    pnode, _ = await lent(strait)
    faults = Faults()
    async with strait.syncing(HostPorts, above=faults, below=faults):
        await place(strait, pnode)
        await quiet(faults)
    assert all(watches(request) for request in faults.requests)


@pytest.mark.usefixtures("fake")
async def test_changes_of_a_pod_that_goes_on_holding_cost_nothing(strait: Strait) -> None:
    pnode, _ = await lent(strait)
    pod = await place(strait, pnode, 80)
    faults = Faults()
    async with strait.syncing(HostPorts, above=faults):
        await until(lambda: reserves(strait, pnode, 80))
        for n in range(5):
            patch = MergePatch({"metadata": {"labels": {"n": str(n)}}})
            await strait.below.patch(PODS, pod.name, patch, pod.namespace)
        await finish(strait, pod, "Running")
        await quiet(faults)
    assert len(writes(faults)) == 2


async def test_the_namespace_is_made_if_it_is_missing(strait: Strait) -> None:
    product = f"x{uuid.uuid4().hex[:8]}"
    strait = replace(strait, domain=Domain(f"{product}.io"))
    names = []
    for n in range(3):
        pnode, _ = await lent(strait, f"n{n}")
        names.append(pnode)
        await place(strait, pnode, 80)
    async with strait.syncing(HostPorts):
        for pnode in names:
            await until(lambda pnode=pnode: reservations(strait, pnode))
    made = await strait.above.get(NAMESPACES, f"{product}-fake")
    assert made.labels[f"{product}.io/managed-by"] == product
    assert made.labels["pod-security.kubernetes.io/enforce"] == "privileged"


@pytest.mark.usefixtures("fake")
async def test_it_goes_when_the_virtual_node_is_leaving(strait: Strait) -> None:
    pnode = f"{strait.name}-n"
    vnode = await strait.lend(pnode, finalizer=True)
    await place(strait, pnode, 80)
    async with strait.syncing(HostPorts):
        await until(lambda: reserves(strait, pnode, 80))
        await strait.take_back(vnode)
        await until(lambda: free(strait, pnode))
        await place(strait, pnode, 81)
        await until(lambda: strait.seen(NODES, vnode.name))
    assert await free(strait, pnode)
    await strait.above.patch(NODES, vnode.name, MergePatch({"metadata": {"finalizers": []}}))


@pytest.mark.usefixtures("fake")
async def test_it_goes_with_the_virtual_node_even_if_we_are_gone(strait: Strait) -> None:
    pnode, vnode = await lent(strait)
    await place(strait, pnode, 80)
    async with strait.syncing(HostPorts):
        await until(lambda: reserves(strait, pnode, 80))
    await strait.take_back(vnode)
    await until(lambda: free(strait, pnode), within=150)


@pytest.mark.usefixtures("fake")
async def test_a_virtual_node_that_was_replaced_has_its_own(strait: Strait) -> None:
    pnode, vnode = await lent(strait)
    await place(strait, pnode, 80)
    async with strait.syncing(HostPorts):
        old = await until(lambda: reserves(strait, pnode, 80))
    await strait.take_back(vnode)
    again = await strait.lend(pnode)
    async with strait.syncing(HostPorts):

        async def renewed() -> bool:
            pod = await reserves(strait, pnode, 80)
            owners = [owner.uid for owner in pod.metadata.owner_references or ()]
            return pod.uid != old.uid and owners == [again.uid]

        await until(renewed)


@pytest.mark.usefixtures("fake")
async def test_one_that_users_end_comes_back(strait: Strait) -> None:
    pnode, _ = await lent(strait)
    await place(strait, pnode, 80)
    async with strait.syncing(HostPorts):
        pod = await until(lambda: reserves(strait, pnode, 80))
        await strait.above.delete(PODS, pod.name, FAKE, uid=pod.uid)

        async def again() -> bool:
            return (await reserves(strait, pnode, 80)).uid != pod.uid

        await until(again)
        (pod,) = await reservations(strait, pnode)
        patch = MergePatch({"status": {"phase": "Failed"}})
        await strait.above.patch(PODS, pod.name, patch, FAKE, subresource="status")
        await until(again)


@pytest.mark.usefixtures("fake")
async def test_one_that_a_finalizer_holds_is_waited_for(strait: Strait) -> None:
    pnode, _ = await lent(strait)
    await place(strait, pnode, 80)
    faults = Faults()
    async with strait.syncing(HostPorts, above=faults):
        pod = await until(lambda: reserves(strait, pnode, 80))
        held = MergePatch({"metadata": {"finalizers": ["example.com/keep"]}})
        await strait.above.patch(PODS, pod.name, held, FAKE)
        await strait.above.delete(PODS, pod.name, FAKE, uid=pod.uid)
        await quiet(faults)
        await strait.above.patch(PODS, pod.name, MergePatch({"metadata": {"finalizers": []}}), FAKE)
        await until(lambda: reserves(strait, pnode, 80))


@pytest.mark.usefixtures("fake")
async def test_one_whose_deletion_was_cut_short_is_deleted_again(strait: Strait) -> None:
    pnode, _ = await lent(strait)
    await place(strait, pnode, 80)
    old = await go_made(strait, pnode, 70)
    await half_delete(strait.computing, strait.above, old.name, FAKE)
    async with strait.syncing(HostPorts):
        pod = await until(lambda: reserves(strait, pnode, 80))
    await half_delete(strait.computing, strait.above, pod.name, FAKE)

    async def made_anew() -> bool:
        return (await reserves(strait, pnode, 80)).uid != pod.uid

    async with strait.syncing(HostPorts):
        await until(made_anew)


# Those of others


async def go_made(strait: Strait, pnode: str, *ports: int, **labels: str) -> Pod:
    """As the earlier implementation made it: no binding, a random name, 30 s of grace."""
    body = pod_body("", strait.vnode(pnode), *ports)
    listed = [
        {"name": f"port-{n}", "containerPort": p, "hostPort": p, "hostIP": "0.0.0.0"}
        for n, p in enumerate(ports)
    ]
    body["spec"]["containers"][0]["ports"] = listed
    body["metadata"] = {"generateName": "fake-pod-for-hostport-", "labels": GO_LABELS | labels}
    return await strait.above.create(PODS, body, namespace=FAKE)


@pytest.mark.usefixtures("fake")
async def test_one_of_the_earlier_implementation_that_fits_is_taken_over(strait: Strait) -> None:
    pnode, vnode = await lent(strait)
    await place(strait, pnode, 80)
    made = await go_made(strait, pnode, 80)
    twin = await go_made(strait, pnode, 80)
    faults = Faults()
    async with strait.syncing(HostPorts, above=faults):
        pod = await until(lambda: reserves(strait, pnode, 80))
        assert pod.uid in (made.uid, twin.uid)
        await quiet(faults)
        assert sorted(word.partition(" ")[0] for word in writes(faults)) == ["DELETE", "PATCH"]
        await strait.take_back(vnode)
        await until(lambda: free(strait, pnode))


@pytest.mark.usefixtures("fake")
async def test_one_of_the_earlier_implementation_that_does_not_fit_is_replaced(
    strait: Strait,
) -> None:
    pnode, _ = await lent(strait)
    pod = await place(strait, pnode, 80)
    await go_made(strait, pnode, 80, 81)
    async with strait.syncing(HostPorts):
        await until(lambda: reserves(strait, pnode, 80))
        await lift(strait, pod)
        await until(lambda: free(strait, pnode))
        late = await go_made(strait, pnode, 82)  # its old leader is not quite dead
        await until(lambda: free(strait, pnode))
        assert await strait.seen(PODS, late.name, FAKE) is None


@pytest.mark.usefixtures("fake")
async def test_those_of_other_bindings_and_of_users_are_left_alone(strait: Strait) -> None:
    other = strait.neighbour()
    pnode, vnode = await lent(strait)
    await other.lend(pnode)
    await place(strait, pnode, 80)
    theirs = await go_made(strait, pnode, 7, **{"kubeocean.io/cluster-binding": "somebody"})
    unclaimed = await go_made(strait.neighbour(), pnode, 8)
    plain = await strait.above.create(
        PODS, pod_body(f"{strait.name}-user", strait.vnode(pnode), 9), namespace=FAKE
    )

    async def ours(of: Strait) -> list[ReservationPod]:
        found = await reservations(of, pnode)
        return [p for p in found if p.labels.get("kubeocean.io/cluster-binding") == of.name]

    async with strait.syncing(HostPorts), other.syncing(HostPorts):
        await until(lambda: ours(strait))
        await until(lambda: reserves(other, pnode, 80))
        (kept,) = await ours(other)
        await strait.take_back(vnode)

        async def gone() -> bool:
            return not await ours(strait)

        await until(gone)
        assert [p.resource_version for p in await ours(other)] == [kept.resource_version]
    names = {pod.name for pod in (theirs, unclaimed, plain)}
    touched = [
        request
        for request in strait.computing.audit.requests(user_agent="kubeocean")
        if request.name in names and request.verb not in ("get", "list", "watch", "create")
    ]
    assert not touched


@pytest.mark.usefixtures("fake")
async def test_a_foreign_pod_of_our_name_is_left_alone(strait: Strait) -> None:
    pnode, vnode = await lent(strait)
    held = await place(strait, pnode, 80)
    async with strait.syncing(HostPorts):
        pod = await until(lambda: reserves(strait, pnode, 80))
        await lift(strait, held)
        await until(lambda: free(strait, pnode))
    foreign = await strait.above.create(PODS, pod_body(pod.name, "", 1), namespace=FAKE)
    await place(strait, pnode, 80)
    async with strait.syncing(HostPorts) as hostports:
        (event,) = await until(lambda: strait.told(vnode.name, "NameTaken"))
        assert event.involved_object.uid == vnode.uid
        assert isinstance(await hostports.reconcile(vnode.key), Stuck)
        there = await strait.above.get(PODS, pod.name, FAKE)
        assert (there.uid, there.labels) == (foreign.uid, {})
        await strait.above.delete(PODS, pod.name, FAKE, uid=foreign.uid, grace_s=0)
        await until(lambda: reserves(strait, pnode, 80))


# Faults


@pytest.mark.usefixtures("fake")
async def test_nothing_is_decided_while_the_worker_does_not_answer(strait: Strait) -> None:
    pnode, _ = await lent(strait)
    gone, vnode = await lent(strait, "gone")
    pod = await place(strait, pnode, 80)
    await place(strait, gone, 80)
    above, below = Faults(), Faults()
    async with strait.syncing(HostPorts, above=above, below=below) as hostports:
        await until(lambda: reserves(strait, pnode, 80))
        await until(lambda: reserves(strait, gone, 80))
        below.partition()
        await until(lambda: not hostports.world.reach.answers)
        await lift(strait, pod)
        await strait.take_back(vnode)
        await until(lambda: free(strait, gone))
        await quiet(above)
        assert await reserves(strait, pnode, 80)
        below.rejoin()
        await until(lambda: free(strait, pnode))


@pytest.mark.usefixtures("fake")
@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 10))
async def test_a_crash_after_the_nth_write_changes_nothing(strait: Strait, n: int) -> None:
    stays, _ = await lent(strait, "stays")
    goes, vnode = await lent(strait, "goes")
    await place(strait, stays, 80)
    await place(strait, goes, 80)
    await go_made(strait, stays, 70)
    async with strait.crashing(HostPorts, n) as crash:
        for pnode in (stays, goes):
            await crash.or_until(lambda pnode=pnode: reserves(strait, pnode, 80))
        await place(strait, stays, 81)
        await crash.or_until(lambda: reserves(strait, stays, 80, 81))
        await strait.take_back(vnode)
        await crash.or_until(lambda: free(strait, goes))
    faults = Faults()
    async with strait.syncing(HostPorts, above=faults):
        await until(lambda: reserves(strait, stays, 80, 81))
        await until(lambda: free(strait, goes), within=150)
        await quiet(faults)


@pytest.mark.usefixtures("fake")
async def test_lagging_and_repeating_watches_change_nothing(strait: Strait) -> None:
    pnode, _ = await lent(strait)
    above, below = Faults(), Faults()
    for faults in (above, below):
        faults.lag(0.3)
        faults.repeat(1)
    async with strait.syncing(HostPorts, above=above, below=below):
        await place(strait, pnode, 80)
        await until(lambda: reserves(strait, pnode, 80))
        await place(strait, pnode, 81)
        await until(lambda: reserves(strait, pnode, 80, 81))
        above.rewind(20)
        below.rewind(20)
        await quiet(above)
    assert len(writes(above)) == 5


@pytest.mark.usefixtures("fake")
async def test_two_leaders_end_where_one_does(strait: Strait) -> None:
    pnode, _ = await lent(strait)
    first, second = Faults(), Faults()
    async with (
        strait.syncing(HostPorts, above=first),
        strait.syncing(HostPorts, above=second),
    ):
        await place(strait, pnode, 80)
        await until(lambda: reserves(strait, pnode, 80))
        await place(strait, pnode, 81)
        await until(lambda: reserves(strait, pnode, 80, 81))
        await quiet(first, second)
