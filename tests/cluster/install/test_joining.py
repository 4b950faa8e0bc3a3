"""Workers that join and leave, on real control planes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, PolicySpec
from kubeocean.errors import ConfigError, Conflict, Forbidden, NotFound, Unauthorized
from kubeocean.install.apply import Applier, ApplyResult, resource_of
from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.join import Join, JoinRequest, identity
from kubeocean.install.leave import Leave
from kubeocean.install.object_parts import title
from kubeocean.install.values import Values, WorkerValues
from kubeocean.install.worker_objects import worker_objects
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import (
    NAMESPACES,
    NODES,
    SECRETS,
    SECRETS_WITH_DATA,
    SERVICE_ACCOUNTS,
    SecretWithData,
)
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json, Resource, Untyped
from kubeocean.runtime.transport import HttpTransport
from kubeocean.worker_access.credentials import SecretAccess
from support.wait import until

VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Untyped)
MakeJoin = Callable[..., Join]


def silent(body: Json, fate: ApplyResult) -> None:
    pass


class Results(dict[str, ApplyResult]):
    """Results of applies, by object."""

    def note(self, body: Json, fate: ApplyResult) -> None:
        self[title(body)] = fate


@pytest.fixture
def join_request() -> JoinRequest:
    name = f"j{uuid.uuid4().hex[:8]}"
    return JoinRequest(
        name=name, worker=WorkerValues(namespace=f"m-{name}"), lease=PolicySpec(name)
    )


@pytest.fixture
def make_join(
    computing_applier: Applier, worker_applier: Applier, worker_cluster: Cluster
) -> MakeJoin:
    def make(
        join_request: JoinRequest,
        worker: Applier = worker_applier,
        cluster: Cluster = worker_cluster,
    ) -> Join:
        return Join(join_request, computing_applier, worker, load_kubeconfig(cluster.kubeconfig))

    return make


async def secret(computing_applier: Applier, join_request: JoinRequest) -> SecretWithData:
    name = f"{join_request.name}-kubeconfig"
    return await computing_applier.client.get(SECRETS_WITH_DATA, name, "kubeocean-system")


async def credential(computing_applier: Applier, join_request: JoinRequest) -> SecretAccess:
    return SecretAccess(await secret(computing_applier, join_request))


async def works(access: SecretAccess) -> bool:
    client = Client(HttpTransport(access), cluster="worker")
    try:
        await client.list(NODES, page=1)
    except (Unauthorized, Forbidden):
        return False
    finally:
        await client.close()
    return True


async def test_installing_again_changes_nothing(computing_applier: Applier) -> None:
    results = Results()
    await computing_applier.apply_all(computing_objects(Values()), results.note)
    assert {name for name, fate in results.items() if fate is not ApplyResult.UNCHANGED} == set()


async def test_joining_again_changes_nothing(
    computing_applier: Applier, make_join: MakeJoin, join_request: JoinRequest
) -> None:
    first = await make_join(join_request).run()
    before = (await credential(computing_applier, join_request)).current()
    results = Results()
    again = await make_join(join_request).run(results.note)
    assert {name for name, fate in results.items() if fate is not ApplyResult.UNCHANGED} == set()
    assert (first.renewed, again.renewed) == (True, False)
    assert (await credential(computing_applier, join_request)).current() == before
    assert again.ends - datetime.now(UTC) > timedelta(days=300)


async def test_a_credential_is_renewed_on_request(
    computing_applier: Applier, make_join: MakeJoin, join_request: JoinRequest
) -> None:
    await make_join(join_request).run()
    before = (await credential(computing_applier, join_request)).current()
    assert (await make_join(join_request).run(renew=True)).renewed
    after = await credential(computing_applier, join_request)
    assert after.current().token != before.token
    assert await works(after)


async def test_a_cluster_is_not_bound_to_itself(
    computing_applier: Applier,
    computing_cluster: Cluster,
    make_join: MakeJoin,
    join_request: JoinRequest,
) -> None:
    with pytest.raises(ConfigError, match="is the computing cluster itself"):
        await make_join(join_request, computing_applier, computing_cluster).run()


async def test_a_cluster_id_is_unique_and_immutable(
    make_join: MakeJoin, join_request: JoinRequest
) -> None:
    await make_join(join_request).run()
    taken = JoinRequest(name=f"{join_request.name}x", cluster_id=join_request.name)
    with pytest.raises(ConfigError, match=f"binding {join_request.name} has it"):
        await make_join(taken).run()
    other = JoinRequest(name=join_request.name, cluster_id="other")
    with pytest.raises(ConfigError, match=f"cannot be changed: it is {join_request.name}"):
        await make_join(other).run()


async def test_a_binding_cannot_be_changed_to_another_worker(
    computing_applier: Applier,
    worker_applier: Applier,
    make_join: MakeJoin,
    join_request: JoinRequest,
    cluster: Cluster,
    client: Client,
) -> None:
    await make_join(join_request).run()
    before = await secret(computing_applier, join_request)
    other = Applier(client, domain=DEFAULT)
    with pytest.raises(ConfigError, match=f"than the one that is bound as {join_request.name}"):
        await make_join(join_request, other, cluster).run()
    assert await secret(computing_applier, join_request) == before
    with pytest.raises(NotFound):
        await client.get(NAMESPACES, join_request.worker.mount_namespace)

    # Secrets of earlier versions have no identity; the kubeconfigs are compared.
    forgotten = {"annotations": {DEFAULT.worker_cluster_id: None}}
    name = f"{join_request.name}-kubeconfig"
    patch = MergePatch({"metadata": forgotten})
    await computing_applier.client.patch(SECRETS_WITH_DATA, name, patch, "kubeocean-system")
    with pytest.raises(ConfigError, match="points to another cluster"):
        await make_join(join_request, other, cluster).run()
    assert not (await make_join(join_request).run()).renewed

    # The binding has the identity that the syncer has read, also if the Secret has changed.
    met = {"annotations": {DEFAULT.worker_cluster_id: await identity(worker_applier)}}
    await computing_applier.client.patch(
        CLUSTER_BINDINGS, join_request.name, MergePatch({"metadata": met})
    )
    uid = (await computing_applier.client.get(SECRETS_WITH_DATA, name, "kubeocean-system")).uid
    await computing_applier.client.delete(SECRETS_WITH_DATA, name, "kubeocean-system", uid=uid)
    with pytest.raises(ConfigError, match="points to another cluster"):
        await make_join(join_request, other, cluster).run()
    with pytest.raises(ConfigError, match="points to another cluster"):
        leave = Leave(join_request.name, computing_applier, domain=DEFAULT)
        await leave.check_worker(other, load_kubeconfig(cluster.kubeconfig))
    assert (await make_join(join_request).run()).renewed


async def test_a_mount_namespace_is_immutable_and_so_is_its_credential(
    computing_applier: Applier, make_join: MakeJoin, join_request: JoinRequest
) -> None:
    await make_join(join_request).run()
    before = await secret(computing_applier, join_request)
    moved = replace(join_request, worker=WorkerValues(namespace=f"n-{join_request.name}"))
    with pytest.raises(ConfigError, match=f"cannot be changed: it is m-{join_request.name}"):
        await make_join(moved).run()
    assert await secret(computing_applier, join_request) == before


async def test_a_binding_that_is_being_deleted_cannot_be_joined(
    computing_applier: Applier, make_join: MakeJoin, join_request: JoinRequest
) -> None:
    await make_join(join_request).run()
    held = MergePatch({"metadata": {"finalizers": [DEFAULT.finalizer_syncer]}})
    stored = await computing_applier.client.patch(CLUSTER_BINDINGS, join_request.name, held)
    await computing_applier.client.delete(CLUSTER_BINDINGS, join_request.name, uid=stored.uid)
    with pytest.raises(ConfigError, match="is being deleted"):
        await make_join(join_request).run()
    leave = Leave(join_request.name, computing_applier, domain=DEFAULT)
    assert (await leave.unbind(patience_s=0, force=True, say=lambda message: None)).gone
    await make_join(join_request).run()


async def test_fields_of_another_field_manager_are_a_conflict(
    computing_applier: Applier, make_join: MakeJoin, join_request: JoinRequest
) -> None:
    await make_join(join_request).run()
    theirs = computing_applier.client
    change = MergePatch({"spec": {"serviceNamespaces": ["theirs"]}})
    other = Client(theirs.transport, field_manager="somebody")
    await other.patch(CLUSTER_BINDINGS, join_request.name, change)
    wanted = replace(join_request, service_namespaces=("ours",))
    with pytest.raises(Conflict, match=r"serviceNamespaces.*--force-conflicts"):
        await make_join(wanted).run()
    forced = Applier(theirs, domain=DEFAULT, force=True)
    await forced.apply(wanted.binding())
    spec = (await theirs.get(CLUSTER_BINDINGS, join_request.name)).spec
    assert spec.service_namespaces == ("ours",)


async def test_leave_revokes_the_credential_and_deletes_the_roles(
    computing_applier: Applier,
    worker_applier: Applier,
    make_join: MakeJoin,
    join_request: JoinRequest,
) -> None:
    await make_join(join_request).run()
    access = await credential(computing_applier, join_request)
    assert await works(access)
    leave = Leave(join_request.name, computing_applier, domain=DEFAULT)
    gone = await leave.unbind(patience_s=10, force=False, say=lambda message: None)
    assert gone.gone
    await leave.forget(silent)
    kept = await leave.clean(worker_applier, join_request.worker, silent, force=False)
    assert f"Namespace {join_request.worker.mount_namespace}" in kept
    with pytest.raises(NotFound):
        await credential(computing_applier, join_request)
    with pytest.raises(NotFound):
        await worker_applier.client.get(RESOURCE_LEASING_POLICIES, join_request.name)
    with pytest.raises(NotFound):
        await worker_applier.client.get(
            SERVICE_ACCOUNTS, "kubeocean-syncer", join_request.worker.mount_namespace
        )
    assert not await works(access)


async def test_leave_refuses_a_worker_that_is_not_the_bound_one(
    computing_applier: Applier,
    worker_applier: Applier,
    make_join: MakeJoin,
    join_request: JoinRequest,
    computing_cluster: Cluster,
    worker_cluster: Cluster,
    cluster: Cluster,
    client: Client,
) -> None:
    await make_join(join_request).run()
    leave = Leave(join_request.name, computing_applier, domain=DEFAULT)
    with pytest.raises(ConfigError, match="is the computing cluster itself"):
        await leave.check_worker(computing_applier, load_kubeconfig(computing_cluster.kubeconfig))
    other = Applier(client, domain=DEFAULT)
    with pytest.raises(ConfigError, match=f"than the one that is bound as {join_request.name}"):
        await leave.check_worker(other, load_kubeconfig(cluster.kubeconfig))
    await leave.check_worker(worker_applier, load_kubeconfig(worker_cluster.kubeconfig))


async def test_leave_does_not_delete_roles_of_a_computing_cluster(
    computing_applier: Applier,
) -> None:
    results = Results()
    for body in worker_objects(WorkerValues()):
        if body["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            results.note(body, await computing_applier.remove(body))
    assert results == {
        "ClusterRole kubeocean-syncer": ApplyResult.FOREIGN,
        "ClusterRoleBinding kubeocean-syncer": ApplyResult.FOREIGN,
        "ClusterRole kubeocean-metrics": ApplyResult.ABSENT,
        "ClusterRoleBinding kubeocean-metrics": ApplyResult.ABSENT,
    }


async def test_leave_refuses_an_unknown_name_unless_objects_remain(
    computing_applier: Applier,
    worker_applier: Applier,
    make_join: MakeJoin,
    join_request: JoinRequest,
) -> None:
    other = JoinRequest(name=f"{join_request.name}x", worker=join_request.worker)
    await make_join(other).run()
    leave, values = Leave(join_request.name, computing_applier, domain=DEFAULT), join_request.worker
    for worker in (None, worker_applier):
        with pytest.raises(ConfigError, match=rf"no such binding; there are: .*{other.name}"):
            await leave.check(worker, values)
    await make_join(join_request).run()
    await leave.check(None, values)
    await leave.unbind(patience_s=10, force=False, say=lambda message: None)
    await leave.forget(silent)
    with pytest.raises(ConfigError, match="no such binding"):
        await leave.check(None, values)
    await leave.check(worker_applier, values)
    await leave.clean(worker_applier, values, silent, force=False)
    with pytest.raises(ConfigError, match="no such binding"):
        await leave.check(worker_applier, values)


async def test_leave_reports_pods_and_copies_that_are_left(
    computing_applier: Applier,
    worker_applier: Applier,
    make_join: MakeJoin,
    join_request: JoinRequest,
) -> None:
    await make_join(join_request).run()
    leave, home = (
        Leave(join_request.name, computing_applier, domain=DEFAULT),
        join_request.worker.mount_namespace,
    )
    labels = {
        DEFAULT.managed_by: "kubeocean",
        DEFAULT.cluster_binding: join_request.name,
        DEFAULT.computing_cluster_id: await identity(computing_applier),
    }
    for name in ("one", "two"):
        metadata = {"name": name, "namespace": home, "labels": labels}
        await worker_applier.client.create(SECRETS, {"metadata": metadata})
    await worker_applier.client.create(
        VOLUMES,
        {
            "metadata": {"name": f"copy-{join_request.name}", "labels": labels},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/data"},
            },
        },
    )
    await leave.unbind(patience_s=10, force=False, say=lambda message: None)
    kept = await leave.clean(worker_applier, join_request.worker, silent, force=True)
    assert kept[:2] == (
        f"2 Secrets of {join_request.name}",
        f"1 PersistentVolume of {join_request.name}",
    )
    assert f"{DEFAULT.cluster_binding}={join_request.name}" in kept[2]
    assert await worker_applier.client.get(SECRETS, "one", home)


async def test_a_policy_that_lends_to_another_cluster_is_neither_changed_nor_deleted(
    computing_applier: Applier,
    worker_applier: Applier,
    make_join: MakeJoin,
    join_request: JoinRequest,
) -> None:
    await make_join(join_request).run()
    theirs = {"annotations": {DEFAULT.computing_cluster_id: "another"}}
    patch = MergePatch({"metadata": theirs})
    await worker_applier.client.patch(RESOURCE_LEASING_POLICIES, join_request.name, patch)
    with pytest.raises(ConfigError, match="lends to another computing cluster"):
        await make_join(join_request).run()
    leave, results = Leave(join_request.name, computing_applier, domain=DEFAULT), Results()
    await leave.unbind(patience_s=10, force=False, say=lambda message: None)
    await leave.clean(worker_applier, join_request.worker, results.note, force=True)
    assert results[f"ResourceLeasingPolicy {join_request.name}"] is ApplyResult.FOREIGN
    assert await worker_applier.client.get(RESOURCE_LEASING_POLICIES, join_request.name)


async def test_accounts_stay_while_another_binding_needs_them(
    computing_applier: Applier,
    worker_applier: Applier,
    make_join: MakeJoin,
    join_request: JoinRequest,
) -> None:
    other = JoinRequest(name=f"{join_request.name}x", worker=join_request.worker)
    await make_join(join_request).run()
    await make_join(other).run()
    revoked = await credential(computing_applier, join_request)
    leave = Leave(join_request.name, computing_applier, domain=DEFAULT)
    await leave.unbind(patience_s=10, force=False, say=lambda message: None)
    kept = await leave.clean(worker_applier, join_request.worker, silent, force=False)
    assert len(kept) == 1
    assert other.name in kept[0]

    async def is_revoked() -> bool:
        return not await works(revoked)

    await until(is_revoked, within=30)  # servers remember good tokens for ten seconds
    assert await works(await credential(computing_applier, other))


async def test_a_binding_without_a_manager_is_removed_by_force_only(
    computing_applier: Applier, make_join: MakeJoin, join_request: JoinRequest
) -> None:
    await make_join(join_request).run()
    held = MergePatch({"metadata": {"finalizers": [DEFAULT.finalizer_syncer]}})
    await computing_applier.client.patch(CLUSTER_BINDINGS, join_request.name, held)
    labels = {DEFAULT.managed_by: "kubeocean", DEFAULT.cluster_binding: join_request.name}
    vnode, foreign = f"vnode-{join_request.name}-n1", f"machine-{join_request.name}"
    marks = {
        "labels": labels | {DEFAULT.physical_cluster_id: join_request.name},
        "finalizers": [DEFAULT.finalizer_vnode],
    }
    await computing_applier.client.create(NODES, {"metadata": {"name": vnode, **marks}})
    await computing_applier.client.create(NODES, {"metadata": {"name": foreign, "labels": labels}})
    leave = Leave(join_request.name, computing_applier, domain=DEFAULT)
    waiting = await leave.unbind(patience_s=0, force=False, say=lambda message: None)
    assert not waiting.gone
    assert DEFAULT.finalizer_syncer in waiting.waits_for
    assert (await leave.unbind(patience_s=0, force=True, say=lambda message: None)).gone
    with pytest.raises(NotFound):
        await computing_applier.client.get(NODES, vnode)
    await computing_applier.client.delete(
        NODES, foreign, uid=None
    )  # labels alone make no node ours


async def test_objects_that_kubectl_applied_from_the_manifests_are_no_conflict(
    computing_applier: Applier,
) -> None:
    kubectl = Client(computing_applier.client.transport, field_manager="kubectl-client-side-apply")
    home = f"k{uuid.uuid4().hex[:8]}"
    await kubectl.create(NAMESPACES, {"metadata": {"name": home}})
    ours = [
        body | {"metadata": body["metadata"] | {"namespace": home}}
        for body in computing_objects(Values())
        if body["metadata"].get("namespace") == DEFAULT.system_namespace
    ]
    assert "Deployment" in {body["kind"] for body in ours}
    for body in ours:
        await kubectl.create(resource_of(body), body, namespace=home)
        await computing_applier.apply(body)  # raises Conflict, if theirs differed from ours


async def test_a_forced_leave_ends_although_others_hold_the_binding(
    computing_applier: Applier, make_join: MakeJoin, join_request: JoinRequest
) -> None:
    await make_join(join_request).run()
    held = MergePatch({"metadata": {"finalizers": ["other.example/hold"]}})
    await computing_applier.client.patch(CLUSTER_BINDINGS, join_request.name, held)
    leave = Leave(join_request.name, computing_applier, domain=DEFAULT)
    async with asyncio.timeout(60):
        departure = await leave.unbind(patience_s=0, force=True, say=lambda message: None)
    assert (departure.gone, departure.waits_for) == (False, "finalizers other.example/hold")
    free = MergePatch({"metadata": {"finalizers": None}})
    await computing_applier.client.patch(CLUSTER_BINDINGS, join_request.name, free)
