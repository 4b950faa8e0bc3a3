"""Tests of the admission policies that limit syncers, proxiers and the manager.

The accounts are those that the manager creates for two bindings.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT, NODE_LEASE_NAMESPACE
from kubeocean.errors import Forbidden
from kubeocean.install.access_reviews import granted_to
from kubeocean.install.apply import Applier, resource_of
from kubeocean.install.object_parts import role_binding
from kubeocean.install.permissions import Permission
from kubeocean.install.roles import secret_role
from kubeocean.local.cluster import Cluster
from kubeocean.manager.rendering import KINDS
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import (
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    Pod,
)
from kubeocean.runtime.objects import Json, Resource
from kubeocean.syncer.replication.kinds.claims import CLAIMS
from kubeocean.syncer.replication.kinds.volumes import VOLUMES
from support.rollout_env import binding_body, roll_out
from support.wait import until

SYSTEM = DEFAULT.system_namespace
SOURCES: tuple[Resource[Any], ...] = (SECRETS, CONFIG_MAPS)
LABELLED = MergePatch({"metadata": {"labels": {"marked": "yes"}}})
# The garbage collector deletes an object whose owners do not exist.
ABSENT = {"apiVersion": "v1", "kind": "ConfigMap", "name": "absent", "uid": "absent"}
ORPHANED = MergePatch({"metadata": {"ownerReferences": [ABSENT]}})


@dataclass
class Bound:
    """Two bindings, and clients of the first one's syncer and of the manager."""

    admin: Client
    syncer: Client
    manager: Client
    cluster_id: str
    other_id: str
    namespace: str


@pytest.fixture
async def bound(
    computing_applier: Applier, computing_cluster: Cluster, tmp_path: Path
) -> AsyncIterator[Bound]:
    admin, mark = computing_applier.client, uuid.uuid4().hex[:8]
    ids = (f"a{mark}", f"a{mark}-b")  # the first is a prefix of the second
    for cluster_id in ids:
        body = binding_body(cluster_id, cluster_id)
        body["spec"]["secretRef"]["namespace"] = SYSTEM
        binding = await admin.create(CLUSTER_BINDINGS, body)
        await roll_out(admin, binding, tmp_path / cluster_id)
    await admin.create(NAMESPACES, {"metadata": {"name": f"n{mark}"}})
    accounts = (f"kubeocean-syncer-{ids[0]}", "kubeocean-manager")
    clients = [
        computing_cluster.client(kubeconfig=await computing_cluster.service_account(SYSTEM, each))
        for each in accounts
    ]
    syncer, manager = clients
    yield Bound(admin, syncer, manager, ids[0], ids[1], f"n{mark}")
    for client in clients:
        await client.close()


async def denied(request: Awaitable[object]) -> str:
    """Return the message of a refusal; "" if the request succeeds."""
    try:
        await request
    except Forbidden as error:
        assert "ValidatingAdmissionPolicy" in str(error), error
        return str(error)
    return ""


def node(name: str, cluster_id: str = "") -> Json:
    labels = {DEFAULT.physical_cluster_id: cluster_id} if cluster_id else {}
    return {"metadata": {"name": name, "labels": labels}}


def pod(name: str, node_name: str) -> Json:
    spec = {"nodeName": node_name, "containers": [{"name": "c", "image": "none"}]}
    return {"metadata": {"name": name}, "spec": spec}


