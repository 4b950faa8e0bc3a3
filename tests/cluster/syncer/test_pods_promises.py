"""What is promised of pods, and the mistakes of others that are not repeated; each by its name."""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import AsyncExitStack
from dataclasses import replace

import msgspec

from kubeocean.local.faults import Faults, watches
from kubeocean.runtime.kinds import CONFIG_MAPS, SECRETS, Untyped
from kubeocean.runtime.objects import Resource, find_condition
from kubeocean.runtime.transport import Request
from kubeocean.syncer.podviews import PHYSICAL_PODS, VIRTUAL_PODS, VirtualPod
from podseas import PodSea, settled, writes
from waiting import until

REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True, Untyped)


async def run_some(sea: PodSea, count: int = 3, **spec: object) -> list[VirtualPod]:
    """Pods that run, made by a syncer that is gone again."""
    names = [f"web-{n}" for n in range(count)]
    async with sea.pods():
        for name in names:
            await sea.run(name, **spec)
        return [await until(lambda name=name: sea.runs(name)) for name in names]


async def uids(sea: PodSea) -> dict[str, str]:
    return {pod.name: pod.uid for pod in await sea.ppods() if not pod.deleting}


# Promises


async def test_at_most_one_physical_pod_runs_for_a_virtual_uid(podsea: PodSea) -> None:
    """With two leaders, lost answers and restarts, looked at all the time."""
    most: dict[str, int] = {}

    async def look() -> None:
        while True:
            virtual = [p.annotations["kubeocean.io/virtual-pod-uid"] for p in await podsea.ppods()]
            for uid in virtual:
                most[uid] = max(most.get(uid, 0), virtual.count(uid))
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    plans = [Faults(seed) for seed in range(2)]
    for plan in plans:
        plan.lose_answer(times=3)
        plan.repeat(1)
    async with AsyncExitStack() as stack:
        for plan in plans:
            await stack.enter_async_context(podsea.pods(above=plan, below=plan))
        names = [f"web-{n}" for n in range(5)]
        for name in names:
            await podsea.run(name)
        for name in names:
            await until(lambda name=name: podsea.runs(name))
    async with podsea.pods():
        for name in names:
            pod = await podsea.runs(name)
            await podsea.delete(pod)
        for name in names:
            await until(lambda name=name: podsea.gone(name))
    looking.cancel()
    await asyncio.wait([looking])
    assert len(most) == 5
    assert set(most.values()) == {1}


async def test_nothing_that_is_not_ours_is_changed_or_deleted(podsea: PodSea) -> None:
    """Every write below makes something, or is about what was made so, here and nowhere else."""
    named = [(CONFIG_MAPS, "cfg"), (SECRETS, "key")]
    theirs = [(kind, podsea.ppod_name(name), podsea.mount) for kind, name in named]
    theirs += [(kind, podsea.ppod_name(name), "default") for kind, name in named]
    before = [
        await podsea.below.create(kind, {"metadata": {"name": name, "namespace": namespace}})
        for kind, name, namespace in theirs
    ]
    for kind, name in named:
        await podsea.above.create(kind, {"metadata": {"name": name, "namespace": podsea.namespace}})
    env = [{"configMapRef": {"name": "cfg"}}, {"secretRef": {"name": "key"}}]
    below = Faults()
    async with podsea.pods(below=below):
        pod = await podsea.run(containers=[{"name": "c", "image": "none", "envFrom": env}])
        await until(podsea.runs)
        await podsea.patch_above(pod, metadata={"labels": {"a": "b"}})
        await podsea.delete(pod)
        await until(podsea.gone)
        await until(lambda: [w for w in writes(below) if w == "DELETE secrets"])
        await settled(below)
    made = {_named(request) for request in below.requests if request.method == "POST"}
    changed = {request.path for request in below.requests if request.method in _CHANGING}
    assert changed
    assert changed <= made
    assert all(f"/namespaces/{podsea.mount}/" in path for path in changed)
    for (kind, name, namespace), object_ in zip(theirs, before, strict=True):
        now = await podsea.below.get(kind, name, namespace)
        assert now.resource_version == object_.resource_version
        await podsea.below.delete(kind, name, namespace, uid=now.uid)


_CHANGING = ("DELETE", "PATCH", "PUT")


def _named(request: Request) -> str:
    """The path of what a request makes."""
    metadata = msgspec.json.decode(request.body or b"{}").get("metadata") or {}
    return f"{request.path}/{metadata.get('name', '')}"


