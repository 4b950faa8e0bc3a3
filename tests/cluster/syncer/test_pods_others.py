"""Foreign pods, pods of other bindings, and pods of the earlier implementation."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

from kubeocean.api import naming
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.ownership import ownership_labels, pod_marks
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.views import PHYSICAL_PODS, PhysicalPod, VirtualPod
from support.faults import Faults
from support.pod_env import PodEnv, settled, writes
from support.wait import until


async def place(env: PodEnv, name: str, **metadata: object) -> PhysicalPod:
    """Return a pod of the worker that this syncer did not create."""
    body = {
        "metadata": {"name": name, "namespace": env.mount, **metadata},
        "spec": {
            "nodeName": env.pnodes[0],
            "containers": [{"name": "c", "image": "none"}],
            "automountServiceAccountToken": False,
        },
    }
    return await env.worker_api.create(PHYSICAL_PODS, body)


def go_made(env: PodEnv, vpod: VirtualPod) -> Json:
    """Return the metadata that the earlier implementation writes to a physical pod."""
    seen = {"labels": {"app": "web"}, "annotations": {}}
    return {
        "labels": {
            "app": "web",
            "kubeocean.io/managed-by": "kubeocean",
            "kubeocean.io/virtual-namespace": vpod.namespace,
            "kubeocean.io/workload-type": "pod",
        },
        "annotations": {
            "kubeocean.io/virtual-pod-namespace": vpod.namespace,
            "kubeocean.io/virtual-pod-name": vpod.name,
            "kubeocean.io/virtual-pod-uid": vpod.uid,
            "kubeocean.io/virtual-node-name": env.vnode(env.pnodes[0]),
            "kubeocean.io/expected-metadata": base64.b64encode(json.dumps(seen).encode()).decode(),
        },
    }


async def versions(env: PodEnv, *pods: PhysicalPod) -> list[str]:
    """Return UID and metadata of pods, which no kubelet changes."""
    ppods = [
        await env.worker_api.get(PHYSICAL_PODS, p.name, p.namespace, keep_raw=True) for p in pods
    ]
    return [
        json.dumps({k: v for k, v in pod.content()["metadata"].items() if k in _KEPT})
        for pod in ppods
    ]


_KEPT = ("uid", "labels", "annotations", "deletionTimestamp", "ownerReferences", "finalizers")


async def test_a_foreign_pod_of_our_name_is_never_touched(pod_env: PodEnv) -> None:
    plain = await place(pod_env, pod_env.ppod_name("web"))
    marked = {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/cluster-binding": "another"}
    theirs = await place(pod_env, pod_env.ppod_name("db"), labels=marked)
    before = await versions(pod_env, plain, theirs)
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api):
        vpods = [await pod_env.run(name) for name in ("web", "db")]
        for pod in vpods:
            await until(lambda pod=pod: pod_env.runs(pod.name))
            second = naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid)
            assert (await pod_env.ppod(pod.name)).name == second
        await settled(computing_api, worker_api)
        for pod in vpods:
            await pod_env.delete(pod)
            await until(lambda pod=pod: pod_env.gone(pod.name))
    assert await versions(pod_env, plain, theirs) == before


async def test_a_pod_with_both_names_taken_is_reported(pod_env: PodEnv) -> None:
    await place(pod_env, pod_env.ppod_name("web"))
    pod = await pod_env.run()
    second = naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid)
    foreign = await place(pod_env, second)
    async with pod_env.pods():
        (event, *_) = await until(lambda: pod_env.told_of("web", "FailedCreatePod"))
        assert "has the name of the copy and another owner" in event.message
        await pod_env.worker_api.delete(
            PHYSICAL_PODS, foreign.name, foreign.namespace, uid=foreign.uid, grace_s=0
        )
        await until(pod_env.runs)


async def test_pods_of_the_earlier_implementation_are_taken_over(pod_env: PodEnv) -> None:
    pod = await pod_env.run(metadata={"labels": {"app": "web"}})
    ppod = await place(pod_env, pod_env.ppod_name(), **go_made(pod_env, pod))
    mapping = {
        "kubeocean.io/physical-pod-namespace": pod_env.mount,
        "kubeocean.io/physical-pod-name": ppod.name,
    }
    await pod_env.patch_above(pod, "status", metadata={"annotations": mapping})
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api):
        await until(pod_env.runs)
        await settled(computing_api, worker_api)
        taken = await pod_env.ppod()
        assert taken.uid == ppod.uid
        assert taken.labels["kubeocean.io/cluster-binding"] == pod_env.name
        await pod_env.patch_above(pod, metadata={"labels": {"app": "new"}})

        async def changed() -> bool:
            return (await pod_env.ppod()).labels["app"] == "new"

        await until(changed)
        await pod_env.delete(pod)
        await until(pod_env.gone)
    assert "POST pods" not in writes(worker_api)


async def test_orphans_of_the_earlier_implementation_are_not_deleted(pod_env: PodEnv) -> None:
    pod = await pod_env.run()
    metadata = go_made(pod_env, pod)
    metadata["annotations"]["kubeocean.io/virtual-pod-uid"] = "of-an-earlier-pod"
    orphan = await place(pod_env, pod_env.ppod_name(), **metadata)
    before = await versions(pod_env, orphan)
    async with pod_env.pods():

        async def runs_besides() -> bool:
            shown = await pod_env.shows()
            return len(await pod_env.ppods("web")) == 2 and bool(shown)

        await until(runs_besides)
        await pod_env.delete(pod)

        async def only_it() -> bool:
            return await pod_env.vpod() is None and len(await pod_env.ppods("web")) == 1

        await until(only_it)
    assert await versions(pod_env, orphan) == before


async def test_two_bindings_on_one_worker_do_not_change_each_others_pods(pod_env: PodEnv) -> None:
    """Both bindings share clusters, names and the mount namespace."""
    other = replace(pod_env.neighbour(), pnodes=pod_env.pnodes, namespace=pod_env.namespace)
    other.mount_name = pod_env.mount
    await other.bind()
    for pnode in other.pnodes:
        await other.lend(pnode)
    ours, theirs = Faults(), Faults()
    async with (
        pod_env.pods(computing_api=ours, worker_api=ours),
        other.pods(computing_api=theirs, worker_api=theirs),
    ):
        mine = await pod_env.run("mine")
        yours = await other.run("yours")
        for pod in (mine, yours):
            await until(lambda pod=pod: pod_env.runs(pod.name))
        await pod_env.delete(mine)
        await until(lambda: pod_env.gone("mine"))
        await settled(ours, theirs)
        assert await other.runs("yours")
    touched = [r.path for r in ours.requests if r.writes and "yours" in r.path]
    touched += [r.path for r in theirs.requests if r.writes and "mine" in r.path]
    assert not [path for path in touched if "/events" not in path]


async def test_no_status_is_written_to_a_pod_of_another_worker(pod_env: PodEnv) -> None:
    """The other binding's clusterID begins with this one's, and so do the names of its nodes."""
    other = replace(pod_env, name=f"{pod_env.name}-eu")
    await other.lend(pod_env.pnodes[0])
    theirs = await other.run("theirs")
    assert theirs.spec.node_name.startswith(f"vnode-{pod_env.cluster_id}-")
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api) as pods:
        marks = pod_marks(theirs.key, theirs.uid, pod_env.domain)
        labels = ownership_labels(pods.clusters.ids, pod_env.domain)
        forged = await place(pod_env, pod_env.ppod_name("theirs"), labels=labels, annotations=marks)
        await pod_env.run("mine")
        await until(lambda: pod_env.runs("mine"))
        await until(lambda: pods.clusters.ppods.get(forged.key))
        await settled(computing_api, worker_api)
        assert not [r.path for r in computing_api.requests if r.writes and "theirs" in r.path]
        # Its physical pod in this worker still ends with it.
        await pod_env.delete(theirs)

        async def ended() -> bool:
            return not await pod_env.ppods("theirs")

        await until(ended)
    assert not [r.path for r in computing_api.requests if r.writes and "theirs" in r.path]


async def test_a_physical_pod_is_deleted_after_its_virtual_node_was(pod_env: PodEnv) -> None:
    async with pod_env.pods() as pods:
        pod = await pod_env.run()
        await until(pod_env.runs)
        vnode = pods.clusters.vnodes.get(pod_env.vnode_key(0))
        assert vnode is not None
        await pod_env.take_back(vnode)
        await until(lambda: not pods.clusters.vnodes.get(pod_env.vnode_key(0)))
        await pod_env.delete(pod)

        async def ended() -> bool:
            return not await pod_env.ppods("web")

        await until(ended)


async def test_a_new_pod_of_the_same_name_waits_for_the_old_one(pod_env: PodEnv) -> None:
    slow = {"annotations": {"pod-terminate.stage.kwok.x-k8s.io/delay": "2s"}}
    most = 0
    async with pod_env.pods():
        old = await pod_env.run(metadata=slow)
        await until(pod_env.runs)
        before = await pod_env.ppod()
        await pod_env.delete(old, grace_s=0)
        await pod_env.run()

        async def runs_again() -> bool:
            nonlocal most
            most = max(most, len(await pod_env.ppods("web")))
            return (await pod_env.runs()).uid != old.uid

        await until(runs_again)
        assert (await pod_env.ppod()).uid != before.uid
        assert (await pod_env.ppod()).name == before.name
    assert most == 1


async def test_the_whole_syncer_lends_a_node_and_runs_its_pods(
    pod_env: PodEnv, kubelets: SimulatedNodes
) -> None:
    env = replace(pod_env.neighbour(), pnodes=[])
    await env.open()
    env.pnodes = await kubelets.add(1, prefix=env.name, labels={"test": env.name})
    selector = {"key": "test", "operator": "In", "values": [env.name]}
    policy = {
        "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
        "kind": RESOURCE_LEASING_POLICIES.kind,
        "metadata": {"name": f"{env.name}-policy"},
        "spec": {
            "cluster": env.name,
            "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [selector]}]},
        },
    }
    await env.worker_api.create(RESOURCE_LEASING_POLICIES, policy)
    async with env.syncer() as syncer:
        await until(lambda: env.seen(NODES, env.vnode(env.pnodes[0])))
        pod = await env.run()
        await until(env.runs)
        assert syncer.ready
        binding = await env.computing_api.get(CLUSTER_BINDINGS, env.name)
        await env.computing_api.delete(CLUSTER_BINDINGS, env.name, uid=binding.uid)
        await env.delete(pod)

        async def unbound() -> bool:
            return await env.seen(CLUSTER_BINDINGS, env.name) is None

        await until(unbound, within=150)
        assert await env.gone()
