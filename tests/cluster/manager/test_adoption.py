"""An installation of the earlier implementation, taken over in place."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.naming import physical_name, virtual_node
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.install.apply import resource_of
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, NODES, PODS, SERVICES
from kubeocean.runtime.objects import Json, Object, Resource
from support.crds import install_our_kinds
from support.faults import Faults
from support.manager_env import SYSTEM, ManagerEnv, granted_kubeconfig
from support.pod_env import make_namespace, usable
from support.rollout_env import go_objects
from support.syncer_process import syncer
from support.wait import until

LONG_AGO = "2025-11-01T00:00:00Z"
AMOUNTS = {"cpu": "8", "memory": "32Gi", "pods": "110"}


@dataclass
class EarlierInstallation:
    """Objects that the earlier implementation has created for one binding."""

    env: ManagerEnv
    binding: ClusterBinding
    ids: dict[tuple[str, str, str], str] = field(default_factory=dict)  # UIDs by where it is

    @property
    def node(self) -> str:
        return f"{self.env.name}-n1"

    @property
    def vnode(self) -> str:
        return virtual_node(self.env.cluster_id, self.node)

    @property
    def mount(self) -> str:
        return f"m-{self.env.name}"

    @property
    def namespace(self) -> str:
        return f"v-{self.env.name}"

    def remember(self, client: Client, resource: Resource[Object], obj: Object) -> None:
        side = "computing" if client is self.env.computing_client else "worker"
        self.ids[side, str(resource), f"{obj.namespace}/{obj.name}"] = obj.uid

    async def now(self) -> dict[tuple[str, str, str], str]:
        """Return the UIDs of all objects of those kinds that belong to this binding, or seem to."""
        uids: dict[tuple[str, str, str], str] = {}
        computing_client, worker_client = self.env.computing_client, self.env.worker_client
        for client, resource, namespace in (
            (computing_client, NODES, ""),
            (computing_client, PODS, self.namespace),
            (computing_client, CONFIG_MAPS, self.namespace),
            (worker_client, PODS, self.mount),
            (worker_client, CONFIG_MAPS, self.mount),
            (computing_client, SERVICES, SYSTEM),
        ):
            side = "computing" if client is computing_client else "worker"
            for each in (await client.list(resource, namespace)).items:
                mine = resource is not NODES and resource is not SERVICES
                named = self.env.cluster_id in each.name
                if (mine or named) and each.name != "kube-root-ca.crt":
                    assert not each.deleting
                    uids[side, str(resource), f"{each.namespace}/{each.name}"] = each.uid
        for name, uid in (await self.env.deployments()).items():
            uids["computing", "deployments.apps", f"{SYSTEM}/{name}"] = uid
        return uids


async def made(
    installation: EarlierInstallation, client: Client, resource: Resource[Object], body: Json
) -> Object:
    """Create an object of the earlier installation, with its status if it has one; return it."""
    namespace = body["metadata"].get("namespace", "")
    created = await client.create(resource, body)
    if status := body.get("status"):
        patch = MergePatch({"status": status})
        created = await client.patch(resource, created.name, patch, namespace, subresource="status")
    installation.remember(client, resource, created)
    return created


async def relic_of(env: ManagerEnv) -> EarlierInstallation:
    """Return the binding with its Secret and status, as the earlier implementation leaves them."""
    body = {
        "apiVersion": CLUSTER_BINDINGS.api_version,
        "kind": "ClusterBinding",
        "metadata": {
            "name": env.name,
            "finalizers": [
                "kubeocean.io/clusterbinding-manager",
                "kubeocean.io/clusterbinding-syncer",
            ],
        },
        "spec": {
            "clusterID": env.cluster_id,
            "secretRef": {"name": env.name, "namespace": SYSTEM},
            "mountNamespace": f"m-{env.name}",
            "directScheduling": True,
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "test", "operator": "In", "values": [env.name]}]}
                ]
            },
        },
    }
    env.made.append(env.name)
    binding = await env.computing_client.create(CLUSTER_BINDINGS, body)
    conditions = [
        {"type": type_, "status": "True", "reason": reason, "message": "as it was"}
        | {"lastTransitionTime": LONG_AGO}
        for type_, reason in (
            ("Ready", "ValidationPassed"),
            ("Connected", "ConnectivityPassed"),
            ("SyncerReady", "SyncerCreated"),
            ("ProxierReady", "ProxierCreated"),
        )
    ]
    status = {"phase": "Ready", "lastSyncTime": LONG_AGO, "conditions": conditions}
    patch = MergePatch({"status": status})
    binding = await env.computing_client.patch(
        CLUSTER_BINDINGS, env.name, patch, subresource="status"
    )
    installation = EarlierInstallation(env, binding)
    writer = env.computing_cluster.client()
    writer.field_manager = "manager"
    for each in go_objects(binding, SYSTEM):
        resource = resource_of(each)
        created = await writer.create(resource, each)
        installation.remember(env.computing_client, resource, created)
    await writer.close()
    return installation


async def create_virtual_node(installation: EarlierInstallation) -> None:
    """Create a node of the worker, its policy, and its virtual node."""
    env, node, vnode = installation.env, installation.node, installation.vnode
    policy = f"{env.name}-policy"
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "ready",
        "lastHeartbeatTime": LONG_AGO,
        "lastTransitionTime": LONG_AGO,
    }
    status = {"capacity": AMOUNTS, "allocatable": AMOUNTS, "conditions": [ready]}
    address = [{"type": "InternalIP", "address": "10.1.2.3"}]
    labels = {"test": env.name, "kubeocean.io/policy-applied": policy}
    body: Json = {
        "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
        "kind": "ResourceLeasingPolicy",
        "metadata": {"name": policy, "finalizers": ["policy.kubeocean.io/finalizer"]},
        "spec": {"cluster": env.name},
    }
    await env.worker_client.create(RESOURCE_LEASING_POLICIES, body)
    node_body: Json = {"metadata": {"name": node, "labels": labels}}
    pnode = await env.worker_client.create(
        NODES, node_body | {"status": status | {"addresses": address}}
    )
    shown = labels | {
        "kubeocean.io/managed-by": "kubeocean",
        "kubeocean.io/cluster-binding": env.name,
        "kubeocean.io/physical-cluster-id": env.cluster_id,
        "kubeocean.io/physical-node-name": node,
        "kubeocean.io/physical-node-uid": pnode.uid,
        "type": "virtual-kubelet",
        "kubernetes.io/hostname": vnode,
    }
    taint = {"key": "kubeocean.io/vnode", "effect": "NoSchedule"}
    notes = {
        "kubeocean.io/physical-node-name": node,
        "kubeocean.io/physical-node-uid": pnode.uid,
        "kubeocean.io/policies-applied": policy,
    }
    expected = json.dumps({"labels": shown, "annotations": notes, "taints": [taint]}).encode()
    notes |= {
        "kubeocean.io/expected-metadata": base64.b64encode(expected).decode(),
        "kubeocean.io/last-sync-time": LONG_AGO,
        "somebody.example/note": "kept",
    }
    metadata = {
        "name": vnode,
        "labels": shown,
        "annotations": notes,
        "finalizers": ["kubeocean.io/vnode"],
    }
    body = {"metadata": metadata, "spec": {"taints": [taint]}, "status": status}
    await made(installation, env.computing_client, NODES, body)


async def run_pod(installation: EarlierInstallation) -> None:
    """Create a pod that runs in the worker, with a ConfigMap in both clusters."""
    env, space, mount = installation.env, installation.namespace, installation.mount
    await make_namespace(env.computing_client, space)
    copy, pod = physical_name("settings", space), physical_name("web", space)
    original = {
        "name": "settings",
        "namespace": space,
        "labels": {
            "kubeocean.io/managed-by": "kubeocean",
            f"kubeocean.io/synced-by-{env.cluster_id}": "true",
        },
        "annotations": {
            "kubeocean.io/physical-name": copy,
            "kubeocean.io/physical-namespace": mount,
        },
        "finalizers": [f"kubeocean.io/finalizer-{env.cluster_id}"],
    }
    await made(
        installation, env.computing_client, CONFIG_MAPS, {"metadata": original, "data": {"a": "b"}}
    )
    copy_metadata = {
        "name": copy,
        "namespace": mount,
        "labels": {"kubeocean.io/managed-by": "kubeocean"},
        "annotations": {
            "kubeocean.io/virtual-name": "settings",
            "kubeocean.io/virtual-namespace": space,
        },
    }
    await made(
        installation,
        env.worker_client,
        CONFIG_MAPS,
        {"metadata": copy_metadata, "data": {"a": "b"}},
    )

    def body(node: str, config: str, metadata: Json) -> Json:
        return {
            "metadata": metadata,
            "spec": {
                "nodeName": node,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": "c",
                        "image": "none",
                        "envFrom": [{"configMapRef": {"name": config}}],
                    }
                ],
            },
            "status": {
                "phase": "Running",
                "podIP": "10.2.3.4",
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    ours = {"app": "web", "kubeocean.io/managed-by": "kubeocean"}
    virtual = {"name": "web", "namespace": space, "labels": ours}
    await usable(env.computing_client, space)
    vpod = await made(
        installation, env.computing_client, PODS, body(installation.vnode, "settings", virtual)
    )
    annotations = {
        "kubeocean.io/virtual-pod-namespace": space,
        "kubeocean.io/virtual-pod-name": "web",
        "kubeocean.io/virtual-pod-uid": vpod.uid,
        "kubeocean.io/virtual-node-name": installation.vnode,
    }
    expected = json.dumps({"labels": {"app": "web"}, "annotations": {}}).encode()
    annotations["kubeocean.io/expected-metadata"] = base64.b64encode(expected).decode()
    labels = ours | {"kubeocean.io/virtual-namespace": space, "kubeocean.io/workload-type": "pod"}
    physical = {"name": pod, "namespace": mount, "labels": labels, "annotations": annotations}
    await usable(env.worker_client, mount)
    ppod = await made(
        installation, env.worker_client, PODS, body(installation.node, copy, physical)
    )
    mapping = {
        "kubeocean.io/physical-pod-namespace": mount,
        "kubeocean.io/physical-pod-name": pod,
        "kubeocean.io/physical-pod-uid": ppod.uid,
    }
    patch = MergePatch({"metadata": {"annotations": mapping}})
    await env.computing_client.patch(PODS, "web", patch, space)


@pytest.fixture
async def installation(env: ManagerEnv, cluster: Cluster, client: Client) -> EarlierInstallation:
    """A running installation of the earlier implementation."""
    await install_our_kinds(client)
    await make_namespace(client, f"m-{env.name}")
    installation = await relic_of(env)
    await create_virtual_node(installation)
    await run_pod(installation)
    assert await installation.now() == installation.ids
    return installation


async def ended(installation: EarlierInstallation) -> bool:
    """Play the kubelet of the worker's node: a pod that is deleted ends."""
    worker_client = installation.env.worker_client
    ppods = (await worker_client.list(PODS, installation.mount)).items
    for each in ppods:
        if each.deleting:
            await worker_client.delete(PODS, each.name, installation.mount, uid=each.uid, grace_s=0)
    return not ppods


