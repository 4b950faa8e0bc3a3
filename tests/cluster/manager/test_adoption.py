"""An installation of the earlier implementation, taken over where it stands."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.naming import physical_name, virtual_node
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.installation.applying import resource_of
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Faults
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, NODES, PODS, SERVICES
from kubeocean.runtime.objects import Json, Object, Resource
from kubeocean.runtime.patches import MergePatch
from managing import SYSTEM, Harbour, granted_kubeconfig
from ourkinds import install_our_kinds
from podseas import make_namespace, usable
from rollouts import made_by_go
from syncers import syncer
from waiting import until

LONG_AGO = "2025-11-01T00:00:00Z"
AMOUNTS = {"cpu": "8", "memory": "32Gi", "pods": "110"}


@dataclass
class Relic:
    """Everything that the earlier implementation has made for one binding."""

    harbour: Harbour
    binding: ClusterBinding
    ids: dict[tuple[str, str, str], str] = field(default_factory=dict)  # UIDs by where it is

    @property
    def node(self) -> str:
        return f"{self.harbour.name}-n1"

    @property
    def vnode(self) -> str:
        return virtual_node(self.harbour.cluster_id, self.node)

    @property
    def mount(self) -> str:
        return f"m-{self.harbour.name}"

    @property
    def namespace(self) -> str:
        return f"v-{self.harbour.name}"

    def remember(self, client: Client, resource: Resource[Object], obj: Object) -> None:
        side = "above" if client is self.harbour.above else "below"
        self.ids[side, str(resource), f"{obj.namespace}/{obj.name}"] = obj.uid

    async def now(self) -> dict[tuple[str, str, str], str]:
        """The UIDs of all objects of those kinds that are this binding's, or look like it."""
        found: dict[tuple[str, str, str], str] = {}
        above, below = self.harbour.above, self.harbour.below
        for client, resource, namespace in (
            (above, NODES, ""),
            (above, PODS, self.namespace),
            (above, CONFIG_MAPS, self.namespace),
            (below, PODS, self.mount),
            (below, CONFIG_MAPS, self.mount),
            (above, SERVICES, SYSTEM),
        ):
            side = "above" if client is above else "below"
            for each in (await client.list(resource, namespace)).items:
                mine = resource is not NODES and resource is not SERVICES
                named = self.harbour.cluster_id in each.name
                if (mine or named) and each.name != "kube-root-ca.crt":
                    assert not each.deleting
                    found[side, str(resource), f"{each.namespace}/{each.name}"] = each.uid
        for name, uid in (await self.harbour.deployments()).items():
            found["above", "deployments.apps", f"{SYSTEM}/{name}"] = uid
        return found


async def made(relic: Relic, client: Client, resource: Resource[Object], body: Json) -> Object:
    """An object of the relic; with its status, if it has one."""
    namespace = body["metadata"].get("namespace", "")
    there = await client.create(resource, body)
    if status := body.get("status"):
        patch = MergePatch({"status": status})
        there = await client.patch(resource, there.name, patch, namespace, subresource="status")
    relic.remember(client, resource, there)
    return there


async def relic_of(harbour: Harbour) -> Relic:
    """The binding with its Secret and status, as the earlier implementation leaves them."""
    body = {
        "apiVersion": CLUSTER_BINDINGS.api_version,
        "kind": "ClusterBinding",
        "metadata": {
            "name": harbour.name,
            "finalizers": [
                "kubeocean.io/clusterbinding-manager",
                "kubeocean.io/clusterbinding-syncer",
            ],
        },
        "spec": {
            "clusterID": harbour.cluster_id,
            "secretRef": {"name": harbour.name, "namespace": SYSTEM},
            "mountNamespace": f"m-{harbour.name}",
            "directScheduling": True,
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "test", "operator": "In", "values": [harbour.name]}
                        ]
                    }
                ]
            },
        },
    }
    harbour.made.append(harbour.name)
    binding = await harbour.above.create(CLUSTER_BINDINGS, body)
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
    binding = await harbour.above.patch(CLUSTER_BINDINGS, harbour.name, patch, subresource="status")
    relic = Relic(harbour, binding)
    writer = harbour.home.client()
    writer.field_manager = "manager"
    for each in made_by_go(binding, SYSTEM):
        resource = resource_of(each)
        there = await writer.create(resource, each)
        relic.remember(harbour.above, resource, there)
    await writer.close()
    return relic


