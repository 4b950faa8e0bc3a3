"""Sweep and repair on two real clusters: orphans are reported, and deleted if they are ours."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kubeocean.api import naming
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids, ownership_labels
from kubeocean.errors import AlreadyExists, NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, NODES, PODS, SECRETS
from kubeocean.runtime.objects import Json, Key, Object, ObjectT, Resource
from kubeocean.runtime.transport import Request
from kubeocean.syncer.cleanup.diff import Difference, DifferenceKind
from kubeocean.syncer.cleanup.sweep import Sweep
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.nodes.csinodes import CSI_NODES, CsiNodes
from kubeocean.syncer.nodes.host_ports import HostPorts
from kubeocean.syncer.replication.pod_copies import PodCopies
from kubeocean.worker_access.identity import identity_of
from support.background import running
from support.binding_env import BindingEnv
from support.commands import Home, Result
from support.controller_env import ControllerEnv
from support.faults import Crashed, Faults, reads, watches
from support.pod_env import PodEnv
from support.wait import until

MOUNT = "kubeocean-worker"
MANAGED = {DEFAULT.managed_by: DEFAULT.product}


class SweepOnly:
    """A sweep and all caches, without the controllers that would delete orphans first."""

    def __init__(self, clusters: Clusters) -> None:
        self.nudged: list[Key] = []
        pod_copies = PodCopies(clusters)
        csinodes, hostports = CsiNodes(clusters), HostPorts(clusters)
        self.sweep = Sweep(clusters, pod_copies, csinodes, hostports, nudge=self.nudged.append)
        self.caches = (
            *(cache for cache in clusters.caches if cache is not clusters.vnodes),
            *(
                cache
                for copies in pod_copies.replicators.values()
                for cache in (copies.sources, copies.copies)
            ),
            pod_copies.tokens.secrets,
            csinodes.copies,
            hostports.reservations,
        )
        self.parts = self.caches

    async def ready(self) -> None:
        await until(self.sweep._can_judge)


class OrphanEnv:
    """A binding, and objects that were created for it without a syncer."""

    def __init__(self, controller_env: ControllerEnv, ids: Ids, namespace: str, mount: str) -> None:
        self.controller_env = controller_env
        self.ids = ids
        self.namespace = namespace
        self.mount = mount

    @property
    def labels(self) -> dict[str, str]:
        return ownership_labels(self.ids, DEFAULT)

    async def pod(self, virtual: str, virtual_uid: str, **labels: str) -> Object:
        annotations = {
            DEFAULT.virtual_pod_namespace: self.namespace,
            DEFAULT.virtual_pod_name: virtual,
            DEFAULT.virtual_pod_uid: virtual_uid,
        }
        return await self.make(PODS, annotations, labels or self.labels, **_SPEC)

    async def config_map(self, virtual: str) -> Object:
        return await self.make(CONFIG_MAPS, self._copy_of(virtual), self.labels)

    async def secret(self, virtual: str) -> Object:
        return await self.make(SECRETS, self._copy_of(virtual), self.labels)

    async def token(self, virtual: str, virtual_uid: str) -> Object:
        annotations = {
            DEFAULT.virtual_pod_namespace: self.namespace,
            DEFAULT.virtual_pod_name: virtual,
            DEFAULT.virtual_pod_uid: virtual_uid,
        }
        labels = self.labels | {DEFAULT.service_account_token: "true"}
        return await self.make(SECRETS, annotations, labels)

    async def make(
        self,
        resource: Resource[ObjectT],
        annotations: dict[str, str],
        labels: dict[str, str],
        **content: object,
    ) -> ObjectT:
        name = f"{self.controller_env.name}-{uuid.uuid4().hex[:6]}"
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        body: Json = {"metadata": metadata, **content}
        return await self.controller_env.worker_api.create(resource, body, namespace=self.mount)

    async def virtual_pod(self, name: str, **spec: object) -> Object:
        body: Json = {
            "metadata": {"name": name},
            "spec": {
                **_SPEC["spec"],
                "nodeName": self.controller_env.vnode("n"),
                "automountServiceAccountToken": False,
                **spec,
            },
        }
        return await self.controller_env.computing_api.create(PODS, body, namespace=self.namespace)

    async def exists(self, resource: Resource[ObjectT], obj: Object) -> bool:
        with suppress(NotFound):
            stored = await self.controller_env.worker_api.get(resource, obj.name, obj.namespace)
            return stored.uid == obj.uid
        return False

    def _copy_of(self, virtual: str) -> dict[str, str]:
        return {
            DEFAULT.virtual_namespace: self.namespace,
            DEFAULT.virtual_name: virtual,
            DEFAULT.virtual_uid: "gone",
        }


_SPEC: Json = {"spec": {"containers": [{"name": "c", "image": "i"}]}}


@pytest.fixture
async def env(
    binding_env: BindingEnv,
    client: Client,
    worker: Cluster,
    namespace: str,
    request: pytest.FixtureRequest,
) -> AsyncIterator[OrphanEnv]:
    """In the namespace that all tests share, or in the one that `indirect` names."""
    worker_api = worker.client()
    mount = getattr(request, "param", MOUNT)
    with suppress(AlreadyExists):
        await worker_api.create(NAMESPACES, {"metadata": {"name": mount}})
    controller_env = ControllerEnv(
        binding_env.computing, worker, client, worker_api, name=binding_env.name
    )
    await binding_env.bind(mountNamespace=mount, clusterID=controller_env.cluster_id)
    await controller_env.lend("n")
    ids = Ids(controller_env.name, controller_env.cluster_id, await identity_of(client))
    yield OrphanEnv(controller_env, ids, namespace, mount)
    mine = f"{DEFAULT.cluster_binding}={controller_env.name}"
    for pod in (await client.list(PODS, namespace)).items:
        await client.delete(PODS, pod.name, namespace, uid=pod.uid, grace_s=0)
    for resource in (PODS, CONFIG_MAPS, SECRETS):
        await worker_api.delete_all(resource, mount, labels=mine)
    await worker_api.close()


async def sweep_once(swept: SweepOnly) -> list[Difference]:
    """Return the differences of this test; objects of other tests may be without an owner."""
    differences = await swept.sweep.run_once()
    return [each for each in differences if each.problem is not DifferenceKind.UNPROVEN]


async def test_a_sweep_of_clusters_that_agree_sends_no_request(env: OrphanEnv) -> None:
    volume = {"name": "v", "configMap": {"name": "used"}}
    pod = await env.virtual_pod("web", volumes=[volume])
    kept = [
        (PODS, await env.pod("web", pod.uid)),
        (SECRETS, await env.token("web", pod.uid)),
        (CONFIG_MAPS, await env.config_map("used")),
    ]
    computing_api, worker_api = Faults(), Faults()
    async with env.controller_env.syncing(
        SweepOnly, computing_api=computing_api, worker_api=worker_api
    ) as swept:
        await swept.ready()
        await until(lambda: len(swept.sweep.clusters.vpods) == 1)
        before = len(computing_api.requests) + len(worker_api.requests)
        for _ in range(4):
            assert await sweep_once(swept) == []
        sent = [r for r in (*computing_api.requests, *worker_api.requests) if not watches(r)]
        assert len(computing_api.requests) + len(worker_api.requests) == before, sent
    for resource, each in kept:
        assert await env.exists(resource, each)


async def test_orphans_are_reported_first_and_then_deleted(env: OrphanEnv) -> None:
    orphans = [
        (PODS, await env.pod("gone", "u1")),
        (SECRETS, await env.token("gone", "u1")),
        (CONFIG_MAPS, await env.config_map("unused")),
        (SECRETS, await env.secret("unused")),
    ]
    virtual = await env.virtual_pod("web")
    stays = await env.pod("web", virtual.uid)
    async with env.controller_env.syncing(SweepOnly) as swept:
        await swept.ready()
        metrics = swept.sweep.clusters.metrics
        await swept.sweep.run_once()
        assert swept.nudged == []
        differences = await sweep_once(swept)
        assert {each.subject.uid for each in differences} == {each.uid for _, each in orphans}
        assert all([await env.exists(*each) for each in orphans])
        name = "kubeocean_sweep_inconsistencies"
        assert metrics.value(name, {"kind": "Pod", "problem": "Orphan"}) == 1
        assert Key(env.namespace, "gone") in swept.nudged
        (event, *_) = await until(
            lambda: env.controller_env.events_about(env.controller_env.name, "OrphanFound")
        )
        binding = await env.controller_env.computing_api.get(
            CLUSTER_BINDINGS, env.controller_env.name
        )
        assert event.involved_object.uid == binding.uid
        assert "is left over" in event.message
        await swept.sweep.run_once()
        assert not any([await env.exists(*each) for each in orphans])
        assert metrics.value("kubeocean_sweep_removed_total", {"kind": "Pod"}) == 1
        await until(
            lambda: env.controller_env.events_about(env.controller_env.name, "OrphanRemoved")
        )
        await until(
            lambda: len(swept.sweep.clusters.ppods.by("virtual", f"{env.namespace}/gone")) == 0
        )
        assert await env.exists(PODS, stays)


async def test_an_object_that_only_the_cache_lacks_is_not_removed(env: OrphanEnv) -> None:
    """The cache loses a pod that the API server still has."""
    volume = {"name": "v", "configMap": {"name": "used"}}
    virtual = await env.virtual_pod("web", volumes=[volume])
    kept = [
        (PODS, await env.pod("web", virtual.uid)),
        (SECRETS, await env.token("web", virtual.uid)),
        (CONFIG_MAPS, await env.config_map("used")),
    ]
    worker_api = Faults()
    async with env.controller_env.syncing(SweepOnly, worker_api=worker_api) as swept:
        await swept.ready()
        await until(lambda: len(swept.sweep.clusters.vpods) == 1)
        swept.sweep.clusters.vpods._put(virtual.key, None)
        for _ in range(4):
            assert len(await sweep_once(swept)) in (0, 3)
        assert worker_api.writes == 0
    assert all([await env.exists(*each) for each in kept])


async def test_the_error_page_of_a_proxy_does_not_prove_that_a_pod_or_node_is_gone(
    env: OrphanEnv,
) -> None:
    """The caches lack two pods, and pages answer the reads that would confirm it."""
    virtual = await env.virtual_pod("web")
    legacy = await env.virtual_pod("legacy")
    ours = env.controller_env.vnode("n")
    kept = [
        (PODS, await env.pod("web", virtual.uid)),
        (SECRETS, await env.token("web", virtual.uid)),
        (PODS, await legacy_pod(env, "legacy", legacy.uid, ours)),
    ]
    computing_api, worker_api = Faults(), Faults()
    paths = [f"/pods/{virtual.name}", f"/pods/{legacy.name}", f"/nodes/{ours}"]
    read_paths: set[str] = set()

    def confirms(request: Request) -> bool:
        path = next((each for each in paths if request.path.endswith(each)), "")
        read_paths.update([path] if path else ())
        return bool(path)

    async with env.controller_env.syncing(
        SweepOnly, computing_api=computing_api, worker_api=worker_api
    ) as swept:
        await swept.ready()
        clusters = swept.sweep.clusters
        await until(lambda: len(clusters.vpods) == 2 and len(clusters.vnodes) == 1)
        for each in (virtual, legacy):
            clusters.vpods._put(each.key, None)
        page = b"<html><body>404 page not found</body></html>"
        computing_api.answer(404, times=1000, when=confirms, page=page)
        for _ in range(6):
            await swept.sweep.run_once()
        assert read_paths == {paths[0], paths[2]}
        paths.remove(f"/nodes/{ours}")  # the node is read now, and the pod is not
        for _ in range(4):
            await swept.sweep.run_once()
        assert read_paths >= {paths[0], paths[1]}
        assert worker_api.writes == 0
    assert all([await env.exists(*each) for each in kept])
    for resource, each in kept:
        await env.controller_env.worker_api.delete(resource, each.name, env.mount, uid=each.uid)


async def test_an_object_that_is_not_provably_ours_is_left_alone(env: OrphanEnv) -> None:
    managed = {DEFAULT.managed_by: DEFAULT.product}
    others = ownership_labels(Ids("other", "c9", "u9"), DEFAULT)
    unproven = await env.pod("gone", "u1", **managed)
    foreign = await env.pod("gone", "u1", **others)
    worker_api = Faults()
    async with env.controller_env.syncing(SweepOnly, worker_api=worker_api) as swept:
        await swept.ready()
        for _ in range(4):
            differences = await swept.sweep.run_once()
        mine = [each for each in differences if each.subject.key == unproven.key]
        assert [each.problem for each in mine] == [DifferenceKind.UNPROVEN]
        assert foreign.key not in [each.subject.key for each in differences]
        assert worker_api.writes == 0
    for each in (unproven, foreign):
        await env.controller_env.worker_api.delete(PODS, each.name, MOUNT, uid=each.uid)


async def legacy_pod(env: OrphanEnv, virtual: str, uid: str, vnode: str, **spec: object) -> Object:
    """Create a pod as the Go implementation does."""
    annotations = {
        DEFAULT.virtual_pod_namespace: env.namespace,
        DEFAULT.virtual_pod_name: virtual,
        DEFAULT.virtual_pod_uid: uid,
        DEFAULT.virtual_node_name: vnode,
    }
    name = naming.physical_name(virtual, env.namespace)
    metadata = {"name": name, "labels": MANAGED, "annotations": annotations}
    body = {"metadata": metadata, "spec": {**_SPEC["spec"], **spec}}
    return await env.controller_env.worker_api.create(PODS, body, namespace=env.mount)


async def legacy_token(env: OrphanEnv, pod: str, uid: str) -> Object:
    annotations = {
        DEFAULT.virtual_pod_namespace: env.namespace,
        DEFAULT.virtual_pod_name: pod,
        DEFAULT.virtual_pod_uid: uid,
    }
    labels = MANAGED | {DEFAULT.service_account_token: "true"}
    return await env.make(SECRETS, annotations, labels)


def mounting(*secrets: Object) -> dict[str, object]:
    volumes = [
        {"name": f"v{n}", "projected": {"sources": [{"secret": {"name": secret.name}}]}}
        for n, secret in enumerate(secrets)
    ]
    return {"volumes": volumes}


async def test_a_pod_of_the_go_implementation_is_removed_with_its_tokens_if_its_pod_is_gone(
    env: OrphanEnv,
) -> None:
    ours, missing = env.controller_env.vnode("n"), env.controller_env.vnode("missing")
    virtual = await env.virtual_pod("web")
    successor = await env.virtual_pod("again")
    token, others = await legacy_token(env, "gone", "u1"), await legacy_token(env, "else", "u9")
    removed = [
        (PODS, await legacy_pod(env, "gone", "u1", ours, **mounting(token, others))),
        (PODS, await legacy_pod(env, "again", "u0", ours)),
        (SECRETS, token),
    ]
    kept = [
        (PODS, await legacy_pod(env, "web", virtual.uid, ours)),
        (PODS, await legacy_pod(env, "gone-too", "u1", missing)),
        (PODS, await legacy_pod(env, "gone-elsewhere", "u1", "vnode-other-n")),
        (PODS, await env.make(PODS, {}, MANAGED, **_SPEC)),
        (SECRETS, others),
    ]
    computing_api, worker_api = Faults(), Faults()
    async with env.controller_env.syncing(
        SweepOnly, computing_api=computing_api, worker_api=worker_api
    ) as swept:
        await swept.ready()
        await until(lambda: len(swept.sweep.clusters.vpods) == 2)
        for _ in range(2):
            await swept.sweep.run_once()
        assert worker_api.writes == 0
        for _ in range(2):
            await swept.sweep.run_once()
        paths = [request.path for request in computing_api.requests if reads(request)]
        assert [path for path in paths if path.endswith(f"/nodes/{ours}")]
        assert [path for path in paths if path.endswith("/pods/gone")]
        before = len(computing_api.requests) + len(worker_api.requests)
        await until(lambda: has_settled(swept, removed))
        for _ in range(3):
            await swept.sweep.run_once()
        assert len(computing_api.requests) + len(worker_api.requests) == before
    assert not any([await env.exists(*each) for each in removed])
    assert all([await env.exists(*each) for each in kept])
    assert (await env.controller_env.computing_api.get(PODS, "again", env.namespace)).uid == (
        successor.uid
    )
    for resource, each in kept:
        await env.controller_env.worker_api.delete(resource, each.name, env.mount, uid=each.uid)


def has_settled(swept: SweepOnly, removed: list[tuple[Any, Object]]) -> bool:
    cached = {pod.uid for pod in swept.sweep.clusters.ppods.items()}
    return not cached & {each.uid for _, each in removed}


async def test_a_pod_of_the_go_implementation_is_kept_if_either_cluster_denies_that_it_is_left_over(
    env: OrphanEnv,
) -> None:
    """The caches show an orphan of ours; the API servers show that it is none."""
    ours = env.controller_env.vnode("n")
    virtual = await env.virtual_pod("web")
    wanted = await legacy_pod(env, "web", virtual.uid, ours)
    foreign = await legacy_pod(env, "gone", "u1", ours)
    async with env.controller_env.syncing(SweepOnly) as swept:
        await swept.ready()
        clusters = swept.sweep.clusters
        await until(lambda: len(clusters.vpods) == 1 and len(clusters.vnodes) == 1)
        for _ in range(2):
            await swept.sweep.run_once()
        # The node becomes another binding's, and the pod vanishes, in the caches' past.
        clusters.vpods._put(virtual.key, None)
        vnode = clusters.vnodes.get(Key("", ours))
        labels = {DEFAULT.cluster_binding: "other", DEFAULT.physical_cluster_id: "other"}
        body = {
            "metadata": {"labels": labels, "annotations": {DEFAULT.expected_metadata: None}},
        }
        await env.controller_env.computing_api.patch(NODES, ours, MergePatch(body))
        await until(lambda: clusters.vnodes.get(Key("", ours)) is None)
        clusters.vnodes._put(Key("", ours), vnode)
        for _ in range(4):
            differences = await swept.sweep.run_once()
        assert {each.problem for each in differences} >= {DifferenceKind.LEGACY}
    for each in (wanted, foreign):
        assert await env.exists(PODS, each)
        await env.controller_env.worker_api.delete(PODS, each.name, env.mount, uid=each.uid)


async def test_a_lost_pod_is_reported(env: OrphanEnv) -> None:
    virtual = await env.virtual_pod("web")
    body = {"metadata": {"annotations": {DEFAULT.physical_pod_uid: "gone"}}}
    await env.controller_env.computing_api.patch(
        PODS, virtual.name, MergePatch(body), env.namespace
    )
    async with env.controller_env.syncing(SweepOnly) as swept:
        await swept.ready()
        await until(lambda: len(swept.sweep.clusters.vpods) == 1)
        await swept.sweep.run_once()
        (difference,) = await sweep_once(swept)
        assert difference.problem is DifferenceKind.LOST
        assert swept.nudged == [virtual.key]
        assert await until(
            lambda: env.controller_env.events_about(env.controller_env.name, "InconsistencyFound")
        )


async def test_a_sweep_concludes_nothing_while_the_worker_does_not_answer(env: OrphanEnv) -> None:
    orphan = await env.pod("gone", "u1")
    worker_api = Faults()
    async with env.controller_env.syncing(SweepOnly, worker_api=worker_api) as swept:
        await swept.ready()
        await swept.sweep.run_once()
        worker_api.partition()
        await until(lambda: not swept.sweep.clusters.worker_health.answers)
        for _ in range(3):
            assert await swept.sweep.run_once() == ()
        worker_api.rejoin()
        await until(lambda: swept.sweep.clusters.worker_health.answers)
        await until(lambda: sweep_once(swept))
    assert await env.exists(PODS, orphan)


async def test_a_csinode_without_its_virtual_node_is_deleted(env: OrphanEnv) -> None:
    vnode = env.controller_env.vnode("gone")
    labels = {**env.labels, DEFAULT.physical_node_name: "gone"}
    body = {"metadata": {"name": vnode, "labels": labels}, "spec": {"drivers": []}}
    await env.controller_env.computing_api.create(CSI_NODES, body)
    async with env.controller_env.syncing(SweepOnly) as swept:
        await swept.ready()
        for _ in range(3):
            await swept.sweep.run_once()
        assert await env.controller_env.seen(CSI_NODES, vnode) is None


async def test_pods_that_come_and_go_leave_nothing_but_objects_that_no_controller_collects(
    pod_env: PodEnv,
) -> None:
    """The controllers run, too; the worker of these tests has no garbage collector."""
    volumes = [
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ]
    body = {"metadata": {"name": "settings"}, "data": {"a": "b"}}
    await pod_env.computing_api.create(CONFIG_MAPS, body, namespace=pod_env.namespace)
    async with pod_env.pods() as pods:
        clusters, pod_copies = pods.clusters, pods.copies
        csinodes, hostports = CsiNodes(clusters), HostPorts(clusters)
        sweep = Sweep(clusters, pod_copies, csinodes, hostports, nudge=pods.controller.enqueue)
        running_already = (clusters.bindings, clusters.vnodes, clusters.vpods, clusters.ppods)
        others = [cache for cache in clusters.caches if cache not in running_already]
        async with running(*others, csinodes.copies, hostports.reservations):
            await until(sweep._can_judge)
            vpods = [await pod_env.run(f"web-{n}", node=n % 2, volumes=volumes) for n in range(4)]
            for pod in vpods:
                await until(lambda pod=pod: pod_env.runs(pod.name))
            await until(lambda: len(pod_copies.tokens.secrets) == len(vpods))
            for _ in range(3):
                assert await sweep.run_once() == ()
            for pod in vpods:
                await pod_env.delete(pod, grace_s=0)
            for pod in vpods:
                await until(lambda pod=pod: pod_env.gone(pod.name))
            await until(lambda: not len(pod_copies.replicators["ConfigMap"].copies))
            for _ in range(3):
                differences = await sweep.run_once()
            assert [each.subject.kind for each in differences] == ["token Secret"] * len(vpods)
            await until(lambda: not len(pod_copies.tokens.secrets))
            assert (await pod_env.worker_api.list(SECRETS, pod_env.mount)).items == []


# Repair


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


async def repair(env: OrphanEnv, home: Home, *words: str) -> Result:
    kubeconfig = str(env.controller_env.computing.kubeconfig)
    binding = ("--cluster-binding-name", env.controller_env.name, "--kubeconfig", kubeconfig)
    return await home.run("repair", *binding, "--pause", "0.2", *words)


@pytest.mark.parametrize("env", ["only-for-repairs"], indirect=True)
async def test_repair_prints_what_it_would_delete_and_then_deletes_it(
    env: OrphanEnv, home: Home
) -> None:
    volume = {"name": "v", "configMap": {"name": "used"}}
    virtual = await env.virtual_pod("web", volumes=[volume])
    kept = [
        (PODS, await env.pod("web", virtual.uid)),
        (CONFIG_MAPS, await env.config_map("used")),
    ]
    orphans = [
        (PODS, await env.pod("gone", "u1")),
        (SECRETS, await env.token("gone", "u1")),
        (CONFIG_MAPS, await env.config_map("unused")),
    ]
    planned = await repair(env, home, "--dry-run")
    assert planned.code == 3, planned.err
    assert f"Pod {orphans[0][1].key} is left over" in planned.out
    assert "To delete 3 of them, run: " in planned.out
    assert all([await env.exists(*each) for each in orphans])
    done = await repair(env, home, "-o", "json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["clean"] is True
    fates = {(each["kind"], each["uid"]): each["fate"] for each in document["findings"]}
    assert set(fates.values()) == {"removed"}
    assert {uid for _, uid in fates} == {each.uid for _, each in orphans}
    assert not any([await env.exists(*each) for each in orphans])
    assert all([await env.exists(*each) for each in kept])
    again = await repair(env, home)
    assert (again.code, again.out) == (0, f"{env.controller_env.name}: both clusters agree\n"), (
        again.err
    )


@pytest.mark.parametrize("env", ["only-for-legacy-pods"], indirect=True)
async def test_repair_removes_pods_of_the_go_implementation_and_pods_that_name_nothing(
    env: OrphanEnv, home: Home
) -> None:
    ours = env.controller_env.vnode("n")
    virtual = await env.virtual_pod("web")
    token = await legacy_token(env, "gone", "u1")
    removed = [
        (PODS, await legacy_pod(env, "gone", "u1", ours, **mounting(token))),
        (PODS, await env.make(PODS, {}, MANAGED, **_SPEC)),
        (SECRETS, token),
    ]
    other = ownership_labels(Ids("other", "c9", "u9"), DEFAULT)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}
    metadata = {"name": "copied", "labels": MANAGED, "ownerReferences": [owner]}
    worker_api = env.controller_env.worker_api
    kept = [
        await legacy_pod(env, "web", virtual.uid, ours),
        await legacy_pod(env, "gone-elsewhere", "u1", "vnode-other-n"),
        await env.make(PODS, {}, other, **_SPEC),
        await env.make(PODS, {DEFAULT.virtual_node_name: "vnode-other-n"}, MANAGED, **_SPEC),
        await worker_api.create(PODS, {"metadata": metadata, **_SPEC}, namespace=env.mount),
    ]
    planned = await repair(env, home, "--dry-run")
    assert "To delete 2 of them, run: " in planned.out, planned.err
    assert f"Pod {removed[1][1].key} has the label of Kubeocean, but names no" in planned.out
    assert all([await env.exists(*each) for each in removed])
    done = await repair(env, home, "-o", "json")
    fates = {each["uid"]: each["fate"] for each in json.loads(done.out)["findings"]}
    assert {fates[each.uid] for resource, each in removed if resource is PODS} == {"removed"}
    assert not any([await env.exists(*each) for each in removed])
    assert all([await env.exists(PODS, each) for each in kept])
    assert done.code == 3  # three pods without proof of their owner are left
    for each in kept:
        await worker_api.delete(PODS, each.name, env.mount, uid=each.uid, grace_s=0)


async def test_repair_of_a_binding_that_does_not_exist_fails_with_its_name(
    env: OrphanEnv, home: Home
) -> None:
    kubeconfig = str(env.controller_env.computing.kubeconfig)
    words = ("repair", "--cluster-binding-name", "unknown", "--kubeconfig", kubeconfig)
    result = await home.run(*words)
    assert result.code == 2
    assert "--cluster-binding-name: there is no such binding" in result.err
    assert "(got 'unknown')" in result.err


@pytest.mark.parametrize("n", [1, 2])
async def test_a_crash_after_the_nth_removal_changes_nothing(env: OrphanEnv, n: int) -> None:
    virtual = await env.virtual_pod("web")
    stays = await env.pod("web", virtual.uid)
    orphans = [(PODS, await env.pod("gone", "u1")), (SECRETS, await env.token("gone", "u1"))]
    faults = Faults()
    faults.crash_after_write(n)
    with suppress(Crashed, BaseExceptionGroup):
        async with env.controller_env.syncing(SweepOnly, worker_api=faults) as swept:
            await swept.ready()
            for _ in range(3):
                await swept.sweep.run_once()
    assert faults.crashed
    async with env.controller_env.syncing(SweepOnly) as swept:
        await swept.ready()
        for _ in range(3):
            await swept.sweep.run_once()

        async def clean() -> bool:
            return await sweep_once(swept) == []

        await until(clean)
    assert not any([await env.exists(*each) for each in orphans])
    assert await env.exists(PODS, stays)
