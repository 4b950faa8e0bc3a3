"""Pods of ours as processes of this machine: scheduled, run and reported as on any node."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.errors import AlreadyExists
from kubeocean.install.apply import FIELD_MANAGER, Applier
from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.join import Join, JoinRequest
from kubeocean.install.templates import syncer_deployment
from kubeocean.install.values import IMAGE, Values
from kubeocean.local.assets import Assets
from kubeocean.local.cluster import Cluster
from kubeocean.local.process_node.node import TAINT, ProcessNode
from kubeocean.manager.go_template import Template
from kubeocean.runtime.client import Client, MergePatch, connect
from kubeocean.runtime.credentials import KubeconfigAccess
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, NODES, PODS
from kubeocean.runtime.objects import Json, Key, Resource, Untyped, find_condition
from support.process_nodes import processes, running_node
from support.wait import until

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
TOLERATION = {"key": TAINT, "operator": "Exists"}
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture(scope="module")
async def hub(assets: Assets, cluster_roots: Path) -> AsyncIterator[Cluster]:
    async with Cluster("hub", cluster_roots / "hub", assets, ephemeral=True) as hub:
        yield hub


@pytest.fixture(scope="module")
async def admin(hub: Cluster) -> AsyncIterator[Client]:
    client = hub.client()
    yield client
    await client.close()


@pytest.fixture(scope="module")
async def node(hub: Cluster) -> AsyncIterator[ProcessNode]:
    node = ProcessNode(hub)
    async with running_node(node):
        yield node


@pytest.fixture
async def place(admin: Client) -> str:
    """The only namespace whose pods a process node runs."""
    with suppress(AlreadyExists):
        await admin.create(NAMESPACES, {"metadata": {"name": DEFAULT.system_namespace}})
    return DEFAULT.system_namespace


async def make(admin: Client, place: str, *args: str, **spec: object) -> Key:
    container: Json = {"name": "c", "image": IMAGE, "args": list(args), "securityContext": CONFINED}
    container |= spec.pop("container", {})
    body = {
        "metadata": {"name": f"p-{uuid.uuid4().hex[:8]}"},
        "spec": {
            "containers": [container],
            "tolerations": [TOLERATION],
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **spec,
        },
    }
    pod = await admin.create(PODS, body, namespace=place)
    return pod.key


async def status(admin: Client, key: Key) -> Json:
    pod = await admin.get(PODS, key.name, key.namespace, keep_raw=True)
    actual: Json = pod.content()["status"]
    return actual


async def container(admin: Client, key: Key) -> Json:
    actual: Json = ((await status(admin, key)).get("containerStatuses") or [{}])[0]
    return actual


async def log(admin: Client, key: Key, **query: str) -> str:
    path = f"/api/v1/namespaces/{key.namespace}/pods/{key.name}/log"
    return (await admin.request("GET", path, query=query.items(), accept="*/*")).decode()


async def test_a_node_that_runs_processes_is_ready_and_not_for_everybody(
    admin: Client, node: ProcessNode, place: str
) -> None:
    existing = await until(lambda: _ready(admin, node.name), waiting_for="a Ready node")
    assert [taint.key for taint in existing.spec.taints or ()] == [TAINT]
    stranger = await make(admin, place, "syncer", "--help", tolerations=[])

    async def refused() -> bool:
        conditions = (await status(admin, stranger)).get("conditions") or ()
        return any(each.get("reason") == "Unschedulable" for each in conditions)

    await until(refused, waiting_for="a pod that finds no node")


async def _ready(admin: Client, name: str) -> object:
    node = await admin.get(NODES, name)
    condition = find_condition(node.status.conditions, "Ready")
    tainted = any(taint.key != TAINT for taint in node.spec.taints or ())
    return node if condition and condition.status == "True" and not tainted else None


async def test_a_program_that_ends_is_over_or_tried_again(
    admin: Client, node: ProcessNode, place: str
) -> None:
    once = await make(admin, place, "syncer", "--help", restartPolicy="Never")
    fails = await make(admin, place, "syncer", "--cluster-binding-name=nobody")

    async def succeeded() -> bool:
        return (await status(admin, once)).get("phase") == "Succeeded"

    async def failed_twice() -> bool:
        actual = await container(admin, fails)
        return actual.get("restartCount", 0) >= 1 and bool(actual["lastState"])

    await until(succeeded, waiting_for="its success")
    assert "--cluster-binding-name" in await log(admin, once)
    await until(failed_twice, waiting_for="a second failure")
    assert (await container(admin, fails))["lastState"]["terminated"]["exitCode"] == 1
    assert "Could not start syncer" in await log(admin, fails, tailLines="3")


async def test_what_is_not_ours_is_not_run(admin: Client, node: ProcessNode, place: str) -> None:
    foreign = await make(admin, place, container={"image": "busybox:1"})
    shell = await make(admin, place, container={"command": ["/bin/sh", "-c", "id"]})

    async def refused(key: Key) -> str:
        state = (await container(admin, key)).get("state") or {}
        return str((state.get("waiting") or {}).get("message") or "")

    message = await until(lambda: refused(foreign), waiting_for="a refusal")
    assert message == "only kubeocean/kubeocean is run here, not busybox:1"
    assert "not /bin/sh -c id" in await until(lambda: refused(shell), waiting_for="a refusal")
    elsewhere = f"pods-{uuid.uuid4().hex[:8]}"
    await admin.create(NAMESPACES, {"metadata": {"name": elsewhere}})
    stranger = await make(admin, elsewhere, "syncer")
    assert "only pods of namespace" in await until(
        lambda: refused(stranger), waiting_for="a refusal"
    )
    for key in (foreign, shell, stranger):
        await admin.delete(PODS, key.name, key.namespace, uid=None)
        await until(lambda key=key: _gone(admin, key), waiting_for="its end")


async def _gone(admin: Client, key: Key) -> bool:
    left = await admin.list(PODS, key.namespace, fields=f"metadata.name={key.name}")
    return not left.items


async def test_a_mounted_config_map_is_followed(
    admin: Client, node: ProcessNode, place: str
) -> None:
    mounts = [{"name": "files", "mountPath": "/etc/files"}]
    key = await make(
        admin,
        place,
        "syncer",
        "--help",
        container={"volumeMounts": mounts},
        volumes=[{"name": "files", "configMap": {"name": "late"}}],
    )

    async def waits() -> bool:
        state = (await container(admin, key)).get("state") or {}
        return "volumes do not exist yet: files" in str(state.get("waiting"))

    await until(waits, waiting_for="a word about the volume")
    body = {"metadata": {"name": "late"}, "data": {"a": "1", "b": "2"}}
    await admin.create(CONFIG_MAPS, body, namespace=place)

    def content() -> dict[str, str]:
        run = node.pod(key)
        root = run.directory / "volumes" / "files" if run is not None else Path("/nonexistent")
        shown = root.iterdir() if root.exists() else ()
        return {each.name: each.read_text() for each in shown if each.name[:2] != ".."}

    await until(lambda: content() == {"a": "1", "b": "2"}, waiting_for="the files")
    change = MergePatch({"data": {"a": "3", "b": None}})
    await admin.patch(CONFIG_MAPS, "late", change, place)
    await until(lambda: content() == {"a": "3"}, waiting_for="the new files")


async def test_a_deployment_runs_under_its_own_account_and_again_with_the_node(
    hub: Cluster, admin: Client, node: ProcessNode, cluster: Cluster
) -> None:
    async with AsyncExitStack() as stack:
        computing_api, worker_api = (_applier(each, stack) for each in (hub, cluster))
        objects = computing_objects(Values(replicas=1, tolerations=(TAINT,)))
        await computing_api.apply_all(each for each in objects if each["kind"] != "Deployment")
        access = KubeconfigAccess(cluster.kubeconfig).current()
        await Join(JoinRequest(name="one"), computing_api, worker_api, access).run()
    await admin.create(DEPLOYMENTS, _syncer("one"))
    where = DEFAULT.system_namespace
    first = await until(lambda: _ready_pod(admin, where), waiting_for="a Ready syncer")
    assert first.status.pod_ip.startswith("127.")
    (line,) = (words for words in processes(node).values() if "cluster-binding-name=one" in words)
    assert f"--health-probe-bind-address={first.status.pod_ip}:8081" in line
    assert "Started service" in await log(admin, first.key)
    # The pod reads the computing cluster with the token of its own account, bound to this pod.
    run = node.pod(first.key)
    assert run is not None
    own = connect(run.directory / "kubeconfig")
    try:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        answer = await own.request_json("POST", path, body=review)
    finally:
        await own.close()
    user = answer["status"]["userInfo"]
    assert user["username"] == f"system:serviceaccount:{where}:kubeocean-syncer"
    assert user["extra"]["authentication.kubernetes.io/pod-uid"] == [first.uid]

    for pid, words in processes(node).items():
        if "cluster-binding-name=one" in words:
            os.kill(pid, signal.SIGKILL)

    async def again() -> bool:
        actual = await container(admin, first.key)
        return actual["restartCount"] == 1 and bool(actual["ready"])

    await until(again, waiting_for="another run")
    assert (await container(admin, first.key))["lastState"]["terminated"]["signal"] == 9

    await admin.delete(DEPLOYMENTS, "kubeocean-syncer-one", where, uid=None)
    await until(lambda: _gone(admin, first.key), waiting_for="the end of the syncer")
    await until(lambda: not run.directory.exists(), waiting_for="the end of its files")
    assert not any("cluster-binding-name=one" in words for words in processes(node).values())


async def test_pods_outlive_their_node(hub: Cluster, admin: Client, place: str) -> None:
    second = ProcessNode(hub, name="second")
    chosen = {"nodeName": "second"}
    async with running_node(second):
        key = await make(admin, place, "syncer", "--cluster-binding-name=nobody", **chosen)
        going = await make(admin, place, "syncer", "--cluster-binding-name=nobody", **chosen)
        for each in (key, going):
            await until(lambda each=each: _tried(admin, each), waiting_for="a first run")
    before = await status(admin, key)
    await admin.delete(PODS, going.name, going.namespace, uid=None)
    assert not await _gone(admin, going)
    async with running_node(ProcessNode(hub, name="second")):
        await until(lambda: _gone(admin, going), waiting_for="the end of the one that was deleted")

        async def ran_again() -> bool:
            actual = await container(admin, key)
            return bool(actual["restartCount"] > before["containerStatuses"][0]["restartCount"])

        await until(ran_again, waiting_for="another run")
        assert (await status(admin, key))["podIP"] == before["podIP"]
        await admin.delete(PODS, key.name, key.namespace, uid=None, grace_s=0)
    await admin.delete(NODES, "second", uid=None)


async def _tried(admin: Client, key: Key) -> bool:
    return bool((await container(admin, key)).get("lastState"))


async def _ready_pod(admin: Client, namespace: str) -> object:
    for pod in (await admin.list(PODS, namespace)).items:
        if not pod.name.startswith("kubeocean-syncer-one"):
            continue
        for condition in pod.status.conditions or ():
            if (condition.type, condition.status) == ("Ready", "True"):
                return pod
    return None


def _applier(cluster: Cluster, stack: AsyncExitStack) -> Applier:
    client = connect(cluster.kubeconfig, cluster=cluster.name, field_manager=FIELD_MANAGER)
    stack.push_async_callback(client.close)
    return Applier(client, domain=DEFAULT)


def _syncer(binding: str) -> Json:
    """Return the rendered template of the syncer."""
    template = json.dumps(syncer_deployment(Values(replicas=1, tolerations=(TAINT,))))
    values = {
        "ClusterBindingName": binding,
        "DeploymentName": f"kubeocean-syncer-{binding}",
        "ServiceAccountName": "kubeocean-syncer",
        "SyncerNamespace": DEFAULT.system_namespace,
    }
    rendered: Json = json.loads(Template(template, source="deployment").render(values))
    return rendered
