"""Forged pods on real servers: the worker accepts every pod that the computing cluster accepts.

No pod runs: servers only validate them (dry run), or store pods that no kubelet sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

import msgspec
import pytest

from kubeocean.errors import AlreadyExists, ApiError, Forbidden, Invalid
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, JsonPatch, MergePatch, StrategicPatch
from kubeocean.runtime.kinds import NAMESPACES, PODS, SERVICE_ACCOUNTS, Untyped
from kubeocean.runtime.objects import Json, Resource
from kubeocean.syncer.pods.changes import changes
from kubeocean.syncer.pods.forge import forge
from kubeocean.syncer.pods.forge_context import Refused, ServiceEnv, ServicePort
from support.examples import draw_many
from support.forge_inputs import context_for, vpod
from support.pod_strategies import pod_bodies
from support.wait import until

PRIORITY_CLASSES: Final = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, Untyped
)
RUNTIME_CLASSES: Final = Resource(
    "node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False, Untyped
)
BELOW = "forge-below"
EXAMPLES = 120
SERVICES = (
    ServiceEnv("db", "10.0.0.5", (ServicePort(5432, "sql"), ServicePort(80, "metrics"))),
    ServiceEnv("dns", "fd00::a", (ServicePort(53, "udp", "UDP"),)),
)


async def ensure(client: Client, resource: Resource[Any], body: Json) -> None:
    with suppress(AlreadyExists):
        await client.create(resource, body)


async def prepare(client: Client, *, overhead: str) -> None:
    """Create a namespace, and classes that pods name, which differ between the clusters."""
    for name, value, preempts in (
        ("forge-high", 1000, "PreemptLowerPriority"),
        ("forge-never", 2000, "Never"),
        ("forge-low", -10_000, "PreemptLowerPriority"),
    ):
        body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": preempts}
        await ensure(client, PRIORITY_CLASSES, body)
    runtime = {
        "metadata": {"name": "forge-runtime"},
        "handler": "forge",
        "overhead": {"podFixed": {"cpu": overhead}},
    }
    await ensure(client, RUNTIME_CLASSES, runtime)
    await ensure(client, NAMESPACES, {"metadata": {"name": BELOW}})
    account = {"metadata": {"name": "default", "namespace": BELOW}}
    await ensure(client, SERVICE_ACCOUNTS, account)


@pytest.fixture
async def worker_api(worker: Cluster) -> AsyncIterator[Client]:
    client = worker.client()
    await prepare(client, overhead="250m")
    yield client
    await client.close()


@pytest.fixture
async def computing_api(client: Client, namespace: str) -> Client:
    await prepare(client, overhead="1")
    names = [each.name for each in (await client.list(SERVICE_ACCOUNTS, namespace)).items]
    if "default" not in names:
        await until(lambda: _has_account(client, namespace))
    return client


async def _has_account(client: Client, namespace: str) -> bool:
    return bool((await client.list(SERVICE_ACCOUNTS, namespace)).items)


async def would_create(client: Client, body: Json) -> Json:
    """Return a new pod as a server would store it (dry run)."""
    path = PODS.path(body["metadata"]["namespace"])
    return await client.request_json("POST", path, query=(("dryRun", "All"),), body=body)


def bound(pod: Json) -> Json:
    """Return the pod after it was bound to a virtual node."""
    spec = {key: value for key, value in pod["spec"].items() if key != "schedulingGates"}
    return pod | {"spec": spec | {"nodeName": "vnode-w1-n1"}}


async def test_every_valid_pod_is_accepted_by_the_worker_or_refused_with_a_reason(
    computing_api: Client, worker_api: Client, namespace: str
) -> None:
    seen: Counter[str] = Counter()
    for number, body in enumerate(draw_many(pod_bodies(namespace), EXAMPLES)):
        try:
            pod = bound(await would_create(computing_api, body))
        except (Invalid, Forbidden):
            seen["not a pod"] += 1
            continue
        context = context_for(
            pod,
            namespace=BELOW,
            priority_class="forge-low",
            services=SERVICES,
            direct_scheduling=bool(number % 2),
        )
        try:
            forged = forge(pod, context)
        except Refused as refused:
            assert refused.field
            seen["refused"] += 1
            continue
        # Two servers: the worker's, and one that admits service accounts as in production.
        for server in (worker_api, computing_api):
            try:
                stored = await would_create(server, forged)
            except ApiError as error:
                pytest.fail(f"{error}\n{msgspec.json.encode(forged).decode()}")
            assert_kept(forged, stored)
        seen["accepted"] += 1
    assert seen["accepted"] > EXAMPLES / 3, seen
    assert seen["refused"] > 0, seen


def assert_kept(forged: Json, stored: Json) -> None:
    """Check that the worker's admission added neither a token of its account nor volumes."""
    spec = stored["spec"]
    assert [v["name"] for v in spec.get("volumes") or ()] == [
        v["name"] for v in forged["spec"].get("volumes") or ()
    ]
    assert spec["automountServiceAccountToken"] is False
    assert spec["preemptionPolicy"] == "PreemptLowerPriority"
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        mounts = [m["mountPath"] for m in container.get("volumeMounts") or ()]
        assert not [path for path in mounts if path.startswith("/var/run/secrets/kub")] or (
            any("kube-api-access" in v["name"] for v in forged["spec"]["volumes"])
        )


