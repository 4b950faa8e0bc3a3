"""Bad input: a pod that cannot run is reported with object and reason, and runs once it can.

Each case has a binding of its own; all cases run at the same time, and their requests are counted
together for some seconds, in which attempts have to become rare.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.errors import ApiError
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch, StrategicPatch
from kubeocean.runtime.kinds import (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    Untyped,
)
from kubeocean.runtime.objects import Json, Resource, encode
from kubeocean.runtime.transport import Request
from kubeocean.syncer.pods.controller import PodController
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod
from support.admission_webhook import Webhook, guarding
from support.controller_env import quiet
from support.crds import install_our_kinds
from support.faults import Faults, watches
from support.pod_env import PodEnv
from support.wait import until

QUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota", True, Untyped)
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Untyped)
VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Untyped)
WATCHED_S: Final = 7.0
MOST: Final = 4  # attempts in that time: after 1, 2 and 4 seconds
CREATED, SYNCED = "PhysicalPodCreated", "PhysicalPodSynced"
DUE: Final = "kubeocean.io/token-due"
TOKEN: Json = {
    "name": "token",
    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
}


@dataclass
class Case:
    """A kind of bad input; `watched` is set when the requests of all cases were counted."""

    name: str
    env: PodEnv
    directory: Path
    plan: Faults = field(default_factory=Faults)
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    watched: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[str] = field(default_factory=list)  # in the counted time
    error: Exception | None = None

    async def reports(self, event: str, condition: str, *words: str) -> None:
        """Wait until an event and a condition have these words: the object and the reason."""

        async def reported() -> bool:
            events = [each.message for each in await self.env.told_of("web", event)]
            message = await self.condition(condition)
            return message != "" and all(
                word in message and any(word in each for each in events) for word in words
            )

        await until(reported, waiting_for=f"{self.name} to be reported")

    async def rests(self) -> None:
        """Wait for the end of the time in which requests are counted."""
        self.reported.set()
        await self.watched.wait()

    async def condition(self, kind: str) -> str:
        pod = await self.env.vpod()
        assert pod is not None
        conditions = [c for c in pod.content()["status"].get("conditions", ()) if c["type"] == kind]
        assert all(c["status"] == "False" for c in conditions)
        return str(conditions[0]["message"]) if conditions else ""

    async def runs(self) -> VirtualPod:
        """Wait until the pod runs and has no condition of a problem."""

        async def well() -> VirtualPod | None:
            messages = [await self.condition(kind) for kind in (CREATED, SYNCED)]
            return await self.env.runs() if messages == ["", ""] else None

        pod = await until(well, waiting_for=f"{self.name} to run")
        assert pod is not None
        return pod

    def syncing(self) -> AbstractAsyncContextManager[PodController]:
        return self.env.pods(computing_api=self.plan, worker_api=self.plan)

    def requests(self) -> list[str]:
        """Return all requests except watches and probes."""
        return [
            f"{request.method} {request.path}"
            for request in self.plan.requests
            if not watches(request) and request.path != "/version"
        ]

    def attempts(self, method: str, kind: str) -> int:
        return sum(line.startswith(method) and line.endswith(kind) for line in self.sent)


Trial = Callable[[Case], Awaitable[None]]
TRIALS: dict[str, Trial] = {}


def trial(name: str) -> Callable[[Trial], Trial]:
    def note(way: Trial) -> Trial:
        TRIALS[name] = way
        return way

    return note


def container(**more: object) -> Json:
    return {"name": "c", "image": "none", **more}


async def put(
    client: Client, kind: Resource[Any], name: str, namespace: str, **body: object
) -> str:
    made = await client.create(kind, {"metadata": {"name": name, "namespace": namespace}, **body})
    return str(made.uid)


async def quota(env: PodEnv, resource: str) -> Callable[[], Awaitable[None]]:
    """Give the worker a full quota of a resource; return a function that removes it.

    The worker has no quota controller, so the status is written here.
    """
    hard = {resource: "0"}
    uid = await put(env.worker_api, QUOTAS, "tight", env.mount, spec={"hard": hard})
    status = MergePatch({"status": {"hard": hard, "used": hard}})
    await env.worker_api.patch(QUOTAS, "tight", status, env.mount, subresource="status")
    return lambda: env.worker_api.delete(QUOTAS, "tight", env.mount, uid=uid)


@trial("a Secret over the worker's quota")
async def secret_over_quota(case: Case) -> None:
    env = case.env
    lift = await quota(env, "secrets")
    await put(env.computing_api, SECRETS, "key", env.namespace)
    async with case.syncing():
        await env.run(containers=[container(envFrom=[{"secretRef": {"name": "key"}}])])
        await case.reports(
            "FailedCreatePod", CREATED, f"Secret {env.namespace}/key", "exceeded quota"
        )
        await case.rests()
        assert case.attempts("POST", "/secrets") <= MOST, case.sent
        assert case.attempts("POST", "/pods") == 0, case.sent
        await lift()
        await case.runs()


@trial("a pod over the worker's quota")
async def pod_over_quota(case: Case) -> None:
    lift = await quota(case.env, "pods")
    async with case.syncing():
        await case.env.run()
        await case.reports("FailedCreatePod", CREATED, case.env.ppod_name(), "exceeded quota")
        await case.rests()
        assert case.attempts("POST", "/pods") <= MOST, case.sent
        await lift()
        await case.runs()


@trial("a pod that is not safe enough for the worker")
async def unsafe_pod(case: Case) -> None:
    env, level = case.env, "pod-security.kubernetes.io/enforce"

    async def demand(value: str | None) -> None:
        patch = MergePatch({"metadata": {"labels": {level: value}}})
        await env.worker_api.patch(NAMESPACES, env.mount, patch)

    await demand("restricted")
    async with case.syncing():
        await env.run()
        await case.reports("FailedCreatePod", CREATED, env.ppod_name(), "PodSecurity")
        await case.rests()
        assert case.attempts("POST", "/pods") <= MOST, case.sent
        await demand(None)
        await case.runs()


@trial("a token over the worker's quota")
async def token_over_quota(case: Case) -> None:
    env = case.env
    lift = await quota(env, "secrets")
    async with case.syncing():
        await env.run(volumes=[TOKEN])
        await case.reports("FailedUpdatePod", SYNCED, f"secrets {env.mount}/", "exceeded quota")
        await case.rests()
        assert case.attempts("POST", "/secrets") <= MOST, case.sent
        await lift()
        await case.runs()
        assert (await env.worker_api.list(SECRETS, env.mount)).items


@trial("a ConfigMap that does not exist")
async def missing_config_map(case: Case) -> None:
    env = case.env
    async with case.syncing():
        await env.run(containers=[container(envFrom=[{"configMapRef": {"name": "late"}}])])
        missing = f"ConfigMap {env.namespace}/late does not exist"
        await case.reports("FailedCreatePod", CREATED, missing)
        await case.rests()
        assert case.attempts("GET", "/late") <= 1, case.sent
        assert case.attempts("POST", "/pods") == 0, case.sent
        await put(env.computing_api, CONFIG_MAPS, "late", env.namespace)
        await case.runs()


@trial("a worker that does not let ConfigMaps be listed")
async def unlisted_kind(case: Case) -> None:
    env = case.env

    def lists(request: Request) -> bool:
        return request.path.endswith(f"/namespaces/{env.mount}/configmaps") and not request.writes

    case.plan.answer(403, times=1 << 60, when=lists)
    await put(env.computing_api, CONFIG_MAPS, "used", env.namespace)
    async with case.syncing():
        await env.run("other", volumes=[{"name": "s", "emptyDir": {}}])
        await env.run(containers=[container(envFrom=[{"configMapRef": {"name": "used"}}])])
        words = (
            f"ConfigMap {env.namespace}/used is not copied",
            "of the worker could not be listed",
        )
        await case.reports("FailedCreatePod", CREATED, *words)
        await until(lambda: env.runs("other"))
        await case.rests()
        assert case.attempts("POST", "/pods") == 0, case.sent
        case.plan.heal()
        await case.runs()


@trial("an image name that is none")
async def invalid_image(case: Case) -> None:
    """API servers accept the image; a kubelet refuses it with the container status that is
    written here."""
    env, image = case.env, "Not/An:Image:Name"
    why = f'Failed to apply default image tag "{image}": couldn\'t parse image name'
    waiting = {"reason": "InvalidImageName", "message": why}
    slow = {"annotations": {"pod-run.stage.kwok.x-k8s.io/delay": "600s"}}
    async with case.syncing():
        pod = await env.run(containers=[container(image=image)], metadata=slow)
        ppod = (await until(lambda: env.ppods("web")))[0]
        await until(lambda: env.shows(phase="Pending"))
        await say_of_container(env, ppod, waiting)

        async def shown() -> bool:
            status = (await env.shows(phase="Pending")).content()["status"]
            states = [each["state"].get("waiting") for each in status.get("containerStatuses", ())]
            assert states == [waiting]
            unready = [c for c in status["conditions"] if c["type"] == "ContainersReady"]
            events = await env.told_of("web", "InspectFailed")
            named = any("[c]" in condition["message"] for condition in unready)
            return named and any(event.message == why for event in events)

        await until(shown)
        await case.rests()
        assert case.sent == [], "only the kubelet retries"
        good = StrategicPatch({"spec": {"containers": [{"name": "c", "image": "good:1"}]}})
        await env.computing_api.patch(PODS, pod.name, good, pod.namespace)

        async def mended() -> bool:
            current = (await env.ppod()).content()["spec"]["containers"][0]
            return bool(current["image"] == "good:1")

        await until(mended)


async def say_of_container(env: PodEnv, ppod: PhysicalPod, waiting: dict[str, str]) -> None:
    state: Json = {"name": "c", "image": "", "imageID": "", "ready": False, "restartCount": 0}
    unready = {"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady"}
    status = {
        "conditions": [unready | {"message": "containers with unready status: [c]"}],
        "containerStatuses": [state | {"state": {"waiting": waiting}}],
    }
    await env.patch_below(ppod, "status", status=status)
    about = {"kind": "Pod", "name": ppod.name, "namespace": ppod.namespace, "uid": ppod.uid}
    event = {"involvedObject": about, "type": "Warning", "reason": "InspectFailed"}
    await put(env.worker_api, EVENTS, "e0", env.mount, **event, message=waiting["message"])


@trial("an admission webhook that says no")
async def refusing_webhook(case: Case) -> None:
    env = case.env
    async with (
        guarding(env.worker_api, env.mount, directory=case.directory) as webhook,
        case.syncing(),
    ):
        webhook.refusal = "no pods on Mondays"
        await known(case, webhook, PODS)
        await env.run()
        words = (env.ppod_name(), "door.example.com", webhook.refusal)
        await case.reports("FailedCreatePod", CREATED, *words)
        before = webhook.requests
        await case.rests()
        assert webhook.requests - before <= MOST
        assert case.attempts("POST", "/pods") <= MOST, case.sent
        webhook.refusal = ""
        await case.runs()


@trial("an admission webhook that does not answer")
async def deaf_webhook(case: Case) -> None:
    env = case.env
    async with (
        guarding(env.worker_api, env.mount, directory=case.directory) as webhook,
        case.syncing(),
    ):
        webhook.deaf = True
        await known(case, webhook, PODS)
        await env.run()
        await case.reports("FailedCreatePod", CREATED, env.ppod_name(), "door.example.com")
        await case.rests()
        assert case.attempts("POST", "/pods") <= MOST, case.sent
        webhook.deaf = False
        await case.runs()


@trial("an admission webhook that takes no Secrets")
async def webhook_against_secrets(case: Case) -> None:
    env = case.env
    guard = guarding(env.worker_api, env.mount, resource="secrets", directory=case.directory)
    async with guard as webhook, case.syncing():
        webhook.deaf = True
        await known(case, webhook, SECRETS)
        await put(env.computing_api, SECRETS, "key", env.namespace)
        await env.run(containers=[container(envFrom=[{"secretRef": {"name": "key"}}])])
        words = (f"Secret {env.namespace}/key", "door.example.com")
        await case.reports("FailedCreatePod", CREATED, *words)
        await case.rests()
        assert case.attempts("POST", "/secrets") <= MOST, case.sent
        webhook.deaf = False
        await case.runs()


async def known(case: Case, webhook: Webhook, kind: Resource[Any]) -> None:
    """Wait until the server calls its new webhook."""
    body: Json = {"metadata": {"name": "probe", "namespace": case.env.mount}}
    if kind is PODS:
        body["spec"] = {"containers": [container()]}

    async def asks() -> bool:
        with suppress(ApiError):
            await case.env.worker_api.create(kind, body, dry_run=True)
        return webhook.requests > 0

    await until(asks)


@trial("a service account that is gone")
async def deleted_account(case: Case) -> None:
    env = case.env
    uid = await put(env.computing_api, SERVICE_ACCOUNTS, "robot", env.namespace)
    await env.run(serviceAccountName="robot", volumes=[TOKEN])
    await env.computing_api.delete(SERVICE_ACCOUNTS, "robot", env.namespace, uid=uid)
    words = (f"{env.namespace}/robot", "not found")
    async with case.syncing():
        await case.reports("FailedUpdatePod", SYNCED, *words)
        await case.rests()
        assert case.attempts("POST", "/token") <= MOST, case.sent
        uid = await put(env.computing_api, SERVICE_ACCOUNTS, "robot", env.namespace)
        await case.runs()
        (secret,) = (await env.worker_api.list(SECRETS, env.mount)).items

        # The account is deleted again: the pod's token cannot be renewed when it is due.
        await env.computing_api.delete(SERVICE_ACCOUNTS, "robot", env.namespace, uid=uid)
        due = MergePatch({"metadata": {"annotations": {DUE: "2026-01-01T00:00:00Z"}}})
        await env.worker_api.patch(SECRETS, secret.name, due, env.mount)
        await case.reports("FailedUpdatePod", SYNCED, *words)
        await put(env.computing_api, SERVICE_ACCOUNTS, "robot", env.namespace)
        await case.runs()


@trial("a status that the API server refuses")
async def refused_status(case: Case) -> None:
    env = case.env
    ended: Json = {"state": {"terminated": {"exitCode": 0}}, "name": "c", "image": "none"}
    ended |= {"imageID": "", "ready": False, "restartCount": 0}
    async with case.syncing():
        await env.run(restartPolicy="Never")
        pod = await until(env.runs)
        # A container that has ended does not run again, by the rules of the API server.
        await env.patch_above(pod, "status", status={"containerStatuses": [ended]})
        words = ("status.containerStatuses[0].state", "may not be transitioned")
        await case.reports("FailedUpdatePod", SYNCED, *words)
        await case.rests()
        assert case.attempts("PATCH", "/status") <= MOST, case.sent
        # The rest is shown.
        await env.patch_below(await env.ppod(), "status", status={"message": "still here"})

        async def shown() -> bool:
            live = await env.vpod()
            return live is not None and live.content()["status"].get("message") == "still here"

        await until(shown)
        done = {"phase": "Succeeded", "containerStatuses": [ended]}
        await env.patch_below(await env.ppod(), "status", status=done)
        await until(lambda: env.shows(phase="Succeeded"))


@trial("a resize that the worker does not serve")
async def unserved_resize(case: Case) -> None:
    env = case.env
    async with case.syncing():
        small = {"requests": {"cpu": "1m"}}
        pod = await env.run(containers=[container(resources=small)])
        await until(env.runs)
        # A server resizes only pods whose kubelet reports their resources.
        held = {"name": "c", "resources": small, "state": {"running": {}}, "ready": True}
        held |= {"image": "none", "imageID": "none", "restartCount": 0}
        await env.patch_below(await env.ppod(), "status", status={"containerStatuses": [held]})

        async def resizable() -> bool:
            live = await env.vpod()
            assert live is not None
            (shown,) = live.content()["status"]["containerStatuses"]
            return bool(shown.get("resources"))

        await until(resizable)
        # As Kubernetes 1.28 to 1.32 answer.
        unserved = {
            "kind": "Status",
            "message": "the server could not find the requested resource",
            "reason": "NotFound",
            "code": 404,
        }

        def of_worker(request: Request) -> bool:
            return request.path.endswith("/resize") and f"/{env.mount}/" in request.path

        case.plan.answer(404, times=1000, when=of_worker, page=encode(unserved))
        large = container(resources={"requests": {"cpu": "2m"}})
        body = StrategicPatch({"spec": {"containers": [large]}})
        await env.computing_api.patch(PODS, pod.name, body, pod.namespace, subresource="resize")
        words = (
            "could not find the requested resource",
            "does not support this change of a running pod",
        )
        await case.reports("FailedUpdatePod", SYNCED, *words)
        await case.rests()
        assert case.attempts("PATCH", "/resize") <= MOST, case.sent
        case.plan.heal()
        await case.runs()
        (spec,) = (await env.ppod()).content()["spec"]["containers"]
        assert spec["resources"]["requests"] == {"cpu": "2m"}
        await quiet(case.plan)


@trial("what the binding does not allow")
async def denied_privilege(case: Case) -> None:
    env = case.env
    await allow(env, hostNetwork="Deny")
    async with case.syncing():
        await env.run(hostNetwork=True)
        await case.reports("FailedCreatePod", CREATED, "spec.hostNetwork", "does not allow it")
        await case.rests()
        assert case.attempts("POST", "/pods") == 0, case.sent
        await allow(env, hostNetwork="Allow")
        await case.runs()


@trial("an ephemeral container that the binding does not allow")
async def denied_ephemeral_container(case: Case) -> None:
    env = case.env
    await allow(env, privileged="Deny")
    async with case.syncing():
        pod = await env.run()
        await until(env.runs)
        debug = container(securityContext={"privileged": True}) | {"name": "debug"}
        body = StrategicPatch({"spec": {"ephemeralContainers": [debug]}})
        await env.computing_api.patch(
            PODS, pod.name, body, pod.namespace, subresource="ephemeralcontainers"
        )
        words = ("spec.ephemeralContainers[0]", "does not allow it")
        await case.reports("FailedUpdatePod", SYNCED, *words)
        await case.rests()
        assert case.sent == []
        await allow(env, privileged="Allow")
        await case.runs()
        (added,) = (await env.ppod()).content()["spec"]["ephemeralContainers"]
        assert added["name"] == "debug"


@trial("a directory of the node behind a claim")
async def denied_volume(case: Case) -> None:
    env, volume = case.env, f"pv-{case.env.name}"
    await allow(env, hostPath="Deny")
    shared = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none"}
    spec = shared | {"capacity": {"storage": "1Mi"}, "hostPath": {"path": "/etc"}}
    await env.computing_api.create(VOLUMES, {"metadata": {"name": volume}, "spec": spec})
    wants = shared | {"volumeName": volume, "resources": {"requests": {"storage": "1Mi"}}}
    await put(env.computing_api, CLAIMS, "data", env.namespace, spec=wants)
    uses: Json = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    words = (f"PersistentVolume {volume}", "spec.hostPath", "does not allow it")
    async with case.syncing():
        await env.run(volumes=[uses])
        await case.reports("FailedCreatePod", CREATED, *words)
        await case.rests()
        assert not [line for line in case.sent if line.startswith("POST")], case.sent
        ours = f"{env.domain.cluster_binding}={env.name}"
        assert not (await env.worker_api.list(VOLUMES, labels=ours)).items
        await allow(env, hostPath="Allow")
        await case.runs()

        # A volume that was copied before is denied as well.
        await allow(env, hostPath="Deny")
        await env.run("second", volumes=[uses])
        (event, *_) = await until(lambda: env.told_of("second", "FailedCreatePod"))
        assert "spec.hostPath" in event.message
        assert not await env.ppods("second")
        await env.runs()


async def allow(env: PodEnv, **privileges: str) -> None:
    patch = MergePatch({"spec": {"podPrivileges": privileges}})
    await env.computing_api.patch(CLUSTER_BINDINGS, env.name, patch)


async def undergo(case: Case) -> None:
    try:
        await case.env.open()
        await TRIALS[case.name](case)
    except (AssertionError, ApiError) as error:
        case.error = error
    finally:
        case.reported.set()


async def watch(cases: list[Case]) -> None:
    """Count the requests of all cases, once each has reported its problem."""
    for case in cases:
        await case.reported.wait()
    before = [len(case.requests()) for case in cases]
    await asyncio.sleep(WATCHED_S)  # the test needs this time to pass
    for case, count in zip(cases, before, strict=True):
        case.sent = [line for line in case.requests()[count:] if "/events" not in line]
        case.watched.set()


@pytest.fixture(scope="module")
async def cases(
    cluster: Cluster,
    client: Client,
    worker: Cluster,
    simulated: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[dict[str, Case]]:
    """Run all cases, once."""
    await install_our_kinds(client)
    worker_api, directory = worker.client(), tmp_path_factory.mktemp("webhooks")
    base = PodEnv(cluster, worker, client, worker_api, pnodes=simulated)
    all_cases = [
        Case(name, replace(base.neighbour(), pnodes=simulated), directory) for name in TRIALS
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for case in all_cases:
                group.create_task(undergo(case))
            group.create_task(watch(all_cases))
        yield {case.name: case for case in all_cases}
    finally:
        await worker_api.close()


@pytest.mark.parametrize("name", TRIALS)
async def test_bad_input_is_reported_and_retried_ever_more_rarely_and_runs_when_it_can(
    cases: dict[str, Case], name: str
) -> None:
    if (error := cases[name].error) is not None:
        raise error
