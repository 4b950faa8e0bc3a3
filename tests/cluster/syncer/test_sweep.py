"""What is left over between two real clusters is found, told, and removed if it is ours."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from commands import Home, Result
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids, ownership
from kubeocean.bound.identities import identity_of
from kubeocean.errors import AlreadyExists, NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Crashed, Faults, watches
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, PODS, SECRETS
from kubeocean.runtime.objects import Json, Key, Object, ObjectT, Resource
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.bottomup.csinodes import CsiNodes
from kubeocean.syncer.bottomup.hostports import HostPorts
from kubeocean.syncer.comparison import Finding, Problem
from kubeocean.syncer.forge.csinodes import CSI_NODES
from kubeocean.syncer.sweep import Sweep
from kubeocean.syncer.topdown.dependents import Dependents
from kubeocean.syncer.world import World
from oceans import Sea
from podseas import PodSea
from running import running
from straits import Strait
from waiting import until

MOUNT = "kubeocean-worker"


class Swept:
    """A sweep and all caches, without the controllers that would put things right first."""

    def __init__(self, world: World) -> None:
        self.nudged: list[Key] = []
        needs = Dependents(world)
        csinodes, hostports = CsiNodes(world), HostPorts(world)
        self.sweep = Sweep(world, needs, csinodes, hostports, nudge=self.nudged.append)
        self.caches = (
            *(cache for cache in world.caches if cache is not world.vnodes),
            *(
                cache
                for copies in (needs.config_maps, needs.secrets, needs.claims, needs.volumes)
                for cache in (copies.pairs.originals, copies.pairs.copies)
            ),
            needs.tokens.secrets,
            csinodes.copies,
            hostports.reservations,
        )
        self.parts = self.caches

    async def ready(self) -> None:
        await until(self.sweep._can_judge)


class Mess:
    """A binding, and what somebody left of it."""

    def __init__(self, strait: Strait, ids: Ids, namespace: str, mount: str) -> None:
        self.strait = strait
        self.ids = ids
        self.namespace = namespace
        self.mount = mount

    @property
    def labels(self) -> dict[str, str]:
        return ownership(self.ids, DEFAULT)

    async def pod(self, virtual: str, virtual_uid: str, **labels: str) -> Object:
        said = {
            DEFAULT.virtual_pod_namespace: self.namespace,
            DEFAULT.virtual_pod_name: virtual,
            DEFAULT.virtual_pod_uid: virtual_uid,
        }
        return await self.make(PODS, said, labels or self.labels, **_SPEC)

    async def config_map(self, virtual: str) -> Object:
        return await self.make(CONFIG_MAPS, self._copy_of(virtual), self.labels)

    async def secret(self, virtual: str) -> Object:
        return await self.make(SECRETS, self._copy_of(virtual), self.labels)

    async def token(self, virtual: str, virtual_uid: str) -> Object:
        said = {
            DEFAULT.virtual_pod_namespace: self.namespace,
            DEFAULT.virtual_pod_name: virtual,
            DEFAULT.virtual_pod_uid: virtual_uid,
        }
        return await self.make(SECRETS, said, self.labels | {DEFAULT.service_account_token: "true"})

    async def make(
        self,
        resource: Resource[ObjectT],
        annotations: dict[str, str],
        labels: dict[str, str],
        **content: object,
    ) -> ObjectT:
        name = f"{self.strait.name}-{uuid.uuid4().hex[:6]}"
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        body: Json = {"metadata": metadata, **content}
        return await self.strait.below.create(resource, body, namespace=self.mount)

    async def virtual_pod(self, name: str, **spec: object) -> Object:
        body: Json = {
            "metadata": {"name": name},
            "spec": {
                **_SPEC["spec"],
                "nodeName": self.strait.vnode("n"),
                "automountServiceAccountToken": False,
                **spec,
            },
        }
        return await self.strait.above.create(PODS, body, namespace=self.namespace)

    async def there(self, resource: Resource[ObjectT], obj: Object) -> bool:
        with suppress(NotFound):
            found = await self.strait.below.get(resource, obj.name, obj.namespace)
            return found.uid == obj.uid
        return False

    def _copy_of(self, virtual: str) -> dict[str, str]:
        return {
            DEFAULT.virtual_namespace: self.namespace,
            DEFAULT.virtual_name: virtual,
            DEFAULT.virtual_uid: "gone",
        }


_SPEC: Json = {"spec": {"containers": [{"name": "c", "image": "i"}]}}


@pytest.fixture
async def mess(
    sea: Sea, client: Client, worker: Cluster, namespace: str, request: pytest.FixtureRequest
) -> AsyncIterator[Mess]:
    """In the namespace that all share, or in that which `indirect` names."""
    below = worker.client()
    mount = getattr(request, "param", MOUNT)
    with suppress(AlreadyExists):
        await below.create(NAMESPACES, {"metadata": {"name": mount}})
    strait = Strait(sea.computing, worker, client, below, name=sea.name)
    await sea.bind(mountNamespace=mount, clusterID=strait.cluster_id)
    await strait.lend("n")
    ids = Ids(strait.name, strait.cluster_id, await identity_of(client))
    yield Mess(strait, ids, namespace, mount)
    mine = f"{DEFAULT.cluster_binding}={strait.name}"
    for pod in (await client.list(PODS, namespace)).items:
        await client.delete(PODS, pod.name, namespace, uid=pod.uid, grace_s=0)
    for resource in (PODS, CONFIG_MAPS, SECRETS):
        await below.delete_all(resource, mount, labels=mine)
    await below.close()


async def look(swept: Swept) -> list[Finding]:
    """What is found of this test's own; others leave in the namespace what nobody can tell of."""
    found = await swept.sweep.look()
    return [each for each in found if each.problem is not Problem.UNPROVEN]


