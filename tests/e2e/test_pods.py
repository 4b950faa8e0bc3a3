"""A Deployment in the computing cluster runs in real containers of the worker, with all copies."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kubeocean.api import naming
from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.local.real_nodes.images import BUSYBOX
from kubeocean.local.real_nodes.node import RealNode
from kubeocean.runtime.client import Client, MergePatch, StrategicPatch
from kubeocean.runtime.kinds import CONFIG_MAPS, EVENTS, NAMESPACES, NODES, PODS, SECRETS
from kubeocean.runtime.objects import Json, Key, Resource, Untyped
from support.binding_env import BindingEnv
from support.crds import install_our_kinds
from support.pod_env import make_namespace
from support.syncer_process import SyncerProcess, syncer
from support.wait import until

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Untyped)
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Untyped)
GATE = "example.com/open"
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"

SCRIPT = """
trap 'sleep 2; echo bye > /data/last; exit 0' TERM
cat /work/first > /data/first
while true; do sleep 0.1; done
"""


@pytest.fixture(scope="module")
async def binding_env(
    cluster: Cluster,
    client: Client,
    real_cluster: Cluster,
    real_client: Client,
    real_node: RealNode,
) -> AsyncIterator[BindingEnv]:
    """A binding whose only node is the real one."""
    for each in (client, real_client):
        await install_our_kinds(each)
    binding_env = BindingEnv(
        computing=cluster, worker=real_cluster, computing_api=client, worker_api=real_client
    )
    for each in (client, real_client):
        await each.create(NAMESPACES, {"metadata": {"name": binding_env.name}})
    patch = MergePatch({"metadata": {"labels": binding_env.label}})
    await real_client.patch(NODES, real_node.name, patch)
    await binding_env.bind(mountNamespace=binding_env.name)
    await binding_env.lend()
    yield binding_env


@pytest.fixture(scope="module")
async def syncing(
    binding_env: BindingEnv, real_node: RealNode, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SyncerProcess]:
    port = int(binding_env.computing.server.rpartition(":")[2])
    server = real_node.reach(port)
    async with syncer(
        "one",
        f"--cluster-binding-name={binding_env.name}",
        f"--kubernetes-service-address={server}",
        f"--dns-service-address={server.partition(':')[0]}",
        kubeconfig=binding_env.computing.kubeconfig,
        directory=tmp_path_factory.mktemp("pods"),
    ) as one:
        await until(one.is_ready)
        yield one


async def prepare(binding_env: BindingEnv, path: Path) -> None:
    """Create the objects that the pods refer to."""
    namespace = binding_env.name
    await binding_env.computing_api.create(
        CONFIG_MAPS, {"metadata": {"name": "settings"}, "data": {"k": "v1"}}, namespace=namespace
    )
    secret = base64.b64encode(b"hidden").decode()
    await binding_env.computing_api.create(
        SECRETS, {"metadata": {"name": "key"}, "data": {"k": secret}}, namespace=namespace
    )
    vnode = naming.virtual_node(binding_env.cluster_id, "node-1")
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [vnode]}
    volume: Json = {
        "metadata": {"name": f"{binding_env.name}-data"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "by-hand",
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}},
        },
    }
    await binding_env.computing_api.create(VOLUMES, volume)
    claim: Json = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "by-hand",
            "volumeName": f"{binding_env.name}-data",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    await binding_env.computing_api.create(CLAIMS, claim, namespace=namespace)


def deployment(binding_env: BindingEnv) -> Json:
    mounts = [
        {"name": "work", "mountPath": "/work"},
        {"name": "settings", "mountPath": "/settings"},
        {"name": "data", "mountPath": "/data"},
        {"name": "about", "mountPath": "/about"},
        {"name": "ticket", "mountPath": "/ticket"},
    ]
    first: Json = {
        "name": "first",
        "image": BUSYBOX,
        "command": ["sh", "-c", "echo from-init > /work/first"],
        "volumeMounts": mounts[:1],
    }
    beside: Json = {
        "name": "beside",
        "image": BUSYBOX,
        "restartPolicy": "Always",
        "command": ["sh", "-c", "while true; do sleep 1; done"],
    }
    main: Json = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["sh", "-c", SCRIPT],
        "volumeMounts": mounts,
        "readinessProbe": {"exec": {"command": ["test", "-f", "/data/first"]}, "periodSeconds": 1},
        "env": [
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}},
            {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ],
    }
    item = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    ticket = {"path": "ticket", "audience": "elsewhere", "expirationSeconds": 3600}
    volumes: list[Json] = [
        {"name": "work", "emptyDir": {}},
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "about", "downwardAPI": {"items": [item]}},
        {"name": "ticket", "projected": {"sources": [{"serviceAccountToken": ticket}]}},
    ]
    spec: Json = {
        "nodeSelector": binding_env.label,
        "tolerations": [{"key": "kubeocean.io/vnode", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 20,
        "readinessGates": [{"conditionType": GATE}],
        "initContainers": [first, beside],
        "containers": [main],
        "volumes": volumes,
    }
    return {
        "metadata": {"name": "app"},
        "spec": {
            "selector": {"matchLabels": {"app": "app"}},
            "template": {"metadata": {"labels": {"app": "app"}}, "spec": spec},
        },
    }


async def only_pod(client: Client, namespace: str, labels: str = "app=app") -> Json | None:
    actual = (await client.list(PODS, namespace, labels=labels, keep_raw=True)).items
    return actual[0].content() if len(actual) == 1 else None


def holds(pod: Json | None, condition: str) -> bool:
    conditions = ((pod or {}).get("status") or {}).get("conditions") or ()
    return any(c["type"] == condition and c["status"] == "True" for c in conditions)


@pytest.mark.slow
async def test_a_deployment_lives_below_and_is_seen_above(
    binding_env: BindingEnv,
    syncing: SyncerProcess,
    kubectl: Callable[..., Awaitable[Any]],
    tmp_path: Path,
) -> None:
    namespace = binding_env.name
    await prepare(binding_env, tmp_path)
    await binding_env.computing_api.create(
        DEPLOYMENTS, deployment(binding_env), namespace=namespace
    )

    async def waits_for_its_gate() -> Json | None:
        pod = await only_pod(binding_env.computing_api, namespace)
        return pod if holds(pod, "ContainersReady") else None

    pod = await until(waits_for_its_gate, within=90)
    assert pod is not None
    assert not holds(pod, "Ready")
    name = pod["metadata"]["name"]
    gate = [{"type": GATE, "status": "True"}]
    await binding_env.computing_api.patch(
        PODS, name, MergePatch({"status": {"conditions": [*pod["status"]["conditions"], *gate]}}),
        namespace, subresource="status",
    )  # fmt: skip

    async def is_ready() -> bool:
        return holds(await only_pod(binding_env.computing_api, namespace), "Ready")

    await until(is_ready, within=60)
    worker_api = Key(namespace, naming.physical_name(name, namespace))

    async def inside(script: str) -> str:
        words = ("exec", worker_api.name, "-n", namespace, "-c", "main", "--", "sh", "-c", script)
        answer = await kubectl(*words)
        assert answer.code == 0, answer.err
        return answer.out.strip()

    # The objects that the pod refers to exist under the names in its spec.
    assert await inside("cat /settings/k") == "v1"
    assert await inside("echo $SECRET $WHO $UID $HOSTNAME") == " ".join(
        ("hidden", name, pod["metadata"]["uid"], name)
    )
    assert await inside("cat /about/namespace") == namespace
    assert (tmp_path / "first").read_text() == "from-init\n"
    assert (await inside("cat /ticket/ticket")).count(".") == 2

    # The token is valid in the computing cluster.
    review = '{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'
    text = await inside(
        "wget -qO- --no-check-certificate --header 'Content-Type: application/json' "
        f'--header "Authorization: Bearer $(cat {TOKEN})" '
        f"--post-data '{review}' https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"
        "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    )
    assert f"system:serviceaccount:{namespace}:default" in text
    assert pod["metadata"]["uid"] in text  # bound to this very pod

    # A change is seen inside.
    await binding_env.computing_api.patch(
        CONFIG_MAPS, "settings", MergePatch({"data": {"k": "v2"}}), namespace
    )

    async def changed() -> bool:
        return await inside("cat /settings/k") == "v2"

    await until(changed, within=120)

    # It has its grace to end, on both sides.
    actual = await binding_env.computing_api.get(DEPLOYMENTS, "app", namespace)
    await binding_env.computing_api.delete(DEPLOYMENTS, "app", namespace, uid=actual.uid)

    async def gone() -> bool:
        computing_api = (await binding_env.computing_api.list(PODS, namespace)).items
        return not computing_api and not (await binding_env.worker_api.list(PODS, namespace)).items

    await until(gone, within=60)
    assert (tmp_path / "last").read_text() == "bye\n"

    async def cleared() -> bool:
        for resource in (CONFIG_MAPS, SECRETS, CLAIMS):
            managed = "kubeocean.io/managed-by=kubeocean"
            if (await binding_env.worker_api.list(resource, namespace, labels=managed)).items:
                return False
        try:
            await binding_env.worker_api.get(
                VOLUMES, naming.physical_name(f"{binding_env.name}-data")
            )
        except NotFound:
            return True
        return False

    await until(cleared, within=60)


async def test_an_image_name_that_is_none_is_told_above_and_can_be_mended_there(
    binding_env: BindingEnv, syncing: SyncerProcess
) -> None:
    spec: Json = {
        "nodeSelector": binding_env.label,
        "tolerations": [{"key": "kubeocean.io/vnode", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [
            {"name": "c", "image": "Not/An:Image:Name", "command": ["sleep", "1000"]},
        ],
    }
    await binding_env.computing_api.create(
        PODS, {"metadata": {"name": "bad"}, "spec": spec}, namespace=binding_env.name
    )

    async def received() -> bool:
        pod = (
            await binding_env.computing_api.get(PODS, "bad", binding_env.name, keep_raw=True)
        ).content()
        status = pod["status"]
        (state,) = (each["state"] for each in status["containerStatuses"])
        unready = [c for c in status["conditions"] if c["type"] == "ContainersReady"]
        fields = "involvedObject.name=bad,type=Warning"
        events = (
            await binding_env.computing_api.list(EVENTS, binding_env.name, fields=fields)
        ).items
        return (
            state["waiting"]["reason"] == "InvalidImageName"
            and "[c]" in unready[0]["message"]
            and any("couldn't parse image name" in event.message for event in events)
        )

    await until(_once_there(received), within=60)
    good = StrategicPatch({"spec": {"containers": [{"name": "c", "image": BUSYBOX}]}})
    await binding_env.computing_api.patch(PODS, "bad", good, binding_env.name)

    async def ready() -> bool:
        return holds(
            (
                await binding_env.computing_api.get(PODS, "bad", binding_env.name, keep_raw=True)
            ).content(),
            "Ready",
        )

    await until(ready, within=90)
    pod = await binding_env.computing_api.get(PODS, "bad", binding_env.name)
    await binding_env.computing_api.delete(PODS, "bad", binding_env.name, uid=pod.uid)


async def test_the_full_host_name_of_a_pod_has_the_namespace_and_domain_of_the_worker(
    binding_env: BindingEnv, syncing: SyncerProcess
) -> None:
    """As docs/use/pods.md says of `hostname -f`; the host name and subdomain are the pod's own."""
    namespace = f"{binding_env.name}-home"
    await make_namespace(binding_env.computing_api, namespace)
    write = "hostname -f > /dev/termination-log; hostname >> /dev/termination-log"
    spec: Json = {
        "hostname": "first",
        "subdomain": "peers",
        "restartPolicy": "Never",
        "nodeSelector": binding_env.label,
        "tolerations": [{"key": "kubeocean.io/vnode", "operator": "Exists"}],
        "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": BUSYBOX, "command": ["sh", "-c", write]}],
    }
    created = await binding_env.computing_api.create(
        PODS, {"metadata": {"name": "named"}, "spec": spec}, namespace=namespace
    )

    async def ended() -> str:
        pod = await binding_env.computing_api.get(PODS, "named", namespace, keep_raw=True)
        (shown,) = pod.content()["status"].get("containerStatuses") or [{}]
        return str(shown.get("state", {}).get("terminated", {}).get("message", ""))

    full, short = (await until(ended, within=90)).split()
    assert full == f"first.peers.{binding_env.name}.svc.cluster.local"
    assert short == "first"
    await binding_env.computing_api.delete(PODS, "named", namespace, uid=created.uid)


def _once_there(probe: Callable[[], Awaitable[bool]]) -> Callable[[], Awaitable[bool]]:
    async def requested() -> bool:
        try:
            return await probe()
        except (KeyError, IndexError, ValueError):  # parts of a status come later
            return False

    return requested