async def test_a_syncer_writes_virtual_nodes_of_its_own_binding_only(bound: Bound) -> None:
    own, other = f"vnode-{bound.cluster_id}-n1", f"vnode-{bound.other_id}-n1"
    real = f"machine-{bound.cluster_id}"
    for each in (node(other, bound.other_id), node(real)):
        await bound.admin.create(NODES, each)

    async def limited() -> bool:
        return bool(await denied(bound.syncer.patch(NODES, real, LABELLED)))

    await until(limited, within=30)  # the API server reads new policies by a watch
    stored = await bound.syncer.create(NODES, node(own, bound.cluster_id))
    await bound.syncer.patch(NODES, own, LABELLED)
    edited = MergePatch({"metadata": {"labels": {DEFAULT.physical_cluster_id: "nonsense"}}})
    await bound.admin.patch(NODES, own, edited)
    reverted = MergePatch({"metadata": {"labels": {DEFAULT.physical_cluster_id: bound.cluster_id}}})
    await bound.syncer.patch(NODES, own, reverted)
    for name in (other, real):
        status = MergePatch({"status": {"addresses": []}})
        assert await denied(bound.syncer.patch(NODES, name, LABELLED))
        assert await denied(bound.syncer.patch(NODES, name, status, subresource="status"))
        assert await denied(bound.syncer.delete(NODES, name, uid=None))
    assert await denied(bound.syncer.create(NODES, node(f"x-{own}", bound.cluster_id)))
    for name, refused in ((own, False), (other.replace("vnode", "v"), True)):
        lease = {"metadata": {"name": name}}
        request = bound.syncer.create(LEASES, lease, namespace=NODE_LEASE_NAMESPACE)
        assert bool(await denied(request)) is refused
    await bound.syncer.delete(NODES, own, uid=stored.uid)


async def test_a_syncer_writes_pods_of_its_own_virtual_nodes_only(bound: Bound) -> None:
    own, real = f"vnode-{bound.cluster_id}-n1", f"machine-{bound.cluster_id}"
    for name in (own, real):
        await bound.admin.create(PODS, pod(name, name), namespace=bound.namespace)
    phase = MergePatch({"status": {"phase": "Running"}})

    async def limited() -> bool:
        where = bound.namespace
        return bool(
            await denied(bound.syncer.patch(PODS, real, phase, where, subresource="status"))
        )

    await until(limited, within=30)
    await bound.syncer.patch(PODS, own, phase, bound.namespace, subresource="status")
    assert await denied(bound.syncer.delete(PODS, real, bound.namespace, uid=None))
    await bound.syncer.delete(PODS, own, bound.namespace, uid=None)
    reserved = DEFAULT.host_port_namespace
    assert await denied(bound.syncer.create(PODS, pod(f"p-{real}", real), namespace=reserved))
    await bound.syncer.create(PODS, pod(f"p-{own}", own), namespace=reserved)


async def test_a_syncer_marks_sources_and_does_not_change_them(bound: Bound) -> None:
    name = f"s-{bound.cluster_id}"
    for namespace in (bound.namespace, SYSTEM):
        for resource in SOURCES:
            body = {"metadata": {"name": name}, "data": {"a": "YQ=="}}
            await bound.admin.create(resource, body, namespace=namespace)
    change = MergePatch({"data": {"a": "Yg=="}})
    account = f"kubeocean-syncer-{bound.cluster_id}"
    for namespace in (bound.namespace, SYSTEM):
        # More than the manager grants: the policy limits accounts with this permission, too.
        subject = {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}
        grant = role_binding(name, namespace, role=secret_role(), subject=subject, labels={})
        grant["roleRef"]["kind"] = "ClusterRole"
        await bound.admin.create(resource_of(grant), grant)
    right = [Permission("patch", "", "secrets", each) for each in (bound.namespace, SYSTEM)]

    async def granted() -> bool:
        return len(await granted_to(bound.admin, f"{SYSTEM}:{account}", right)) == len(right)

    await until(granted)

    async def limited() -> bool:
        return bool(await denied(bound.syncer.patch(SECRETS, name, change, bound.namespace)))

    await until(limited, within=30)
    for resource in SOURCES:
        await bound.syncer.patch(resource, name, LABELLED, bound.namespace)
        for data in ({"a": "Yg=="}, {"a": None}, {"b": "Yg=="}):
            patch = MergePatch({"data": data})
            assert await denied(bound.syncer.patch(resource, name, patch, bound.namespace))
        for patch in (MergePatch({"immutable": True}), ORPHANED):
            assert await denied(bound.syncer.patch(resource, name, patch, bound.namespace))
        assert await denied(bound.syncer.patch(resource, name, LABELLED, SYSTEM))
        # Only the owner of a source lets changes of the copy flow back.
        sync_back = MergePatch({"metadata": {"annotations": {DEFAULT.sync_back: "true"}}})
        assert await denied(bound.syncer.patch(resource, name, sync_back, bound.namespace))
        await bound.admin.patch(resource, name, sync_back, bound.namespace)
        await bound.syncer.patch(resource, name, change, bound.namespace)
        assert await denied(bound.syncer.patch(resource, name, ORPHANED, bound.namespace))