async def test_while_both_sides_agree_nothing_is_asked(mess: Mess) -> None:
    volume = {"name": "v", "configMap": {"name": "used"}}
    pod = await mess.virtual_pod("web", volumes=[volume])
    kept = [
        (PODS, await mess.pod("web", pod.uid)),
        (SECRETS, await mess.token("web", pod.uid)),
        (CONFIG_MAPS, await mess.config_map("used")),
    ]
    above, below = Faults(), Faults()
    async with mess.strait.syncing(Swept, above=above, below=below) as swept:
        await swept.ready()
        await until(lambda: len(swept.sweep.world.vpods) == 1)
        before = len(above.requests) + len(below.requests)
        for _ in range(4):
            assert await look(swept) == []
        asked = [r for r in (*above.requests, *below.requests) if not watches(r)]
        assert len(above.requests) + len(below.requests) == before, asked
    for resource, each in kept:
        assert await mess.there(resource, each)


async def test_orphans_are_told_of_first_and_then_removed(mess: Mess) -> None:
    orphans = [
        (PODS, await mess.pod("gone", "u1")),
        (SECRETS, await mess.token("gone", "u1")),
        (CONFIG_MAPS, await mess.config_map("unused")),
        (SECRETS, await mess.secret("unused")),
    ]
    virtual = await mess.virtual_pod("web")
    stays = await mess.pod("web", virtual.uid)
    async with mess.strait.syncing(Swept) as swept:
        await swept.ready()
        metrics = swept.sweep.world.metrics
        await swept.sweep.look()
        assert swept.nudged == []
        found = await look(swept)
        assert {each.subject.uid for each in found} == {each.uid for _, each in orphans}
        assert all([await mess.there(*each) for each in orphans])
        name = "kubeocean_sweep_inconsistencies"
        assert metrics.value(name, {"kind": "Pod", "problem": "Orphan"}) == 1
        assert Key(mess.namespace, "gone") in swept.nudged
        (told, *_) = await until(lambda: mess.strait.told(mess.strait.name, "OrphanFound"))
        binding = await mess.strait.above.get(CLUSTER_BINDINGS, mess.strait.name)
        assert told.involved_object.uid == binding.uid
        assert "is left over" in told.message
        await swept.sweep.look()
        assert not any([await mess.there(*each) for each in orphans])
        assert metrics.value("kubeocean_sweep_removed_total", {"kind": "Pod"}) == 1
        await until(lambda: mess.strait.told(mess.strait.name, "OrphanRemoved"))
        await until(
            lambda: len(swept.sweep.world.ppods.by("virtual", f"{mess.namespace}/gone")) == 0
        )
        assert await mess.there(PODS, stays)


