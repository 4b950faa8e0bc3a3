"""Promises about pods, and known mistakes of similar systems; each test is named for one."""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import AsyncExitStack
from dataclasses import replace

import msgspec

from kubeocean.runtime.kinds import CONFIG_MAPS, SECRETS, Untyped
from kubeocean.runtime.objects import Resource, find_condition
from kubeocean.runtime.transport import Request
from kubeocean.syncer.pods.views import PHYSICAL_PODS, VIRTUAL_PODS, VirtualPod
from support.faults import Faults, watches
from support.pod_env import PodEnv, settled, writes
from support.wait import until

REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True, Untyped)


async def run_some(env: PodEnv, count: int = 3, **spec: object) -> list[VirtualPod]:
    """Create running pods by a syncer that has stopped since."""
    names = [f"web-{n}" for n in range(count)]
    async with env.pods():
        for name in names:
            await env.run(name, **spec)
        return [await until(lambda name=name: env.runs(name)) for name in names]


async def uids(env: PodEnv) -> dict[str, str]:
    return {pod.name: pod.uid for pod in await env.ppods() if not pod.deleting}


# Promises


async def test_at_most_one_physical_pod_runs_for_a_virtual_uid(pod_env: PodEnv) -> None:
    """With two leaders, lost answers and restarts; the worker's pods are listed all the time."""
    most: dict[str, int] = {}

    async def observe() -> None:
        while True:
            virtual = [p.annotations["kubeocean.io/virtual-pod-uid"] for p in await pod_env.ppods()]
            for uid in virtual:
                most[uid] = max(most.get(uid, 0), virtual.count(uid))
            await asyncio.sleep(0.02)

    observing = asyncio.create_task(observe())
    plans = [Faults(seed) for seed in range(2)]
    for plan in plans:
        plan.lose_answer(times=3)
        plan.repeat(1)
    async with AsyncExitStack() as stack:
        for plan in plans:
            await stack.enter_async_context(pod_env.pods(computing_api=plan, worker_api=plan))
        names = [f"web-{n}" for n in range(5)]
        for name in names:
            await pod_env.run(name)
        for name in names:
            await until(lambda name=name: pod_env.runs(name))
    async with pod_env.pods():
        for name in names:
            pod = await pod_env.runs(name)
            await pod_env.delete(pod)
        for name in names:
            await until(lambda name=name: pod_env.gone(name))
    observing.cancel()
    await asyncio.wait([observing])
    assert len(most) == 5
    assert set(most.values()) == {1}


async def test_nothing_that_is_not_ours_is_changed_or_deleted(pod_env: PodEnv) -> None:
    """Every write to the worker creates an object, or changes one that was created so."""
    named = [(CONFIG_MAPS, "cfg"), (SECRETS, "key")]
    theirs = [(kind, pod_env.ppod_name(name), pod_env.mount) for kind, name in named]
    theirs += [(kind, pod_env.ppod_name(name), "default") for kind, name in named]
    before = [
        await pod_env.worker_api.create(kind, {"metadata": {"name": name, "namespace": namespace}})
        for kind, name, namespace in theirs
    ]
    for kind, name in named:
        await pod_env.computing_api.create(
            kind, {"metadata": {"name": name, "namespace": pod_env.namespace}}
        )
    env = [{"configMapRef": {"name": "cfg"}}, {"secretRef": {"name": "key"}}]
    worker_api = Faults()
    async with pod_env.pods(worker_api=worker_api):
        pod = await pod_env.run(containers=[{"name": "c", "image": "none", "envFrom": env}])
        await until(pod_env.runs)
        await pod_env.patch_above(pod, metadata={"labels": {"a": "b"}})
        await pod_env.delete(pod)
        await until(pod_env.gone)
        await until(lambda: [w for w in writes(worker_api) if w == "DELETE secrets"])
        await settled(worker_api)
    made = {_named(request) for request in worker_api.requests if request.method == "POST"}
    changed = {request.path for request in worker_api.requests if request.method in _CHANGING}
    assert changed
    assert changed <= made
    assert all(f"/namespaces/{pod_env.mount}/" in path for path in changed)
    for (kind, name, namespace), object_ in zip(theirs, before, strict=True):
        now = await pod_env.worker_api.get(kind, name, namespace)
        assert now.resource_version == object_.resource_version
        await pod_env.worker_api.delete(kind, name, namespace, uid=now.uid)


_CHANGING = ("DELETE", "PATCH", "PUT")


def _named(request: Request) -> str:
    """Return the path of the object that a request creates."""
    metadata = msgspec.json.decode(request.body or b"{}").get("metadata") or {}
    return f"{request.path}/{metadata.get('name', '')}"