async def test_a_syncer_marks_volumes_and_claims_and_does_not_rebind_them(bound: Bound) -> None:
    """The manager grants Secrets that the volume of a claim names, so claims must be true."""
    name = f"v-{bound.cluster_id}"
    sized = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    claim_ref = {"namespace": "elsewhere", "name": "claim"}
    volume = sized | {
        "capacity": {"storage": "1Gi"},
        "claimRef": claim_ref,
        "csi": {"driver": "d", "volumeHandle": "h"},
    }
    claim = sized | {"resources": {"requests": {"storage": "1Gi"}}}
    await bound.admin.create(VOLUMES.sources, {"metadata": {"name": name}, "spec": volume})
    body = {"metadata": {"name": name}, "spec": claim}
    await bound.admin.create(CLAIMS.sources, body, namespace=bound.namespace)
    rebound = MergePatch({"spec": {"claimRef": {"namespace": bound.namespace, "name": name}}})

    async def limited() -> bool:
        return bool(await denied(bound.syncer.patch(VOLUMES.sources, name, rebound)))

    await until(limited, within=30)
    await bound.syncer.patch(VOLUMES.sources, name, LABELLED)
    secret = {"controllerExpandSecretRef": {"name": "s", "namespace": "kube-system"}}
    assert await denied(
        bound.syncer.patch(VOLUMES.sources, name, MergePatch({"spec": {"csi": secret}}))
    )
    assert await denied(bound.syncer.patch(VOLUMES.sources, name, ORPHANED))
    await bound.syncer.patch(CLAIMS.sources, name, LABELLED, bound.namespace)
    assert await denied(
        bound.syncer.patch(
            CLAIMS.sources, name, MergePatch({"spec": {"volumeName": name}}), bound.namespace
        )
    )


async def test_a_syncer_does_not_change_the_spec_of_its_binding(bound: Bound) -> None:
    """The spec decides how far the worker is trusted, and which account the syncer has."""
    own = bound.cluster_id

    def patch(**fields: object) -> Awaitable[object]:
        return bound.syncer.patch(CLUSTER_BINDINGS, own, MergePatch(fields))

    async def limited() -> bool:
        return bool(await denied(patch(spec={"workerTrust": "Full"})))

    await until(limited, within=30)
    assert await denied(patch(spec={"secretRef": {"namespace": "elsewhere"}}))
    namespace = DEFAULT.logs_proxy_secret_namespace
    assert await denied(patch(metadata={"annotations": {namespace: "elsewhere"}}))
    marks = {"finalizers": [DEFAULT.finalizer_syncer], "annotations": {DEFAULT.fleet_identity: "u"}}
    await patch(metadata=marks)
    status = MergePatch({"status": {"secretNamespaces": {"requested": ["a"]}}})
    await bound.syncer.patch(CLUSTER_BINDINGS, own, status, subresource="status")
    await bound.admin.patch(CLUSTER_BINDINGS, own, MergePatch({"metadata": {"finalizers": None}}))


