"""Pods of other people, of other bindings and of the earlier implementation."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

from kubeocean.api import naming
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.local.faults import Faults
from kubeocean.local.kwok import SimulatedNodes
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Json
from kubeocean.syncer.podviews import PHYSICAL_PODS, PhysicalPod, VirtualPod
from podseas import PodSea, settled, writes
from waiting import until


async def place(sea: PodSea, name: str, **metadata: object) -> PhysicalPod:
    """A pod of the worker that we did not make."""
    body = {
        "metadata": {"name": name, "namespace": sea.mount, **metadata},
        "spec": {
            "nodeName": sea.pnodes[0],
            "containers": [{"name": "c", "image": "none"}],
            "automountServiceAccountToken": False,
        },
    }
    return await sea.below.create(PHYSICAL_PODS, body)


def go_made(sea: PodSea, vpod: VirtualPod) -> Json:
    """What the earlier implementation writes on a physical pod."""
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
            "kubeocean.io/virtual-node-name": sea.vnode(sea.pnodes[0]),
            "kubeocean.io/expected-metadata": base64.b64encode(json.dumps(seen).encode()).decode(),
        },
    }


async def versions(sea: PodSea, *pods: PhysicalPod) -> list[str]:
    """What only a write changes; kubelets write the status."""
    found = [await sea.below.get(PHYSICAL_PODS, p.name, p.namespace, keep_raw=True) for p in pods]
    return [
        json.dumps({k: v for k, v in pod.content()["metadata"].items() if k in _KEPT})
        for pod in found
    ]


_KEPT = ("uid", "labels", "annotations", "deletionTimestamp", "ownerReferences", "finalizers")


async def test_a_foreign_pod_of_our_name_is_never_touched(podsea: PodSea) -> None:
    plain = await place(podsea, podsea.ppod_name("web"))
    marked = {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/cluster-binding": "another"}
    theirs = await place(podsea, podsea.ppod_name("db"), labels=marked)
    before = await versions(podsea, plain, theirs)
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below):
        made = [await podsea.run(name) for name in ("web", "db")]
        for pod in made:
            await until(lambda pod=pod: podsea.runs(pod.name))
            second = naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid)
            assert (await podsea.ppod(pod.name)).name == second
        await settled(above, below)
        for pod in made:
            await podsea.delete(pod)
            await until(lambda pod=pod: podsea.gone(pod.name))
    assert await versions(podsea, plain, theirs) == before


async def test_both_names_taken_is_said(podsea: PodSea) -> None:
    await place(podsea, podsea.ppod_name("web"))
    pod = await podsea.run()
    second = naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid)
    foreign = await place(podsea, second)
    async with podsea.pods():
        (event, *_) = await until(lambda: podsea.told_of("web", "FailedCreatePod"))
        assert "belongs to somebody else" in event.message
        await podsea.below.delete(
            PHYSICAL_PODS, foreign.name, foreign.namespace, uid=foreign.uid, grace_s=0
        )
        await until(podsea.runs)


async def test_pods_of_the_earlier_implementation_are_taken_over(podsea: PodSea) -> None:
    pod = await podsea.run(metadata={"labels": {"app": "web"}})
    ppod = await place(podsea, podsea.ppod_name(), **go_made(podsea, pod))
    mapping = {
        "kubeocean.io/physical-pod-namespace": podsea.mount,
        "kubeocean.io/physical-pod-name": ppod.name,
    }
    await podsea.patch_above(pod, "status", metadata={"annotations": mapping})
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below):
        await until(podsea.runs)
        await settled(above, below)
        taken = await podsea.ppod()
        assert taken.uid == ppod.uid
        assert taken.labels["kubeocean.io/cluster-binding"] == podsea.name
        await podsea.patch_above(pod, metadata={"labels": {"app": "new"}})

        async def changed() -> bool:
            return (await podsea.ppod()).labels["app"] == "new"

        await until(changed)
        await podsea.delete(pod)
        await until(podsea.gone)
    assert "POST pods" not in writes(below)


async def test_orphans_of_the_earlier_implementation_are_left_alone(podsea: PodSea) -> None:
    pod = await podsea.run()
    said = go_made(podsea, pod)
    said["annotations"]["kubeocean.io/virtual-pod-uid"] = "of-an-earlier-pod"
    orphan = await place(podsea, podsea.ppod_name(), **said)
    before = await versions(podsea, orphan)
    async with podsea.pods():

        async def runs_besides() -> bool:
            shown = await podsea.shows()
            return len(await podsea.ppods("web")) == 2 and bool(shown)

        await until(runs_besides)
        await podsea.delete(pod)

        async def only_it() -> bool:
            return await podsea.vpod() is None and len(await podsea.ppods("web")) == 1

        await until(only_it)
    assert await versions(podsea, orphan) == before


async def test_two_bindings_on_one_worker_leave_each_other_alone(podsea: PodSea) -> None:
    """They share clusters, names and the mount namespace; only the bindings differ."""
    other = replace(podsea.neighbour(), pnodes=podsea.pnodes, namespace=podsea.namespace)
    other.mount_name = podsea.mount
    await other.bind()
    for pnode in other.pnodes:
        await other.lend(pnode)
    ours, theirs = Faults(), Faults()
    async with podsea.pods(above=ours, below=ours), other.pods(above=theirs, below=theirs):
        mine = await podsea.run("mine")
        yours = await other.run("yours")
        for pod in (mine, yours):
            await until(lambda pod=pod: podsea.runs(pod.name))
        await podsea.delete(mine)
        await until(lambda: podsea.gone("mine"))
        await settled(ours, theirs)
        assert await other.runs("yours")
    touched = [r.path for r in ours.requests if r.writes and "yours" in r.path]
    touched += [r.path for r in theirs.requests if r.writes and "mine" in r.path]
    assert not [path for path in touched if "/events" not in path]


async def test_a_new_pod_of_the_same_name_waits_for_the_old_one(podsea: PodSea) -> None:
    slow = {"annotations": {"pod-terminate.stage.kwok.x-k8s.io/delay": "2s"}}
    most = 0
    async with podsea.pods():
        old = await podsea.run(metadata=slow)
        await until(podsea.runs)
        before = await podsea.ppod()
        await podsea.delete(old, grace_s=0)
        await podsea.run()

        async def runs_again() -> bool:
            nonlocal most
            most = max(most, len(await podsea.ppods("web")))
            return (await podsea.runs()).uid != old.uid

        await until(runs_again)
        assert (await podsea.ppod()).uid != before.uid
        assert (await podsea.ppod()).name == before.name
    assert most == 1


async def test_the_whole_syncer_lends_a_node_and_runs_its_pods(
    podsea: PodSea, kubelets: SimulatedNodes
) -> None:
    sea = replace(podsea.neighbour(), pnodes=[])
    await sea.open()
    sea.pnodes = await kubelets.add(1, prefix=sea.name, labels={"test": sea.name})
    selector = {"key": "test", "operator": "In", "values": [sea.name]}
    policy = {
        "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
        "kind": RESOURCE_LEASING_POLICIES.kind,
        "metadata": {"name": f"{sea.name}-policy"},
        "spec": {
            "cluster": sea.name,
            "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [selector]}]},
        },
    }
    await sea.below.create(RESOURCE_LEASING_POLICIES, policy)
    async with sea.syncer() as syncer:
        await until(lambda: sea.seen(NODES, sea.vnode(sea.pnodes[0])))
        pod = await sea.run()
        await until(sea.runs)
        assert syncer.ready
        binding = await sea.above.get(CLUSTER_BINDINGS, sea.name)
        await sea.above.delete(CLUSTER_BINDINGS, sea.name, uid=binding.uid)
        await sea.delete(pod)

        async def unbound() -> bool:
            return await sea.seen(CLUSTER_BINDINGS, sea.name) is None

        await until(unbound, within=150)
        assert await sea.gone()