async def test_the_lag_of_each_cluster_is_measured(pod_env: PodEnv) -> None:
    async with pod_env.pods() as pods:
        names = [f"web-{n}" for n in range(10)]
        for name in names:
            await pod_env.run(name)
        for name in names:
            await until(lambda name=name: pod_env.runs(name))
        text = pods.clusters.metrics.render().decode()
    bound = f'cluster_binding="{pod_env.name}"'
    for lag in ("create", "status"):
        metric = f"kubeocean_pod_{lag}_lag_seconds"
        (count,) = re.findall(rf"{metric}_count{{{bound}}} ([0-9.]+)", text)
        (soon,) = re.findall(rf'{metric}_bucket{{{bound},le="30.0"}} ([0-9.]+)', text)
        assert 10 <= float(soon) == float(count)


async def test_an_unreachable_worker_loses_nothing_and_recovery_resumes(pod_env: PodEnv) -> None:
    pods = await run_some(pod_env)
    before = await uids(pod_env)
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api) as syncer:
        await until(lambda: syncer.clusters.ppods.has_synced)
        worker_api.partition()
        await until(lambda: not syncer.clusters.worker_health.answers)
        await pod_env.delete(pods[0])
        await pod_env.run("late")
        await settled(computing_api)
        assert not writes(computing_api)
        assert await uids(pod_env) == before
        for pod in pods[1:]:
            assert await pod_env.runs(pod.name)
        worker_api.rejoin()
        await until(lambda: pod_env.gone(pods[0].name))
        await until(lambda: pod_env.runs("late"))
    assert {pod.uid for pod in await pod_env.ppods()} >= {before[p] for p in list(before)[1:]}


async def test_a_forced_deletion_reaches_the_worker_when_it_is_back(
    pod_env: PodEnv,
) -> None:
    (pod,) = await run_some(pod_env, 1)
    worker_api = Faults()
    async with pod_env.pods(worker_api=worker_api) as syncer:
        await until(lambda: syncer.clusters.ppods.has_synced)
        worker_api.partition()
        await until(lambda: not syncer.clusters.worker_health.answers)
        await pod_env.delete(pod, grace_s=0)
        assert await pod_env.vpod(pod.name) is None
        worker_api.rejoin()
        await until(lambda: pod_env.gone(pod.name))


# Mistakes of similar systems


async def test_a_stale_list_at_the_start_makes_no_pod_look_dangling(pod_env: PodEnv) -> None:
    """An empty cache of the computing cluster deletes nothing in the worker."""
    for kind, name in ((CONFIG_MAPS, "cfg"), (SECRETS, "key")):
        body = {"metadata": {"name": name, "namespace": pod_env.namespace}}
        await pod_env.computing_api.create(kind, body)
    env = [{"configMapRef": {"name": "cfg"}}, {"secretRef": {"name": "key"}}]
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    await run_some(
        pod_env,
        containers=[{"name": "c", "image": "none", "envFrom": env}],
        volumes=[{"name": "token", **token}],
    )
    before = await uids(pod_env)
    computing_api, worker_api = Faults(), Faults()
    computing_api.lose(1.0)
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api) as pods:
        clusters = pods.clusters
        await until(lambda: clusters.vpods.has_synced and clusters.ppods.has_synced)
        await until(lambda: len(clusters.ppods) == 3)
        assert len(clusters.vpods) == 0
        await settled(worker_api, rest_s=2.5)  # longer than unused copies linger
        assert not writes(worker_api)
    assert await uids(pod_env) == before


async def test_an_old_list_makes_no_new_pod_look_dangling(pod_env: PodEnv) -> None:
    """An old cache of the computing cluster deletes no pod that was created since."""
    old_pods = await run_some(pod_env)
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api) as stale:
        await until(lambda: stale.clusters.vpods.has_synced and stale.clusters.ppods.has_synced)
        computing_api.freeze()
        async with pod_env.pods():
            await pod_env.delete(old_pods[0])
            await pod_env.run("new")
            await until(lambda: pod_env.runs("new"))
            await until(lambda: pod_env.gone(old_pods[0].name))
        before = await uids(pod_env)
        await until(lambda: {p.uid for p in stale.clusters.ppods.items()} == set(before.values()))
        await settled(worker_api, rest_s=2.5)
        assert not [word for word in writes(worker_api) if word.startswith(("DELETE", "POST"))]
        assert await uids(pod_env) == before
        computing_api.thaw()


async def test_an_old_deletion_is_not_replayed_on_a_new_pod_of_that_name(pod_env: PodEnv) -> None:
    """The cache of a stale leader still has a pod that was deleted and replaced by another."""
    (old,) = await run_some(pod_env, 1)
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api) as stale:
        await until(lambda: stale.clusters.vpods.has_synced and stale.clusters.ppods.has_synced)
        computing_api.freeze()
        async with pod_env.pods():
            await pod_env.delete(old)
            await until(lambda: pod_env.gone(old.name))
            await pod_env.run(old.name)
            new = await until(lambda: pod_env.runs(old.name))
            ppod = await pod_env.ppod(old.name)
            assert new.uid != old.uid
            await asyncio.sleep(2)  # the time in which the stale leader would act
            assert (await pod_env.ppod(old.name)).uid == ppod.uid
        computing_api.thaw()
        await settled(computing_api, worker_api)
        assert (await pod_env.runs(old.name)).uid == new.uid
        assert (await pod_env.ppod(old.name)).uid == ppod.uid
    assert not [word for word in writes(worker_api) if word.startswith("DELETE")]