async def test_what_the_cache_does_not_show_is_not_removed(mess: Mess) -> None:
    """A cache that lost everything: the servers know better."""
    volume = {"name": "v", "configMap": {"name": "used"}}
    virtual = await mess.virtual_pod("web", volumes=[volume])
    kept = [
        (PODS, await mess.pod("web", virtual.uid)),
        (SECRETS, await mess.token("web", virtual.uid)),
        (CONFIG_MAPS, await mess.config_map("used")),
    ]
    below = Faults()
    async with mess.strait.syncing(Swept, below=below) as swept:
        await swept.ready()
        await until(lambda: len(swept.sweep.world.vpods) == 1)
        swept.sweep.world.vpods._put(virtual.key, None)
        for _ in range(4):
            assert len(await look(swept)) in (0, 3)
        assert below.writes == 0
    assert all([await mess.there(*each) for each in kept])


async def test_what_is_not_provably_ours_is_left_alone(mess: Mess) -> None:
    managed = {DEFAULT.managed_by: DEFAULT.product}
    others = ownership(Ids("other", "c9", "u9"), DEFAULT)
    unproven = await mess.pod("gone", "u1", **managed)
    foreign = await mess.pod("gone", "u1", **others)
    below = Faults()
    async with mess.strait.syncing(Swept, below=below) as swept:
        await swept.ready()
        for _ in range(4):
            found = await swept.sweep.look()
        mine = [each for each in found if each.subject.key == unproven.key]
        assert [each.problem for each in mine] == [Problem.UNPROVEN]
        assert foreign.key not in [each.subject.key for each in found]
        assert below.writes == 0
    for each in (unproven, foreign):
        await mess.strait.below.delete(PODS, each.name, MOUNT, uid=each.uid)


async def test_a_pod_that_is_lost_is_told_of(mess: Mess) -> None:
    virtual = await mess.virtual_pod("web")
    said = {"metadata": {"annotations": {DEFAULT.physical_pod_uid: "gone"}}}
    await mess.strait.above.patch(PODS, virtual.name, MergePatch(said), mess.namespace)
    async with mess.strait.syncing(Swept) as swept:
        await swept.ready()
        await until(lambda: len(swept.sweep.world.vpods) == 1)
        await swept.sweep.look()
        (found,) = await look(swept)
        assert found.problem is Problem.LOST
        assert swept.nudged == [virtual.key]
        assert await until(lambda: mess.strait.told(mess.strait.name, "InconsistencyFound"))


async def test_nothing_is_judged_while_the_worker_does_not_answer(mess: Mess) -> None:
    orphan = await mess.pod("gone", "u1")
    below = Faults()
    async with mess.strait.syncing(Swept, below=below) as swept:
        await swept.ready()
        await swept.sweep.look()
        below.partition()
        await until(lambda: not swept.sweep.world.reach.answers)
        for _ in range(3):
            assert await swept.sweep.look() == ()
        below.rejoin()
        await until(lambda: swept.sweep.world.reach.answers)
        await until(lambda: look(swept))
    assert await mess.there(PODS, orphan)


async def test_a_csinode_without_its_virtual_node_goes(mess: Mess) -> None:
    vnode = mess.strait.vnode("gone")
    labels = {**mess.labels, DEFAULT.physical_node_name: "gone"}
    body = {"metadata": {"name": vnode, "labels": labels}, "spec": {"drivers": []}}
    await mess.strait.above.create(CSI_NODES, body)
    async with mess.strait.syncing(Swept) as swept:
        await swept.ready()
        for _ in range(3):
            await swept.sweep.look()
        assert await mess.strait.seen(CSI_NODES, vnode) is None


