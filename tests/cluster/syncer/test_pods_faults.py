"""The same end whatever happens on the way: crashes, stale watches, two leaders, restarts.

The scenario: two pods with a ConfigMap, a Secret and a token are created; one is labelled, the
other one is deleted. In the end the first runs once, with its label, and nothing is left of the
other; then nothing is written any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest

from conftest import NewCluster
from kubeocean.errors import ApiError, NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Crashed, Faults, watches
from kubeocean.runtime.kinds import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json
from kubeocean.runtime.transport import Request
from kubeocean.syncer.podviews import PHYSICAL_PODS
from ourkinds import install_our_kinds
from podseas import PodSea, settled, writes
from waiting import until

NEEDY: Json = {
    "containers": [
        {
            "name": "c",
            "image": "none",
            "envFrom": [{"configMapRef": {"name": "cfg"}}, {"secretRef": {"name": "key"}}],
        }
    ],
    "volumes": [
        {
            "name": "token",
            "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
        }
    ],
}


async def prepare(sea: PodSea, pod: Json = NEEDY) -> None:
    for kind, name in ((CONFIG_MAPS, "cfg"), (SECRETS, "key")):
        await sea.above.create(kind, {"metadata": {"name": name, "namespace": sea.namespace}})
    for name in ("stays", "goes"):
        await sea.run(name, **pod)


async def scenario(sea: PodSea, *, over: Callable[[], bool] = lambda: False) -> None:
    """What people do, each thing when the last one shows; or at once, once that is over."""

    async def shows(probe: Callable[[], Awaitable[object]]) -> None:
        async def either() -> bool:
            return over() or bool(await probe())

        await until(either, within=150)

    for name in ("stays", "goes"):
        await shows(lambda name=name: sea.runs(name))
    stays, goes = await sea.vpod("stays"), await sea.vpod("goes")
    assert stays is not None
    assert goes is not None
    await sea.patch_above(stays, metadata={"labels": {"changed": "yes"}})
    await shows(lambda: labelled(sea))
    await sea.delete(goes)
    await shows(lambda: sea.gone("goes"))


async def labelled(sea: PodSea) -> bool:
    return (await sea.ppod("stays")).labels.get("changed") == "yes"


async def as_it_should_be(sea: PodSea) -> bool:
    await sea.runs("stays")
    assert await sea.gone("goes")
    assert len(await sea.ppods()) == 1
    return await labelled(sea)


async def ends_well(sea: PodSea, *plans: Faults) -> None:
    await until(lambda: as_it_should_be(sea), within=150)
    await settled(*plans, rest_s=2.5)
    assert await as_it_should_be(sea)


def only_once(sea: PodSea, *names: str) -> bool:
    """No physical pod was made twice, by anybody."""
    made = Counter(
        request.name
        for request in sea.worker.audit.requests(since=sea.opened_at)
        if request.verb == "create"
        and request.resource == "pods"
        and request.namespace == sea.mount
        and request.code == 201
    )
    return set(made) <= {sea.ppod_name(name) for name in names} and set(made.values()) == {1}


async def another(podsea: PodSea) -> PodSea:
    sea = replace(podsea.neighbour(), pnodes=podsea.pnodes)
    await sea.open()
    return sea


async def test_a_crash_after_any_single_write_changes_nothing(podsea: PodSea) -> None:
    await prepare(podsea)
    whole = Faults()
    async with podsea.pods(above=whole, below=whole):
        await scenario(podsea)
        await ends_well(podsea, whole)
    crashes = range(1, whole.writes + 1)
    assert len(crashes) > 12
    async with asyncio.TaskGroup() as group:
        for n in crashes:
            group.create_task(_crash(await another(podsea), n))


async def _crash(sea: PodSea, n: int) -> None:
    """A run that ends with its n-th write, and one that takes it from there."""
    await prepare(sea)
    faults = Faults()
    faults.crash_after_write(n)
    with suppress(Crashed, BaseExceptionGroup):
        async with sea.pods(above=faults, below=faults):
            await scenario(sea, over=lambda: faults.crashed)
    # Events may come in other numbers: a later one is then never reached.
    fresh = Faults()
    async with sea.pods(above=fresh, below=fresh):
        await ends_well(sea, fresh)
    assert only_once(sea, "stays", "goes")


async def test_lagging_and_repeating_watches_change_nothing(podsea: PodSea) -> None:
    await prepare(podsea)
    above, below = Faults(), Faults()
    for faults in (above, below):
        faults.lag(0.3)
        faults.repeat(1)
    async with podsea.pods(above=above, below=below):
        await scenario(podsea)
        above.rewind(50)
        below.rewind(50)
        await ends_well(podsea, above, below)
    assert only_once(podsea, "stays", "goes")


@pytest.mark.parametrize("seed", [1, 2])
async def test_missed_events_change_nothing_once_both_sides_are_listed_again(
    podsea: PodSea, seed: int
) -> None:
    await prepare(podsea)
    above, below = Faults(seed), Faults(seed + 100)
    async with podsea.pods(above=above, below=below) as pods:
        await until(lambda: pods.world.vpods.has_synced and pods.world.ppods.has_synced)
        for faults in (above, below):
            faults.lose(0.5)
        people = asyncio.create_task(scenario(podsea, over=lambda: above.watch_loss == 0))
        await asyncio.sleep(1.5)  # for as long as events go missing
        for faults in (above, below):
            faults.heal()
        await people
        for faults in (above, below):
            faults.answer(410, times=30, when=watches, reason="Expired")
            faults.cut()
        await until(lambda: as_it_should_be(podsea), within=150)
        for faults in (above, below):
            faults.heal()
        await ends_well(podsea, above, below)
    assert only_once(podsea, "stays", "goes")


async def test_two_active_leaders_end_where_one_does(podsea: PodSea) -> None:
    await prepare(podsea)
    first, second = Faults(), Faults()
    async with AsyncExitStack() as stack:
        for faults in (first, second):
            await stack.enter_async_context(podsea.pods(above=faults, below=faults))
        await scenario(podsea)
        await ends_well(podsea, first, second)
    assert only_once(podsea, "stays", "goes")


async def test_two_leaders_of_which_one_sees_the_past_end_where_one_does(podsea: PodSea) -> None:
    await prepare(podsea)
    good, stale = Faults(), Faults()
    async with podsea.pods(above=stale, below=stale) as pods:
        await until(lambda: pods.world.vpods.has_synced and pods.world.ppods.has_synced)
        stale.lag(3.0)
        async with podsea.pods(above=good, below=good):
            await scenario(podsea)
            stale.heal()
            await ends_well(podsea, good, stale)
    assert only_once(podsea, "stays", "goes")


async def test_lost_answers_make_no_twins(podsea: PodSea) -> None:
    await prepare(podsea)
    above, below = Faults(), Faults()
    above.lose_answer(times=2, when=_patches)
    below.lose_answer(times=2, when=_creates_pods)
    async with podsea.pods(above=above, below=below):
        await scenario(podsea)
        await ends_well(podsea, above, below)
    assert only_once(podsea, "stays", "goes")


def _creates_pods(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/pods")


def _patches(request: Request) -> bool:
    return request.method == "PATCH" and request.path.endswith("/status")


async def test_a_frozen_watch_below_makes_no_twin_and_loses_nothing(podsea: PodSea) -> None:
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below) as pods:
        await until(lambda: pods.world.ppods.has_synced)
        below.freeze()
        pod = await podsea.run()
        await until(lambda: podsea.ppods("web"))
        await asyncio.sleep(7)  # longer than a cache is waited for
        assert (await podsea.shows(phase="Pending")).status.reason == ""
        await podsea.delete(pod)
        below.thaw()
        await until(podsea.gone)
        await settled(above, below)
    assert writes(below).count("POST pods") == 1


# Servers that restart


@pytest.fixture
async def restartable(new_cluster: NewCluster) -> AsyncIterator[PodSea]:
    """Two control planes of this test alone; a loop plays the kubelets."""
    async with asyncio.TaskGroup() as group:
        started = [group.create_task(new_cluster(name=name, audit=True)) for name in ("up", "low")]
    upper, lower = (task.result() for task in started)
    above, below = upper.client(), lower.client()
    await install_our_kinds(above)
    sea = PodSea(upper, lower, above, below, pnodes=["n0"])
    accounts = asyncio.create_task(_account(sea))
    await sea.open()
    await accounts
    try:
        async with _kubelet(sea):
            yield sea
    finally:
        await above.close()
        await below.close()


async def _account(sea: PodSea) -> None:
    """What a controller above would make."""

    async def made() -> bool:
        try:
            body = {"metadata": {"name": "default"}}
            await sea.above.create(SERVICE_ACCOUNTS, body, namespace=f"v-{sea.name}")
        except NotFound:
            return False
        return True

    await until(made)


@asynccontextmanager
async def _kubelet(sea: PodSea) -> AsyncIterator[None]:
    async def play() -> None:
        while True:
            with suppress(ApiError):
                for pod in await sea.ppods():
                    if pod.deleting:
                        await sea.below.delete(
                            PHYSICAL_PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=0
                        )
                    elif pod.status.phase == "Pending":
                        await sea.patch_below(pod, "status", status={"phase": "Running"})
            await asyncio.sleep(0.1)

    task = asyncio.create_task(play())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_restarted_servers_change_nothing(restartable: PodSea) -> None:
    sea = restartable
    pod = {"containers": NEEDY["containers"]}  # no accounts where there are no controllers
    await prepare(sea, pod)
    above, below = Faults(), Faults()
    async with sea.pods(above=above, below=below):
        for name in ("stays", "goes"):
            await until(lambda name=name: sea.runs(name))
        await _restart(sea.worker)
        stays, goes = await sea.vpod("stays"), await sea.vpod("goes")
        assert stays is not None
        assert goes is not None
        await sea.delete(goes)
        await _restart(sea.computing)
        await until(lambda: _patched(sea, "stays"), within=150)
        late = await sea.run("late", **pod)
        await _restart(sea.worker)
        await until(lambda: sea.runs("late"), within=150)
        await sea.delete(late)
        await until(lambda: sea.gone("late"), within=150)
        await ends_well(sea, above, below)
    assert only_once(sea, "stays", "goes", "late")


async def _restart(cluster: Cluster) -> None:
    await cluster.kill("kube-apiserver")
    await cluster.restart("kube-apiserver")


async def _patched(sea: PodSea, name: str) -> bool:
    pod = await sea.vpod(name)
    assert pod is not None
    await sea.patch_above(pod, metadata={"labels": {"changed": "yes"}})
    return True