async def test_a_syncer_changes_the_tables_of_rings_and_no_other_config_map(bound: Bound) -> None:
    ring = {f"{DEFAULT.sharding}/role": "table"}
    table, plain = f"table-{bound.cluster_id}", f"plain-{bound.cluster_id}"
    for name, namespace, labels in (
        (table, SYSTEM, ring),
        (plain, SYSTEM, {}),
        (table, bound.namespace, ring),
    ):
        body = {"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}
        await bound.admin.create(CONFIG_MAPS, body, namespace=namespace)
    change = MergePatch({"metadata": {"labels": ring}, "data": {"a": "2"}})

    async def limited() -> bool:
        return bool(await denied(bound.syncer.patch(CONFIG_MAPS, plain, change, SYSTEM)))

    await until(limited, within=30)
    await bound.syncer.patch(CONFIG_MAPS, table, change, SYSTEM)
    assert await denied(bound.syncer.patch(CONFIG_MAPS, table, change, bound.namespace))


def token_request(target: Pod, **reference: str | None) -> Json:
    """Return a TokenRequest as a syncer sends it; `reference` replaces fields of the pod."""
    bound = {"apiVersion": "v1", "kind": "Pod", "name": target.name, "uid": target.uid} | reference
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {"labels": {DEFAULT.token_request: "true"}},
        "spec": {
            "expirationSeconds": 3600,
            "boundObjectRef": {name: value for name, value in bound.items() if value is not None},
        },
    }


async def test_a_syncer_requests_no_token_of_system_namespaces(bound: Bound) -> None:
    name, namespace = f"p-{bound.cluster_id}", "kube-system"
    await bound.admin.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace=namespace)
    body = pod(name, f"vnode-{bound.cluster_id}-n1")
    body["spec"]["serviceAccountName"] = name
    target = await bound.admin.create(PODS, body, namespace=namespace)
    request = token_request(target)

    async def limited() -> bool:
        answer = bound.syncer.post(SERVICE_ACCOUNTS, name, "token", request, namespace)
        return "stay in the computing cluster" in await denied(answer)

    await until(limited, within=30)


async def test_a_syncer_requests_tokens_of_pods_on_its_own_virtual_nodes_only(
    bound: Bound,
) -> None:
    own_node, mark = f"vnode-{bound.cluster_id}-n1", bound.cluster_id

    async def pod_on(node_name: str = "") -> Pod:
        body = pod(f"p{uuid.uuid4().hex[:8]}", node_name)
        if not node_name:
            del body["spec"]["nodeName"]
        return await bound.admin.create(PODS, body, namespace=bound.namespace)

    async def refusal(request: Json, client: Client = bound.syncer) -> str:
        return await denied(
            client.post(SERVICE_ACCOUNTS, "default", "token", request, bound.namespace)
        )

    async def account() -> bool:
        listing = await bound.admin.list(SERVICE_ACCOUNTS, bound.namespace)
        return "default" in {each.name for each in listing.items}

    await until(account, within=30)
    real = await pod_on(f"machine-{mark}")
    elsewhere = [real, await pod_on(f"vnode-z{mark}-n1"), await pod_on()]

    async def limited() -> bool:
        return "own virtual nodes" in await refusal(token_request(real))

    await until(limited, within=30)  # the API server reads new policies, and pods, by watches
    for each in elsewhere:
        assert "own virtual nodes" in await refusal(token_request(each))
        assert "by its UID" in await refusal(token_request(each, uid=None))
        unlabelled = token_request(each) | {"metadata": {}}
        assert DEFAULT.token_request in await refusal(unlabelled)
        # Kubelets and administrators are not limited.
        assert await refusal(unlabelled, bound.admin) == ""
    own = await pod_on(own_node)
    assert await refusal(token_request(own)) == ""
    assert "by its UID" in await refusal(token_request(own, uid=""))
    assert DEFAULT.token_request in await refusal(token_request(own) | {"metadata": {}})


async def test_the_manager_writes_cluster_roles_of_syncers_and_proxiers_only(bound: Bound) -> None:
    role = KINDS["ClusterRole"]
    own, theirs = f"kubeocean-syncer-{bound.cluster_id}", f"theirs-{bound.cluster_id}"
    await bound.admin.create(role, {"metadata": {"name": theirs}, "rules": []})

    async def limited() -> bool:
        return bool(await denied(bound.manager.patch(role, theirs, LABELLED)))

    await until(limited, within=30)
    await bound.manager.patch(role, own, LABELLED)
    assert await denied(bound.manager.delete(role, theirs, uid=None))
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
    # from RBAC: the manager may not read these
    with pytest.raises(Forbidden, match="attempting to grant"):
        await bound.manager.patch(role, own, MergePatch({"rules": rules}))