async def test_how_far_each_side_is_behind_is_measured_and_told(podsea: PodSea) -> None:
    async with podsea.pods() as pods:
        names = [f"web-{n}" for n in range(10)]
        for name in names:
            await podsea.run(name)
        for name in names:
            await until(lambda name=name: podsea.runs(name))
        told = pods.world.metrics.render().decode()
    bound = f'cluster_binding="{podsea.name}"'
    for lag in ("create", "status"):
        figure = f"kubeocean_pod_{lag}_lag_seconds"
        (count,) = re.findall(rf"{figure}_count{{{bound}}} ([0-9.]+)", told)
        (soon,) = re.findall(rf'{figure}_bucket{{{bound},le="30.0"}} ([0-9.]+)', told)
        assert 10 <= float(soon) == float(count)


async def test_an_unreachable_worker_loses_nothing_and_recovery_resumes(podsea: PodSea) -> None:
    pods = await run_some(podsea)
    before = await uids(podsea)
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below) as syncer:
        await until(lambda: syncer.world.ppods.has_synced)
        below.partition()
        await until(lambda: not syncer.world.reach.answers)
        await podsea.delete(pods[0])
        await podsea.run("late")
        await settled(above)
        assert not writes(above)
        assert await uids(podsea) == before
        for pod in pods[1:]:
            assert await podsea.runs(pod.name)
        below.rejoin()
        await until(lambda: podsea.gone(pods[0].name))
        await until(lambda: podsea.runs("late"))
    assert {pod.uid for pod in await podsea.ppods()} >= {before[p] for p in list(before)[1:]}


async def test_a_forced_deletion_ends_above_at_once_and_below_when_the_worker_is_back(
    podsea: PodSea,
) -> None:
    (pod,) = await run_some(podsea, 1)
    below = Faults()
    async with podsea.pods(below=below) as syncer:
        await until(lambda: syncer.world.ppods.has_synced)
        below.partition()
        await until(lambda: not syncer.world.reach.answers)
        await podsea.delete(pod, grace_s=0)
        assert await podsea.vpod(pod.name) is None
        below.rejoin()
        await until(lambda: podsea.gone(pod.name))


# Mistakes of others


async def test_a_stale_list_at_the_start_makes_no_pod_look_dangling(podsea: PodSea) -> None:
    """A cache of the computing cluster that starts empty deletes nothing below."""
    for kind, name in ((CONFIG_MAPS, "cfg"), (SECRETS, "key")):
        body = {"metadata": {"name": name, "namespace": podsea.namespace}}
        await podsea.above.create(kind, body)
    env = [{"configMapRef": {"name": "cfg"}}, {"secretRef": {"name": "key"}}]
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    await run_some(
        podsea,
        containers=[{"name": "c", "image": "none", "envFrom": env}],
        volumes=[{"name": "token", **token}],
    )
    before = await uids(podsea)
    above, below = Faults(), Faults()
    above.lose(1.0)
    async with podsea.pods(above=above, below=below) as pods:
        world = pods.world
        await until(lambda: world.vpods.has_synced and world.ppods.has_synced)
        await until(lambda: len(world.ppods) == 3)
        assert len(world.vpods) == 0
        await settled(below, rest_s=2.5)  # longer than unused copies linger
        assert not writes(below)
    assert await uids(podsea) == before


async def test_an_old_list_makes_no_new_pod_look_dangling(podsea: PodSea) -> None:
    """A cache of the computing cluster that is old deletes nothing that came since."""
    old_pods = await run_some(podsea)
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below) as stale:
        await until(lambda: stale.world.vpods.has_synced and stale.world.ppods.has_synced)
        above.freeze()
        async with podsea.pods():
            await podsea.delete(old_pods[0])
            await podsea.run("new")
            await until(lambda: podsea.runs("new"))
            await until(lambda: podsea.gone(old_pods[0].name))
        before = await uids(podsea)
        await until(lambda: {p.uid for p in stale.world.ppods.items()} == set(before.values()))
        await settled(below, rest_s=2.5)
        assert not [word for word in writes(below) if word.startswith(("DELETE", "POST"))]
        assert await uids(podsea) == before
        above.thaw()


async def test_an_old_deletion_is_not_replayed_on_a_new_pod_of_that_name(podsea: PodSea) -> None:
    """A leader that sees the past: its pod was deleted, and another one runs meanwhile."""
    (old,) = await run_some(podsea, 1)
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below) as stale:
        await until(lambda: stale.world.vpods.has_synced and stale.world.ppods.has_synced)
        above.freeze()
        async with podsea.pods():
            await podsea.delete(old)
            await until(lambda: podsea.gone(old.name))
            await podsea.run(old.name)
            new = await until(lambda: podsea.runs(old.name))
            ppod = await podsea.ppod(old.name)
            assert new.uid != old.uid
            await asyncio.sleep(2)  # for what the stale one would do
            assert (await podsea.ppod(old.name)).uid == ppod.uid
        above.thaw()
        await settled(above, below)
        assert (await podsea.runs(old.name)).uid == new.uid
        assert (await podsea.ppod(old.name)).uid == ppod.uid
    assert not [word for word in writes(below) if word.startswith("DELETE")]