async def test_an_installation_of_the_earlier_implementation_is_adopted(
    installation: EarlierInstallation, tmp_path: Path
) -> None:
    env = installation.env
    faults = Faults()
    few = await granted_kubeconfig(
        env.worker, installation.mount, without=["list services", "create pods"], make=False
    )
    await env.write_secret(few.read_bytes())
    async with env.managed(faults):
        # Its account lacks rights that our program needs, so running objects are not changed.
        message = await env.wait_for_condition("Ready", "False", "PermissionsMissing")
        assert (
            f"create pods in {installation.mount}; list services in {installation.mount}" in message
        )
        assert not [each for each in faults.requests if "/deployments/" in each.path]
        assert await installation.now() == installation.ids

        await env.write_secret(env.worker.kubeconfig.read_bytes())
        await env.wait_for_event("RolledOut")
        account = await env.computing_cluster.service_account(SYSTEM, "kubeocean-syncer")
        async with syncer(
            "one",
            f"--cluster-binding-name={env.name}",
            f"--leader-election-namespace={SYSTEM}",
            f"--leader-election-id={env.deployment('syncer')}",
            "--kubernetes-service-address=10.9.9.9:443",
            "--dns-service-address=10.9.9.10",
            kubeconfig=account,
            directory=tmp_path,
        ) as one:
            await until(one.is_ready)
            await env.run()
            await env.wait_for_phase("Ready")
            await env.wait_for_condition("SyncerReady", "True", "SyncerCreated")

            async def adopted() -> bool:
                ppod = await env.worker_client.get(
                    PODS, physical_name("web", installation.namespace), installation.mount
                )
                return ppod.labels.get("kubeocean.io/cluster-binding") == env.name

            await until(adopted)
            assert await installation.now() == installation.ids
            vpod = await env.computing_client.get(PODS, "web", installation.namespace)
            assert vpod.status.phase == "Running"
            vnode = await env.computing_client.get(NODES, installation.vnode)
            assert vnode.annotations["somebody.example/note"] == "kept"
            binding = await env.binding()
            assert binding.uid == installation.binding.uid
            assert set(installation.binding.metadata.finalizers or ()) == set(
                binding.metadata.finalizers or ()
            )

            # And it ends as one of ours does, with a syncer that clears up.
            await env.unbind()
            await until(lambda: ended(installation))
            await until(env.is_gone)
            reasons = {each.reason for each in await env.events()}
            assert "CleanupUnconfirmed" not in reasons
            assert await env.vnodes() == []
            assert await env.deployments() == {}