async def test_a_pod_of_the_default_account_gets_only_the_computing_clusters_token(
    computing_api: Client, namespace: str
) -> None:
    body = vpod(namespace=namespace)
    del body["metadata"]["uid"], body["metadata"]["resourceVersion"]
    body["spec"] = {"containers": body["spec"]["containers"]}
    pod = bound(await would_create(computing_api, body))
    (volume,) = pod["spec"]["volumes"]
    assert volume["name"].startswith("kube-api-access-")

    context = context_for(pod, namespace=BELOW, priority_class="forge-low")
    stored = await would_create(computing_api, forge(pod, context))
    (volume,) = stored["spec"]["volumes"]
    token, authority, where = volume["projected"]["sources"]
    assert token["secret"]["name"] == context.names.tokens[volume["name"], 0]
    assert authority["configMap"]["name"] == context.names.config_maps["kube-root-ca.crt"]
    path = where["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['kubeocean.io/virtual-pod-namespace']"


# --- existing pods


async def read(client: Client, namespace: str, name: str) -> Json:
    return await client.request_json("GET", PODS.path(namespace, name))


async def test_every_change_is_accepted_by_the_worker_and_needs_no_second_patch(
    computing_api: Client, worker_api: Client, namespace: str
) -> None:
    name = f"{namespace}-changing"
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1"}}
    body = {
        "metadata": {"name": name, "namespace": namespace, "labels": {"a": "1", "b": "1"}},
        "spec": {
            "nodeName": "vnode-w1-n1",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "app", "image": "app:1", "resources": resources}],
            "initContainers": [{"name": "init", "image": "init:1"}],
        },
    }
    await computing_api.create(PODS, body)
    pod = await read(computing_api, namespace, name)
    context = context_for(pod, namespace=BELOW, priority_class="forge-low", services=SERVICES)
    await worker_api.create(PODS, forge(pod, context))

    async def settle() -> list[str]:
        """Apply the changes; return the subresources that were written."""
        pod = await read(computing_api, namespace, name)
        ppod = await read(worker_api, BELOW, context.name)
        now = context_for(pod, namespace=BELOW, priority_class="forge-low", services=SERVICES)
        difference = changes(pod, ppod, now)
        assert not difference.refused
        for patch in difference.patches:
            strategic = StrategicPatch(patch.body)
            await worker_api.patch(
                PODS, context.name, strategic, BELOW, subresource=patch.subresource
            )
        after = changes(pod, await read(worker_api, BELOW, context.name), now)
        assert after.patches == ()
        return [patch.subresource for patch in difference.patches]

    assert await settle() == [], "a new pod is as it should be"

    labels = {"metadata": {"labels": {"a": "2", "b": None}, "annotations": {"note": "x"}}}
    await computing_api.patch(PODS, name, MergePatch(labels), namespace)
    assert await settle() == [""]

    spec: Json = {
        "containers": [{"name": "app", "image": "app:2"}],
        "initContainers": [{"name": "init", "image": "init:2"}],
        "activeDeadlineSeconds": 3600,
    }
    await computing_api.patch(PODS, name, StrategicPatch({"spec": spec}), namespace)
    toleration = {"key": "late", "operator": "Exists"}
    add = {"op": "add", "path": "/spec/tolerations/-", "value": toleration}
    await computing_api.patch(PODS, name, JsonPatch([add]), namespace)
    assert await settle() == [""]

    env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    debugger = {"name": "debug", "image": "busybox", "env": env}
    debug = StrategicPatch({"spec": {"ephemeralContainers": [debugger]}})
    await computing_api.patch(PODS, name, debug, namespace, subresource="ephemeralcontainers")
    assert await settle() == ["ephemeralcontainers"]

    more = {"requests": {"cpu": "200m"}, "limits": {"cpu": "2"}}
    resize = StrategicPatch({"spec": {"containers": [{"name": "app", "resources": more}]}})
    await computing_api.patch(PODS, name, resize, namespace, subresource="resize")
    assert await settle() == ["resize", ""]

    ppod = await read(worker_api, BELOW, context.name)
    (app,) = ppod["spec"]["containers"]
    assert app["image"] == "app:2"
    assert app["resources"]["requests"] == {"cpu": "200m", "memory": "64Mi"}
    assert ppod["spec"]["activeDeadlineSeconds"] == 3600
    assert toleration in ppod["spec"]["tolerations"]
    assert ppod["metadata"]["labels"]["a"] == "2"
    assert "b" not in ppod["metadata"]["labels"]
    (debugged,) = ppod["spec"]["ephemeralContainers"]
    assert debugged["env"][-2]["valueFrom"]["secretKeyRef"]["name"] != "s"


async def test_a_patch_for_a_pod_that_was_replaced_is_refused(
    computing_api: Client, worker_api: Client, namespace: str
) -> None:
    pod = vpod(f"{namespace}-replaced", namespace=namespace)
    context = context_for(pod, namespace=BELOW, priority_class="forge-low")
    await worker_api.create(PODS, forge(pod, context))
    ppod = await read(worker_api, BELOW, context.name)
    ppod["metadata"]["uid"] = "another"
    pod["metadata"]["labels"] = {"new": "label"}
    (patch,) = changes(pod, ppod, context).patches
    with pytest.raises(ApiError, match="uid"):
        await worker_api.patch(PODS, context.name, StrategicPatch(patch.body), BELOW)