async def test_pods_that_come_and_go_leave_nothing_but_what_nobody_collects(
    podsea: PodSea,
) -> None:
    """Beside the controllers at work; the worker of these tests has no garbage collector."""
    volumes = [
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ]
    body = {"metadata": {"name": "settings"}, "data": {"a": "b"}}
    await podsea.above.create(CONFIG_MAPS, body, namespace=podsea.namespace)
    async with podsea.pods() as pods:
        world, needs = pods.world, pods.needs
        csinodes, hostports = CsiNodes(world), HostPorts(world)
        sweep = Sweep(world, needs, csinodes, hostports, nudge=pods.controller.enqueue)
        running_already = (world.bindings, world.vnodes, world.vpods, world.ppods)
        others = [cache for cache in world.caches if cache not in running_already]
        async with running(*others, csinodes.copies, hostports.reservations):
            await until(sweep._can_judge)
            made = [await podsea.run(f"web-{n}", node=n % 2, volumes=volumes) for n in range(4)]
            for pod in made:
                await until(lambda pod=pod: podsea.runs(pod.name))
            await until(lambda: len(needs.tokens.secrets) == len(made))
            for _ in range(3):
                assert await sweep.look() == ()
            for pod in made:
                await podsea.delete(pod, grace_s=0)
            for pod in made:
                await until(lambda pod=pod: podsea.gone(pod.name))
            await until(lambda: not len(needs.config_maps.pairs.copies))
            for _ in range(3):
                found = await sweep.look()
            assert [each.subject.kind for each in found] == ["token Secret"] * len(made)
            await until(lambda: not len(needs.tokens.secrets))
            assert (await podsea.below.list(SECRETS, podsea.mount)).items == []


# By hand


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


async def repair(mess: Mess, home: Home, *words: str) -> Result:
    kubeconfig = str(mess.strait.computing.kubeconfig)
    binding = ("--cluster-binding-name", mess.strait.name, "--kubeconfig", kubeconfig)
    return await home.run("repair", *binding, "--pause", "0.2", *words)


@pytest.mark.parametrize("mess", ["only-for-repairs"], indirect=True)
async def test_repair_says_what_it_would_do_and_does_it(mess: Mess, home: Home) -> None:
    volume = {"name": "v", "configMap": {"name": "used"}}
    virtual = await mess.virtual_pod("web", volumes=[volume])
    kept = [
        (PODS, await mess.pod("web", virtual.uid)),
        (CONFIG_MAPS, await mess.config_map("used")),
    ]
    orphans = [
        (PODS, await mess.pod("gone", "u1")),
        (SECRETS, await mess.token("gone", "u1")),
        (CONFIG_MAPS, await mess.config_map("unused")),
    ]
    planned = await repair(mess, home, "--dry-run")
    assert planned.code == 3, planned.err
    assert f"Pod {orphans[0][1].key} is left over" in planned.out
    assert "3 would be removed by: " in planned.out
    assert all([await mess.there(*each) for each in orphans])
    done = await repair(mess, home, "-o", "json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["clean"] is True
    fates = {(each["kind"], each["uid"]): each["fate"] for each in document["findings"]}
    assert set(fates.values()) == {"removed"}
    assert {uid for _, uid in fates} == {each.uid for _, each in orphans}
    assert not any([await mess.there(*each) for each in orphans])
    assert all([await mess.there(*each) for each in kept])
    again = await repair(mess, home)
    assert (again.code, again.out) == (0, f"{mess.strait.name}: both clusters agree\n"), again.err


async def test_repair_of_a_binding_that_is_not_there_says_so(mess: Mess, home: Home) -> None:
    kubeconfig = str(mess.strait.computing.kubeconfig)
    words = ("repair", "--cluster-binding-name", "nobody", "--kubeconfig", kubeconfig)
    result = await home.run(*words)
    assert result.code == 2
    assert "--cluster-binding-name: there is no such binding" in result.err
    assert "(got 'nobody')" in result.err


@pytest.mark.parametrize("n", [1, 2])
async def test_a_crash_after_the_nth_removal_changes_nothing(mess: Mess, n: int) -> None:
    virtual = await mess.virtual_pod("web")
    stays = await mess.pod("web", virtual.uid)
    orphans = [(PODS, await mess.pod("gone", "u1")), (SECRETS, await mess.token("gone", "u1"))]
    faults = Faults()
    faults.crash_after_write(n)
    with suppress(Crashed, BaseExceptionGroup):
        async with mess.strait.syncing(Swept, below=faults) as swept:
            await swept.ready()
            for _ in range(3):
                await swept.sweep.look()
    assert faults.crashed
    async with mess.strait.syncing(Swept) as swept:
        await swept.ready()
        for _ in range(3):
            await swept.sweep.look()

        async def agreed() -> bool:
            return await look(swept) == []

        await until(agreed)
    assert not any([await mess.there(*each) for each in orphans])
    assert await mess.there(PODS, stays)
