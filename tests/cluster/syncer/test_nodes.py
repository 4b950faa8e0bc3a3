"""Virtual nodes of lent nodes, on two real control planes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.kinds import LEASES, NODES, PODS, Node
from kubeocean.runtime.objects import Json
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.syncer.app import Syncer
from support.background import running
from support.binding_env import BindingEnv
from support.faults import Faults, SkewedClock
from support.syncer_context import crossing
from support.wait import until


async def test_each_lent_node_has_its_virtual_node(binding_env: BindingEnv) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(resourceLimits=[{"resource": "cpu", "percent": 50}])
    for n in range(3):
        await binding_env.add_node(f"n{n}")
    async with binding_env.syncing():

        async def three() -> bool:
            return len(await binding_env.vnodes()) == 3

        await until(three)
        vnode = (await binding_env.vnodes())[0]
        pnode = await binding_env.worker_api.get(NODES, f"{binding_env.name}-n0")
        assert vnode.name == f"vnode-{binding_env.cluster_id}-{binding_env.name}-n0"
        assert vnode.labels["kubeocean.io/managed-by"] == "kubeocean"
        assert vnode.labels["kubeocean.io/physical-node-uid"] == pnode.uid
        assert vnode.labels["kubeocean.io/policy-applied"] == policy
        assert vnode.labels["test"] == binding_env.name
        assert vnode.annotations["kubeocean.io/policies-applied"] == policy
        assert "kubeocean.io/vnode" in [t.key for t in vnode.spec.taints or ()]
        assert vnode.status.allocatable == {"cpu": "4", "memory": "32Gi", "pods": "110"}
        content = vnode.content()
        assert content["metadata"]["finalizers"] == ["kubeocean.io/vnode"]
        assert content["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == int(
            vnode.labels["kubeocean.io/proxier_port"]
        )

        async def leased() -> bool:
            fields = f"metadata.name={vnode.name}"
            listing = await binding_env.computing_api.list(LEASES, "kube-node-lease", fields=fields)
            return [lease.spec.holder_identity for lease in listing.items] == [vnode.name]

        await until(leased)

        async def labelled() -> bool:
            node = await binding_env.worker_api.get(NODES, f"{binding_env.name}-n0")
            return node.labels.get("kubeocean.io/policy-applied") == policy

        await until(labelled)


class _LatePods:
    """Transport on which a list of the pods of all namespaces starts only after `released`."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.released = asyncio.Event()

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        return await self._inner.send(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        if request.path == "/api/v1/pods":
            await self.released.wait()
        async with self._inner.stream(request) as stream:
            yield stream

    @asynccontextmanager
    async def upgrade(self, request: Request, protocol: str) -> AsyncIterator[Tunnel]:
        async with self._inner.upgrade(request, protocol) as tunnel:
            yield tunnel

    async def close(self) -> None:
        await self._inner.close()


async def test_nodes_are_lent_once_the_last_cache_has_synced_without_a_timer(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    late: list[_LatePods] = []

    def delayed(transport: Transport) -> Transport:
        late.append(_LatePods(transport))
        return late[-1]

    clock = VirtualClock(datetime.now(UTC))  # stands still
    async with (
        crossing(binding_env, worker_api=delayed, clock=clock) as clusters,
        running(Syncer(clusters)),
    ):

        def has_retries(controller: str) -> bool:
            labels = {"controller": f"{controller}-{binding_env.name}", "result": "requeue_after"}
            return bool(clusters.metrics.value("controller_runtime_reconcile_total", labels))

        await until(lambda: has_retries("node"))
        assert not await binding_env.vnodes()
        late[0].released.set()
        await until(binding_env.vnodes)


async def test_a_virtual_node_has_the_marks_of_the_design_documents(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    deciding = await binding_env.lend(f"{binding_env.name}-a")
    other = await binding_env.lend(f"{binding_env.name}-b")
    await binding_env.add_node("n")
    proxier = await binding_env.computing_api.create(
        PODS, _proxier(binding_env), namespace=namespace
    )
    running_at = MergePatch({"status": {"phase": "Running", "podIP": "10.9.8.7"}})
    await binding_env.computing_api.patch(
        PODS, proxier.name, running_at, namespace, subresource="status"
    )
    async with (
        crossing(binding_env, proxier_namespace=namespace) as clusters,
        running(Syncer(clusters)),
    ):

        async def marked() -> bool:
            nodes = await binding_env.vnodes()
            assert len(nodes) == 1
            node = nodes[0]
            labels = {key: node.labels.get(f"kubeocean.io/{key}") for key in MARKS}
            assert labels == {
                "cluster-id": binding_env.cluster_id,
                "physical-node": f"{binding_env.name}-n",
                "node-type": "virtual",
            }
            annotations = node.annotations
            assert annotations.get("kubeocean.io/cluster-binding") == binding_env.name
            policies = annotations.get("kubeocean.io/resource-policy")
            assert policies == f"{deciding},{other}"
            addresses = node.content()["status"]["addresses"]
            return {"type": "InternalIP", "address": "10.9.8.7"} in addresses

        await until(marked)


MARKS = ("cluster-id", "physical-node", "node-type")


def _proxier(binding_env: BindingEnv) -> Json:
    """Return the manifest of a replica of the binding's proxier."""
    labels = {
        "app.kubernetes.io/name": "kubeocean-proxier",
        "app.kubernetes.io/instance": binding_env.name,
    }
    spec = {"nodeName": "none", "containers": [{"name": "c", "image": "none"}]}
    return {"metadata": {"name": "proxier", "labels": labels}, "spec": spec}


@dataclass
class LongerId(BindingEnv):
    """A binding whose clusterID begins with that of another one."""

    shorter: str = ""

    @property
    def cluster_id(self) -> str:
        return self.shorter


async def test_bindings_whose_cluster_ids_are_prefixes_of_each_other_keep_their_nodes(
    binding_env: BindingEnv,
) -> None:
    longer = LongerId(
        binding_env.computing,
        binding_env.worker,
        binding_env.computing_api,
        binding_env.worker_api,
        shorter=f"{binding_env.cluster_id}-{binding_env.name}",
    )
    for env in (binding_env, longer):
        await env.bind()
        await env.lend()
    # Both nodes would have the same virtual node; the third has the other binding's prefix only.
    await binding_env.add_node(f"{longer.name}-n")
    await longer.add_node("m")

    def own(env: BindingEnv, node: Node) -> tuple[str, str]:
        return node.name, node.labels["kubeocean.io/physical-cluster-id"]

    async with binding_env.syncing():
        (first,) = await until(binding_env.vnodes)
        await longer.add_node("n")
        assert first.name == f"vnode-{longer.cluster_id}-{longer.name}-n"
        async with longer.syncing():

            async def reported() -> bool:
                return "NameTaken" in await binding_env.events(first.name)

            await until(reported)
            (other,) = await until(longer.vnodes)
            assert own(longer, other) == (
                f"vnode-{longer.cluster_id}-{longer.name}-m",
                longer.cluster_id,
            )
            assert [node.uid for node in await binding_env.vnodes()] == [first.uid]
            await binding_env.unbind()
            await until(binding_env.is_unbound)

            async def taken_over() -> bool:
                nodes = await longer.vnodes()
                return {other.uid} < {node.uid for node in nodes} and len(nodes) == 2

            await until(taken_over)
            assert first.uid not in {node.uid for node in await longer.vnodes()}


async def test_the_nodes_of_a_worker_that_is_gone_are_removed_only_if_a_flag_says_so(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    faults, clock = Faults(), SkewedClock(rate=20.0)
    async with (
        crossing(
            binding_env, worker_api=faults.wrap, clock=clock, remove_nodes_after_s=120
        ) as clusters,
        running(Syncer(clusters)),
    ):
        (first,) = await until(binding_env.vnodes)
        faults.partition()
        await until(lambda: not clusters.worker_health.answers)
        lost_at = clusters.worker_health.since

        async def removed() -> bool:
            return not await binding_env.vnodes()

        await until(removed)
        assert (clock.now() - lost_at).total_seconds() >= 120

        async def reported() -> bool:
            condition = await binding_env.condition("NodesExpired")
            assert condition[:2] == ("True", "WorkerUnreachable")
            return "Expired" in await binding_env.events(first.name)

        await until(reported)
        faults.rejoin()

        async def back() -> bool:
            assert (await binding_env.condition("NodesExpired"))[:2] == ("False", "WorkerAnswers")
            return [node.name for node in await binding_env.vnodes()] == [first.name]

        await until(back)
        assert (await binding_env.condition("PoliciesValid"))[:2] == ("True", "PoliciesValid")


async def test_user_labels_and_taints_stay(binding_env: BindingEnv) -> None:
    await binding_env.bind()
    await binding_env.lend()
    pnode = await binding_env.add_node("n")
    async with binding_env.syncing():
        vnode = (await until(binding_env.vnodes))[0]
        taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
        taints = [*vnode.content()["spec"]["taints"], taint]
        body = {"metadata": {"labels": {"mine": "yes"}}, "spec": {"taints": taints}}
        await binding_env.computing_api.patch(NODES, vnode.name, MergePatch(body))
        body = {"metadata": {"labels": {"zone": "z1", "test": binding_env.name}}}
        await binding_env.worker_api.patch(NODES, pnode.name, MergePatch(body))

        async def followed() -> bool:
            node = (await binding_env.vnodes())[0]
            keys = [t.key for t in node.spec.taints or ()]
            return (
                node.labels.get("zone") == "z1"
                and node.labels.get("mine") == "yes"
                and "team" in keys
            )

        await until(followed)
        body = {"metadata": {"labels": {"zone": None}}}
        await binding_env.worker_api.patch(NODES, pnode.name, MergePatch(body))

        async def gone() -> bool:
            node = (await binding_env.vnodes())[0]
            return "zone" not in node.labels and node.labels.get("mine") == "yes"

        await until(gone)


async def test_a_node_shows_of_its_worker_what_the_binding_trusts_it_with(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    role, restricted = "node-role.kubernetes.io/control-plane", "node-restriction.kubernetes.io/x"
    allowed = {"topology.kubernetes.io/zone": "z1", "example.com/pool": "a"}
    refused = {role: "", restricted: "yes"}
    await binding_env.add_node("n", labels=allowed | refused)
    async with binding_env.syncing():
        vnode = (await until(binding_env.vnodes))[0]
        assert allowed.items() <= vnode.labels.items()
        assert not refused.keys() & vnode.labels.keys()
        mine = {"metadata": {"labels": {"node-role.kubernetes.io/burst": ""}}}
        await binding_env.computing_api.patch(NODES, vnode.name, MergePatch(mine))

        async def shows(labels: dict[str, str]) -> bool:
            (node,) = await binding_env.vnodes()
            shown = {key: node.labels[key] for key in refused if key in node.labels}
            return shown == labels and "node-role.kubernetes.io/burst" in node.labels

        for trust, labels in (("Full", refused), ("Kubelet", {})):
            patch = MergePatch({"spec": {"workerTrust": trust}})
            await binding_env.computing_api.patch(CLUSTER_BINDINGS, binding_env.name, patch)
            await until(partial(shows, labels))


async def test_the_virtual_node_of_a_deleted_node_is_deleted(binding_env: BindingEnv) -> None:
    await binding_env.bind()
    await binding_env.lend()
    pnode = await binding_env.add_node("n")
    async with binding_env.syncing():
        await until(binding_env.vnodes)
        await binding_env.worker_api.delete(NODES, pnode.name, uid=pnode.uid)

        async def none() -> bool:
            return not await binding_env.vnodes()

        await until(none)


async def test_a_virtual_node_deleted_by_hand_comes_back(binding_env: BindingEnv) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    async with binding_env.syncing():
        first = (await until(binding_env.vnodes))[0]
        await binding_env.computing_api.delete(NODES, first.name, uid=first.uid)

        async def again() -> bool:
            nodes = await binding_env.vnodes()
            return bool(nodes) and nodes[0].uid != first.uid and not nodes[0].deleting

        await until(again)


async def test_virtual_nodes_of_nodes_and_policies_deleted_meanwhile_are_reclaimed_at_the_start(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    lost = await binding_env.lend(
        f"{binding_env.name}-lost",
        nodeSelector=binding_env.selector(**binding_env.label, role="lost"),
    )
    kept = await binding_env.lend(
        f"{binding_env.name}-kept",
        nodeSelector=binding_env.selector(**binding_env.label, role="kept"),
    )
    for name, role in (("a", "kept"), ("b", "kept"), ("c", "kept"), ("d", "lost")):
        await binding_env.add_node(name, labels={"role": role})
    async with binding_env.syncing():

        async def labelled() -> bool:
            nodes = [
                await binding_env.worker_api.get(NODES, f"{binding_env.name}-{name}")
                for name in "abcd"
            ]
            applied = [node.labels.get("kubeocean.io/policy-applied") for node in nodes]
            return applied == [kept, kept, kept, lost] and len(await binding_env.vnodes()) == 4

        await until(labelled)
    first = (await binding_env.vnodes())[0]
    # One node is deleted, another is not selected any more, and a policy is deleted without a
    # finalizer.
    gone = await binding_env.worker_api.get(NODES, f"{binding_env.name}-b")
    await binding_env.worker_api.delete(NODES, gone.name, uid=gone.uid)
    unselected = MergePatch({"metadata": {"labels": {"role": "other"}}})
    await binding_env.worker_api.patch(NODES, f"{binding_env.name}-c", unselected)
    policy = await binding_env.worker_api.patch(
        RESOURCE_LEASING_POLICIES, lost, MergePatch({"metadata": {"finalizers": None}})
    )
    await binding_env.worker_api.delete(RESOURCE_LEASING_POLICIES, lost, uid=policy.uid)
    await _stray(binding_env, first.content())
    async with binding_env.syncing():

        async def only_one() -> bool:
            names = [node.name for node in await binding_env.vnodes()]
            assert names == [first.name]
            for name in "cd":
                node = await binding_env.worker_api.get(NODES, f"{binding_env.name}-{name}")
                assert "kubeocean.io/policy-applied" not in node.labels
            return True

        await until(only_one)
        assert (await binding_env.vnodes())[0].uid == first.uid


async def test_the_error_page_of_a_proxy_does_not_prove_that_a_node_is_gone(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    pnode = await binding_env.add_node("n")
    async with binding_env.syncing():
        first = (await until(binding_env.vnodes))[0]
    await binding_env.worker_api.delete(NODES, pnode.name, uid=pnode.uid)
    faults = Faults()

    def reads_node(request: Request) -> bool:
        return request.path.endswith(f"/nodes/{pnode.name}")

    def answered() -> int:
        return sum(map(reads_node, faults.requests))

    faults.answer(404, times=1 << 60, when=reads_node, page=b"<html>no backend</html>")
    async with binding_env.syncing(worker_api=faults.wrap):
        await until(lambda: answered() >= 3)
        assert [(node.uid, node.deleting) for node in await binding_env.vnodes()] == [
            (first.uid, False)
        ]
        faults.heal()

        async def none() -> bool:
            return not await binding_env.vnodes()

        await until(none)


async def _stray(binding_env: BindingEnv, like: Json) -> None:
    """Create a virtual node of the binding that names a worker's node of another name."""
    given = {key: like["metadata"][key] for key in ("labels", "annotations", "finalizers")}
    name = f"vnode-{binding_env.cluster_id}-stray"
    await binding_env.computing_api.create(NODES, {"metadata": {"name": name, **given}})


async def test_a_virtual_node_that_lost_the_name_of_its_node_gets_it_back(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    name = "kubeocean.io/physical-node-name"
    async with binding_env.syncing():
        first = (await until(binding_env.vnodes))[0]
        stripped = {"metadata": {"labels": {name: None}, "annotations": {name: None}}}
        await binding_env.computing_api.patch(NODES, first.name, MergePatch(stripped))

        async def restored() -> bool:
            (node,) = await binding_env.vnodes()
            assert node.uid == first.uid
            return node.labels.get(name) == node.annotations.get(name) == f"{binding_env.name}-n"

        await until(restored)
