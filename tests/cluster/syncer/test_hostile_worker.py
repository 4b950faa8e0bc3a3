"""A worker that alters every answer changes nothing but its own virtual nodes and pods.

The syncer runs as a process of its own, so that its memory can be measured. Its writes are read
from the audit log of the computing cluster.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from kubeocean.errors import NotFound
from kubeocean.install.values import Size
from kubeocean.local.audit import AuditedRequest
from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.kinds import CONFIG_MAPS, EVENTS, NODES, PODS, SECRETS, SERVICES
from kubeocean.runtime.objects import Json, Resource, Untyped
from kubeocean.runtime.quantity import Quantity
from support.binding_env import BindingEnv
from support.hostile_worker import Forgery, HostileWorker, hostile_worker
from support.pod_env import make_namespace, usable
from support.syncer_process import SyncerProcess, syncer
from support.wait import until

# Of the proof; for ten minutes: HOSTILE_SECONDS=600
PROOF_S = float(os.environ.get("HOSTILE_SECONDS", "120"))
MEMORY = int(Quantity.stored(Size.SMALL.resources["limits"]["memory"]).value())
SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, Untyped)
READS = ("get", "list", "watch")
STOLEN = {"app": "payments-db"}  # the selector of a Service that the worker wants to serve
FORGED_ADDRESS = "192.0.2.66"
BEGINS = ("\x1b", "\x9b")  # characters that begin an escape sequence
NODE_TTL = "node.alpha.kubernetes.io/ttl"  # of a controller of Kubernetes
AT_ONCE = 12  # pods of the load


@dataclass
class Scene:
    """A binding whose worker is behind the hostile proxy, and objects that are not its own."""

    env: BindingEnv
    hostile: HostileWorker
    one: SyncerProcess
    namespace: str
    vnodes: list[str]
    nodes: set[str]  # of the computing cluster, before
    victims: dict[str, Json]
    since: int  # in the audit log
    largest: int = 0  # resident bytes of the syncer
    created: int = 0  # pods

    @property
    def prefix(self) -> str:
        return f"vnode-{self.env.cluster_id}-"

    def writes(self) -> list[AuditedRequest]:
        """Return the writes of the syncer that the computing cluster accepted."""
        requests = self.env.computing.audit.requests(user=user_of(self.env), since=self.since)
        return [each for each in requests if each.verb not in READS and each.code < 400]

    def is_own(self, request: AuditedRequest) -> bool:
        """Whether a write concerns the binding, its virtual nodes, or the pods on them."""
        name, namespace = request.name, request.namespace
        match request.resource:
            case "nodes" | "csinodes":
                return name.startswith(self.prefix) or request.verb == "create"  # without a name
            case "leases":
                syncers = f"kubeocean-syncer-{self.env.name}"
                return name.startswith(self.prefix) or (namespace, name) == ("default", syncers)
            case "clusterbindings":
                return name == self.env.name
            case "pods":
                return namespace == self.namespace
            case "events":
                return namespace in (self.namespace, "default")
            case "configmaps" | "secrets":
                used = name in ("used", "kube-root-ca.crt") and request.verb == "patch"
                return used and namespace == self.namespace
            case "serviceaccounts":
                token = request.subresource == "token" and name == "default"
                return token and namespace == self.namespace
        return False


def user_of(env: BindingEnv) -> str:
    return f"{env.name}-syncer"


@pytest.fixture
async def scene(
    binding_env: BindingEnv, kubelets: SimulatedNodes, namespace: str, tmp_path: Path
) -> AsyncIterator[Scene]:
    env, api = binding_env, binding_env.computing_api
    await usable(api, namespace)
    await make_namespace(env.worker_api, f"m-{env.name}")
    pnodes = await kubelets.add(3, prefix=env.name, labels=env.label)
    victims = await create_victims(env, namespace)
    forgery = Forgery(
        labels={
            **STOLEN,
            "node-role.kubernetes.io/control-plane": "",
            "node-restriction.kubernetes.io/pool": "trusted",
            "kubeocean.io/virtual-pod-name": "victim",
        },
        annotations={
            "kubeocean.io/virtual-pod-namespace": "kube-system",
            "kubeocean.io/virtual-pod-name": "victim",
            "kubeocean.io/virtual-pod-uid": victims["pod"]["metadata"]["uid"],
            "kubeocean.io/virtual-node-name": victims["node"]["metadata"]["name"],
            "cluster.x-k8s.io/machine": "stolen",
        },
        uids=tuple(victim["metadata"]["uid"] for victim in victims.values()),
        addresses=(FORGED_ADDRESS, "127.0.0.1", "169.254.169.254"),
        node_names=(victims["node"]["metadata"]["name"], f"{env.name}-machine"),
    )
    async with hostile_worker(env.worker, forgery, directory=tmp_path) as hostile:
        await env.bind(
            kubeconfig=hostile.kubeconfig,
            mountNamespace=f"m-{env.name}",
            workerCIDRs=["10.0.0.0/8"],
        )
        await env.lend()
        async with syncer(
            "hostile",
            f"--cluster-binding-name={env.name}",
            "--kubernetes-service-address=10.9.9.9:443",
            "--dns-service-address=10.9.9.10",
            f"--worker-cache-limit={MEMORY // 4}",  # as in a container with this limit
            kubeconfig=env.computing.user(user_of(env), ["system:masters"]),
            directory=tmp_path,
        ) as one:

            async def lent() -> bool:
                return len(await env.vnodes()) == len(pnodes)

            await until(lent)
            names = [node.name for node in await env.vnodes()]
            nodes = {node.name for node in (await api.list(NODES)).items}
            since = env.computing.audit.mark()
            yield Scene(env, hostile, one, namespace, names, nodes, victims, since)


async def create_victims(env: BindingEnv, namespace: str) -> dict[str, Json]:
    """Create objects that the worker tries to reach, and return them by their roles."""
    api = env.computing_api
    used: Json = {"metadata": {"name": "used"}, "data": {"k": "dg=="}}
    await api.create(CONFIG_MAPS, used, namespace=namespace)
    await api.create(SECRETS, used, namespace=namespace)
    service = {"metadata": {"name": "payments"}, "spec": {"selector": STOLEN, "clusterIP": "None"}}
    await api.create(SERVICES, service, namespace=namespace)
    await make_namespace(api, f"other-{env.name}")
    await usable(api, f"other-{env.name}")
    machine: Json = {"metadata": {"name": f"{env.name}-machine", "labels": {"kept": "yes"}}}
    # The cluster ID of this one begins with that of the hostile binding.
    label = {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/cluster-binding": "another"}
    node: Json = {"metadata": {"name": f"vnode-{env.cluster_id}x-n", "labels": label}}
    pod: Json = {
        "metadata": {"name": "victim", "labels": {"kept": "yes"}},
        "spec": {
            "nodeName": f"{env.name}-machine",
            "containers": [{"name": "c", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
        },
    }
    other = f"other-{env.name}"
    created = {
        "machine": await api.create(NODES, machine, keep_raw=True),
        "node": await api.create(NODES, node, keep_raw=True),
        "pod": await api.create(PODS, pod, namespace=other, keep_raw=True),
        "secret": await api.create(SECRETS, used, namespace=other, keep_raw=True),
    }
    return {name: victim.content() for name, victim in created.items()}


def body(scene: Scene, name: str) -> Json:
    volumes: list[Json] = [
        {"name": "a", "configMap": {"name": "used"}},
        {"name": "b", "secret": {"secretName": "used"}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    return {
        "metadata": {"name": name, "labels": {"load": "yes"}},
        "spec": {
            "nodeName": scene.vnodes[scene.created % len(scene.vnodes)],
            "containers": [{"name": "c", "image": "none", "volumeMounts": mounts}],
            "volumes": volumes,
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
        },
    }


async def load(scene: Scene, seconds: float) -> None:
    """Create and delete pods on the virtual nodes, and measure the syncer meanwhile."""
    api, namespace = scene.env.computing_api, scene.namespace
    ends_at = time.monotonic() + seconds
    assert scene.one.process.pid is not None
    process = psutil.Process(scene.one.process.pid)
    while time.monotonic() < ends_at:
        name = f"load-{scene.created}"
        await api.create(PODS, body(scene, name), namespace=namespace)
        scene.created += 1
        if scene.created > AT_ONCE:
            with suppress(NotFound):
                old = f"load-{scene.created - AT_ONCE}"
                await api.delete(PODS, old, namespace, uid=None, grace_s=1)
        for _ in range(5):
            scene.largest = max(scene.largest, process.memory_info().rss)
            await asyncio.sleep(0.1)  # the test needs this time to pass


async def check(scene: Scene) -> None:
    """Check that nothing changed but the virtual nodes and pods of the binding."""
    foreign = [each for each in scene.writes() if not scene.is_own(each)]
    assert foreign == []
    api, env = scene.env.computing_api, scene.env
    other = f"other-{env.name}"
    stored = {
        "machine": await api.get(NODES, f"{env.name}-machine", keep_raw=True),
        "node": await api.get(NODES, scene.victims["node"]["metadata"]["name"], keep_raw=True),
        "pod": await api.get(PODS, "victim", other, keep_raw=True),
        "secret": await api.get(SECRETS, "used", other, keep_raw=True),
    }
    for name, victim in stored.items():
        assert kept(victim.content()) == kept(scene.victims[name]), name
    created = {node.name for node in (await api.list(NODES)).items} - scene.nodes
    assert [name for name in created if not name.startswith(scene.prefix)] == []
    slices = (await api.list(SLICES, scene.namespace, keep_raw=True)).items
    assert [each.content()["endpoints"] for each in slices if each.content()["endpoints"]] == []
    for pod in (await api.list(PODS, scene.namespace, keep_raw=True)).items:
        assert pod.labels.get("app") is None, pod.labels
        status = pod.content()["status"]
        assert FORGED_ADDRESS not in str(status), status
        assert is_clean(status), status
    for node in await env.vnodes():
        content = node.content()
        restricted = [k for k in node.labels if k.startswith(("node-role.", "node-restriction."))]
        assert restricted == []
        assert "cluster.x-k8s.io/machine" not in node.annotations
        assert is_clean(content["status"]["conditions"]), content["status"]
    for namespace in ("default", scene.namespace):
        for event in (await api.list(EVENTS, namespace)).items:
            assert is_clean(event.message + event.reason), event
    assert "\x1b" not in scene.one.process.log.read_text()


def kept(content: Json) -> Json:
    """Return the fields of an object that the controllers of Kubernetes leave alone."""
    meta = content["metadata"]
    fields = ("name", "uid", "labels", "finalizers", "deletionTimestamp")
    taints = [t for t in content.get("spec", {}).get("taints", ()) if "kubeocean" in t["key"]]
    addresses = content.get("status", {}).get("addresses")
    data = content.get("data")
    annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if k != NODE_TTL}
    return {key: meta.get(key) for key in fields} | {
        "annotations": annotations,
        "taints": taints,
        "addresses": addresses,
        "data": data,
    }


def is_clean(value: object) -> bool:
    """Whether no text in a value begins an escape sequence of a terminal."""
    if isinstance(value, str):  # a quoted character, such as a backslash and x1b, begins nothing
        return not any(mark in value for mark in BEGINS)
    if isinstance(value, dict):
        return all(is_clean(part) for part in (*value.keys(), *value.values()))
    return all(map(is_clean, value)) if isinstance(value, list) else True


async def survives(scene: Scene, seconds: float) -> None:
    """Let the worker alter its answers for `seconds`, under load, and check all changes."""
    await load(scene, 2)
    scene.hostile.begin()
    await load(scene, seconds)
    report(scene)
    await check(scene)
    assert scene.one.process.running, scene.one.process.tail()
    assert scene.largest < MEMORY, f"{scene.largest >> 20} MiB"


def report(scene: Scene) -> None:
    """Print the measurements of a run, for `pytest -s`."""
    print(f"\nlargest RSS {scene.largest >> 20} MiB, {scene.created} pods created")
    print(f"{len(scene.writes())} writes, alterations: {sum(scene.hostile.counts.values())}")
    for name, count in sorted(scene.hostile.counts.items()):
        print(f"  {count:6}  {name}")


async def test_a_hostile_worker_changes_only_its_virtual_nodes_and_pods(scene: Scene) -> None:
    await survives(scene, 12)


@pytest.mark.slow
@pytest.mark.sweep(sampled=False)
@pytest.mark.timeout(PROOF_S + 300)
async def test_a_hostile_worker_gains_nothing_with_time(scene: Scene) -> None:
    await survives(scene, PROOF_S)