async def lend(relic: Relic) -> None:
    """A node of the worker, its policy, and its virtual node."""
    harbour, node, vnode = relic.harbour, relic.node, relic.vnode
    policy = f"{harbour.name}-policy"
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
    labels = {"test": harbour.name, "kubeocean.io/policy-applied": policy}
    body: Json = {
        "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
        "kind": "ResourceLeasingPolicy",
        "metadata": {"name": policy, "finalizers": ["policy.kubeocean.io/finalizer"]},
        "spec": {"cluster": harbour.name},
    }
    await harbour.below.create(RESOURCE_LEASING_POLICIES, body)
    below: Json = {"metadata": {"name": node, "labels": labels}}
    pnode = await harbour.below.create(NODES, below | {"status": status | {"addresses": address}})
    shown = labels | {
        "kubeocean.io/managed-by": "kubeocean",
        "kubeocean.io/cluster-binding": harbour.name,
        "kubeocean.io/physical-cluster-id": harbour.cluster_id,
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
    await made(relic, harbour.above, NODES, body)


async def run_pod(relic: Relic) -> None:
    """A pod that runs in the worker, with a ConfigMap of its own on both sides."""
    harbour, space, mount = relic.harbour, relic.namespace, relic.mount
    await make_namespace(harbour.above, space)
    copy, pod = physical_name("settings", space), physical_name("web", space)
    original = {
        "name": "settings",
        "namespace": space,
        "labels": {
            "kubeocean.io/managed-by": "kubeocean",
            f"kubeocean.io/synced-by-{harbour.cluster_id}": "true",
        },
        "annotations": {
            "kubeocean.io/physical-name": copy,
            "kubeocean.io/physical-namespace": mount,
        },
        "finalizers": [f"kubeocean.io/finalizer-{harbour.cluster_id}"],
    }
    await made(relic, harbour.above, CONFIG_MAPS, {"metadata": original, "data": {"a": "b"}})
    below = {
        "name": copy,
        "namespace": mount,
        "labels": {"kubeocean.io/managed-by": "kubeocean"},
        "annotations": {
            "kubeocean.io/virtual-name": "settings",
            "kubeocean.io/virtual-namespace": space,
        },
    }
    await made(relic, harbour.below, CONFIG_MAPS, {"metadata": below, "data": {"a": "b"}})

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
    await usable(harbour.above, space)
    vpod = await made(relic, harbour.above, PODS, body(relic.vnode, "settings", virtual))
    said = {
        "kubeocean.io/virtual-pod-namespace": space,
        "kubeocean.io/virtual-pod-name": "web",
        "kubeocean.io/virtual-pod-uid": vpod.uid,
        "kubeocean.io/virtual-node-name": relic.vnode,
    }
    expected = json.dumps({"labels": {"app": "web"}, "annotations": {}}).encode()
    said["kubeocean.io/expected-metadata"] = base64.b64encode(expected).decode()
    labels = ours | {"kubeocean.io/virtual-namespace": space, "kubeocean.io/workload-type": "pod"}
    physical = {"name": pod, "namespace": mount, "labels": labels, "annotations": said}
    await usable(harbour.below, mount)
    ppod = await made(relic, harbour.below, PODS, body(relic.node, copy, physical))
    mapping = {
        "kubeocean.io/physical-pod-namespace": mount,
        "kubeocean.io/physical-pod-name": pod,
        "kubeocean.io/physical-pod-uid": ppod.uid,
    }
    patch = MergePatch({"metadata": {"annotations": mapping}})
    await harbour.above.patch(PODS, "web", patch, space)


@pytest.fixture
async def relic(harbour: Harbour, cluster: Cluster, client: Client) -> Relic:
    """What the earlier implementation has left behind, at work."""
    await install_our_kinds(client)
    await make_namespace(client, f"m-{harbour.name}")
    relic = await relic_of(harbour)
    await lend(relic)
    await run_pod(relic)
    assert await relic.now() == relic.ids
    return relic


async def ended(relic: Relic) -> bool:
    """Play the kubelet of the worker's node: a pod that is deleted ends."""
    below = relic.harbour.below
    ppods = (await below.list(PODS, relic.mount)).items
    for each in ppods:
        if each.deleting:
            await below.delete(PODS, each.name, relic.mount, uid=each.uid, grace_s=0)
    return not ppods


async def test_an_installation_of_the_earlier_implementation_is_adopted(
    relic: Relic, tmp_path: Path
) -> None:
    harbour = relic.harbour
    faults = Faults()
    few = await granted_kubeconfig(
        harbour.worker, relic.mount, without=["list services", "create pods"], make=False
    )
    await harbour.keep_secret(few.read_bytes())
    async with harbour.managed(faults):
        # Its account may not do what ours needs: nothing that runs is touched.
        said = await harbour.says("Ready", "False", "PermissionsMissing")
        assert f"create pods in {relic.mount}; list services in {relic.mount}" in said
        assert not [each for each in faults.requests if "/deployments/" in each.path]
        assert await relic.now() == relic.ids

        await harbour.keep_secret(harbour.worker.kubeconfig.read_bytes())
        await harbour.happened("RolledOut")
        account = await harbour.home.service_account(SYSTEM, "kubeocean-syncer")
        async with syncer(
            "one",
            f"--cluster-binding-name={harbour.name}",
            f"--leader-election-namespace={SYSTEM}",
            f"--leader-election-id={harbour.deployment('syncer')}",
            "--kubernetes-service-address=10.9.9.9:443",
            "--dns-service-address=10.9.9.10",
            kubeconfig=account,
            directory=tmp_path,
        ) as one:
            await until(one.is_ready)
            await harbour.run()
            await harbour.is_in("Ready")
            await harbour.says("SyncerReady", "True", "SyncerCreated")

            async def adopted() -> bool:
                ppod = await harbour.below.get(
                    PODS, physical_name("web", relic.namespace), relic.mount
                )
                return ppod.labels.get("kubeocean.io/cluster-binding") == harbour.name

            await until(adopted)
            assert await relic.now() == relic.ids
            vpod = await harbour.above.get(PODS, "web", relic.namespace)
            assert vpod.status.phase == "Running"
            vnode = await harbour.above.get(NODES, relic.vnode)
            assert vnode.annotations["somebody.example/note"] == "kept"
            binding = await harbour.binding()
            assert binding.uid == relic.binding.uid
            assert set(relic.binding.metadata.finalizers or ()) == set(
                binding.metadata.finalizers or ()
            )

            # And it ends as one of ours does, with a syncer that clears up.
            await harbour.unbind()
            await until(lambda: ended(relic))
            await until(harbour.is_gone)
            told = {each.reason for each in await harbour.events()}
            assert "CleanupUnconfirmed" not in told
            assert await harbour.vnodes() == []
            assert await harbour.deployments() == {}