async def test_no_decision_from_the_time_a_worker_flapped_is_executed_afterwards(
    pod_env: PodEnv,
) -> None:
    await run_some(pod_env)
    before = await uids(pod_env)
    chance = random.Random(7)
    worker_api = Faults()
    async with pod_env.pods(worker_api=worker_api) as pods:
        await until(lambda: pods.clusters.ppods.has_synced)
        for _ in range(4):
            worker_api.partition()
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            worker_api.rejoin()
            await asyncio.sleep(chance.uniform(0.1, 0.5))
        await until(lambda: pods.clusters.worker_health.answers)
        for name in ("web-0", "web-1", "web-2"):
            await until(lambda name=name: pod_env.runs(name))
    assert await uids(pod_env) == before


async def test_a_pod_that_is_evicted_in_the_worker_does_not_stay_running(pod_env: PodEnv) -> None:
    pods = await run_some(pod_env)
    async with pod_env.pods():
        for pod, ppod in zip(pods, sorted(await pod_env.ppods(), key=_virtual), strict=True):
            await pod_env.worker_api.delete(PHYSICAL_PODS, ppod.name, ppod.namespace, uid=ppod.uid)
            failed = await until(lambda pod=pod: pod_env.shows(pod.name, phase="Failed"))
            ready = find_condition(failed.status.conditions, "Ready")
            assert ready is not None
            assert ready.status == "False"


def _virtual(pod: object) -> str:
    return str(getattr(pod, "annotations", {})["kubeocean.io/virtual-pod-name"])


async def test_a_controller_replaces_a_pod_that_is_lost_in_the_worker(pod_env: PodEnv) -> None:
    template = pod_env.body("web", metadata={"labels": {"app": "web"}})
    body = {
        "metadata": {"name": "web", "namespace": pod_env.namespace},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
        },
    }

    async def two_run() -> set[str]:
        shown = (await pod_env.computing_api.list(VIRTUAL_PODS, pod_env.namespace)).items
        running = {pod.uid for pod in shown if pod.status.phase == "Running"}
        return running if len(running) == len(await pod_env.ppods()) == 2 else set()

    async with pod_env.pods():
        await pod_env.computing_api.create(REPLICA_SETS, body)
        before = await until(two_run)
        lost = (await pod_env.ppods())[0]
        await pod_env.worker_api.delete(
            PHYSICAL_PODS, lost.name, lost.namespace, uid=lost.uid, grace_s=0
        )
        after = await until(two_run)
    assert len(after & before) == 1


async def test_watches_that_break_all_the_time_make_no_storm(pod_env: PodEnv) -> None:
    await run_some(pod_env)
    plan = Faults()
    async with pod_env.pods(computing_api=plan, worker_api=plan) as pods:
        await until(lambda: pods.clusters.vpods.has_synced and pods.clusters.ppods.has_synced)
        for _ in range(5):
            plan.answer(410, times=6, when=watches, reason="Expired")
            plan.cut()
            await asyncio.sleep(0.3)
        await settled(plan)
        await until(lambda: pod_env.runs("web-0"))
    assert not writes(plan)


async def test_the_same_names_of_two_namespaces_and_bindings_are_different_pods(
    pod_env: PodEnv,
) -> None:
    other = replace(pod_env.neighbour(), pnodes=pod_env.pnodes)
    await other.open()
    async with pod_env.pods(), other.pods():
        for env in (pod_env, other):
            await env.run("web-0")
        for env in (pod_env, other):
            await until(lambda env=env: env.runs("web-0"))
        assert pod_env.ppod_name("web-0") != other.ppod_name("web-0")


async def test_a_virtual_node_that_is_deleted_and_created_again_keeps_its_pods(
    pod_env: PodEnv,
) -> None:
    (pod,) = await run_some(pod_env, 1)
    before = await uids(pod_env)
    async with pod_env.pods() as pods:
        await until(lambda: pods.clusters.vnodes.has_synced)
        vnode = pods.clusters.vnodes.get(pod_env.vnode_key(0))
        assert vnode is not None
        await pod_env.take_back(vnode)
        await pod_env.lend(pod_env.pnodes[0])
        await pod_env.patch_above(pod, metadata={"labels": {"after": "yes"}})

        async def followed() -> bool:
            return (await pod_env.ppod(pod.name)).labels.get("after") == "yes"

        await until(followed)
        assert await uids(pod_env) == before
        assert await pod_env.runs(pod.name)