async def test_nothing_decided_while_a_worker_flaps_is_done_afterwards(podsea: PodSea) -> None:
    await run_some(podsea)
    before = await uids(podsea)
    chance = random.Random(7)
    below = Faults()
    async with podsea.pods(below=below) as pods:
        await until(lambda: pods.world.ppods.has_synced)
        for _ in range(4):
            below.partition()
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            below.rejoin()
            await asyncio.sleep(chance.uniform(0.1, 0.5))
        await until(lambda: pods.world.reach.answers)
        for name in ("web-0", "web-1", "web-2"):
            await until(lambda name=name: podsea.runs(name))
    assert await uids(podsea) == before


async def test_a_pod_that_is_evicted_below_does_not_stay_running_above(podsea: PodSea) -> None:
    pods = await run_some(podsea)
    async with podsea.pods():
        for pod, ppod in zip(pods, sorted(await podsea.ppods(), key=_virtual), strict=True):
            await podsea.below.delete(PHYSICAL_PODS, ppod.name, ppod.namespace, uid=ppod.uid)
            failed = await until(lambda pod=pod: podsea.shows(pod.name, phase="Failed"))
            ready = find_condition(failed.status.conditions, "Ready")
            assert ready is not None
            assert ready.status == "False"


def _virtual(pod: object) -> str:
    return str(getattr(pod, "annotations", {})["kubeocean.io/virtual-pod-name"])


async def test_a_controller_above_replaces_a_pod_that_is_lost_below(podsea: PodSea) -> None:
    template = podsea.body("web", metadata={"labels": {"app": "web"}})
    body = {
        "metadata": {"name": "web", "namespace": podsea.namespace},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
        },
    }

    async def two_run() -> set[str]:
        shown = (await podsea.above.list(VIRTUAL_PODS, podsea.namespace)).items
        running = {pod.uid for pod in shown if pod.status.phase == "Running"}
        return running if len(running) == len(await podsea.ppods()) == 2 else set()

    async with podsea.pods():
        await podsea.above.create(REPLICA_SETS, body)
        before = await until(two_run)
        lost = (await podsea.ppods())[0]
        await podsea.below.delete(PHYSICAL_PODS, lost.name, lost.namespace, uid=lost.uid, grace_s=0)
        after = await until(two_run)
    assert len(after & before) == 1


async def test_watches_that_break_all_the_time_make_no_storm(podsea: PodSea) -> None:
    await run_some(podsea)
    plan = Faults()
    async with podsea.pods(above=plan, below=plan) as pods:
        await until(lambda: pods.world.vpods.has_synced and pods.world.ppods.has_synced)
        for _ in range(5):
            plan.answer(410, times=6, when=watches, reason="Expired")
            plan.cut()
            await asyncio.sleep(0.3)
        await settled(plan)
        await until(lambda: podsea.runs("web-0"))
    assert not writes(plan)


async def test_the_same_names_of_two_namespaces_and_bindings_are_different_pods(
    podsea: PodSea,
) -> None:
    other = replace(podsea.neighbour(), pnodes=podsea.pnodes)
    await other.open()
    async with podsea.pods(), other.pods():
        for sea in (podsea, other):
            await sea.run("web-0")
        for sea in (podsea, other):
            await until(lambda sea=sea: sea.runs("web-0"))
        assert podsea.ppod_name("web-0") != other.ppod_name("web-0")


async def test_a_virtual_node_that_is_deleted_and_made_again_keeps_its_pods(
    podsea: PodSea,
) -> None:
    (pod,) = await run_some(podsea, 1)
    before = await uids(podsea)
    async with podsea.pods() as pods:
        await until(lambda: pods.world.vnodes.has_synced)
        vnode = pods.world.vnodes.get(podsea.vnode_key(0))
        assert vnode is not None
        await podsea.take_back(vnode)
        await podsea.lend(podsea.pnodes[0])
        await podsea.patch_above(pod, metadata={"labels": {"after": "yes"}})

        async def followed() -> bool:
            return (await podsea.ppod(pod.name)).labels.get("after") == "yes"

        await until(followed)
        assert await uids(podsea) == before
        assert await podsea.runs(pod.name)
