"""Bad input: what cannot run is told, with the object and the reason, and runs when it can.

Each case has a binding of its own; all are on their way at a time, and are watched together for
some seconds, in which attempts have to become rare.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from admission import Webhook, guarding
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.errors import ApiError
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Faults, watches
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    Untyped,
)
from kubeocean.runtime.objects import Json, Resource
from kubeocean.runtime.patches import MergePatch, StrategicPatch
from kubeocean.syncer.podviews import PhysicalPod, VirtualPod
from kubeocean.syncer.topdown.pods import Pods
from ourkinds import install_our_kinds
from podseas import PodSea
from waiting import until

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
    """One thing that is wrong; `watched` is over when all of them were watched."""

    name: str
    sea: PodSea
    directory: Path
    plan: Faults = field(default_factory=Faults)
    told_of: asyncio.Event = field(default_factory=asyncio.Event)
    watched: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[str] = field(default_factory=list)  # meanwhile
    error: Exception | None = None

    async def told(self, event: str, condition: str, *words: str) -> None:
        """An event and a condition say which object and why."""

        async def says() -> bool:
            events = [each.message for each in await self.sea.told_of("web", event)]
            said = await self.condition(condition)
            return said != "" and all(w in said and any(w in e for e in events) for w in words)

        await until(says, what=f"{self.name} to be told of")

    async def rests(self) -> None:
        """The time in which attempts are counted."""
        self.told_of.set()
        await self.watched.wait()

    async def condition(self, kind: str) -> str:
        pod = await self.sea.vpod()
        assert pod is not None
        found = [c for c in pod.content()["status"].get("conditions", ()) if c["type"] == kind]
        assert all(c["status"] == "False" for c in found)
        return str(found[0]["message"]) if found else ""

    async def runs(self) -> VirtualPod:
        """It does, and nothing is wrong with it any more."""

        async def well() -> VirtualPod | None:
            said = [await self.condition(kind) for kind in (CREATED, SYNCED)]
            return await self.sea.runs() if said == ["", ""] else None

        pod = await until(well, what=f"{self.name} to run")
        assert pod is not None
        return pod

    def syncing(self) -> AbstractAsyncContextManager[Pods]:
        return self.sea.pods(above=self.plan, below=self.plan)

    def requests(self) -> list[str]:
        """All but watches, and whether the worker answers."""
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


async def quota(sea: PodSea, resource: str) -> Callable[[], Awaitable[None]]:
    """The worker lets no more of these in; what ends that. No controller counts there but us."""
    hard = {resource: "0"}
    uid = await put(sea.below, QUOTAS, "tight", sea.mount, spec={"hard": hard})
    status = MergePatch({"status": {"hard": hard, "used": hard}})
    await sea.below.patch(QUOTAS, "tight", status, sea.mount, subresource="status")
    return lambda: sea.below.delete(QUOTAS, "tight", sea.mount, uid=uid)


@trial("a Secret over the worker's quota")
async def secret_over_quota(case: Case) -> None:
    sea = case.sea
    lift = await quota(sea, "secrets")
    await put(sea.above, SECRETS, "key", sea.namespace)
    async with case.syncing():
        await sea.run(containers=[container(envFrom=[{"secretRef": {"name": "key"}}])])
        await case.told("FailedCreatePod", CREATED, f"Secret {sea.namespace}/key", "exceeded quota")
        await case.rests()
        assert case.attempts("POST", "/secrets") <= MOST, case.sent
        assert case.attempts("POST", "/pods") == 0, case.sent
        await lift()
        await case.runs()


@trial("a pod over the worker's quota")
async def pod_over_quota(case: Case) -> None:
    lift = await quota(case.sea, "pods")
    async with case.syncing():
        await case.sea.run()
        await case.told("FailedCreatePod", CREATED, case.sea.ppod_name(), "exceeded quota")
        await case.rests()
        assert case.attempts("POST", "/pods") <= MOST, case.sent
        await lift()
        await case.runs()


@trial("a pod that is not safe enough for the worker")
async def unsafe_pod(case: Case) -> None:
    sea, level = case.sea, "pod-security.kubernetes.io/enforce"

    async def demand(value: str | None) -> None:
        patch = MergePatch({"metadata": {"labels": {level: value}}})
        await sea.below.patch(NAMESPACES, sea.mount, patch)

    await demand("restricted")
    async with case.syncing():
        await sea.run()
        await case.told("FailedCreatePod", CREATED, sea.ppod_name(), "PodSecurity")
        await case.rests()
        assert case.attempts("POST", "/pods") <= MOST, case.sent
        await demand(None)
        await case.runs()


@trial("a token over the worker's quota")
async def token_over_quota(case: Case) -> None:
    sea = case.sea
    lift = await quota(sea, "secrets")
    async with case.syncing():
        await sea.run(volumes=[TOKEN])
        await case.told("FailedUpdatePod", SYNCED, f"secrets {sea.mount}/", "exceeded quota")
        await case.rests()
        assert case.attempts("POST", "/secrets") <= MOST, case.sent
        await lift()
        await case.runs()
        assert (await sea.below.list(SECRETS, sea.mount)).items


@trial("a ConfigMap that does not exist")
async def missing_config_map(case: Case) -> None:
    sea = case.sea
    async with case.syncing():
        await sea.run(containers=[container(envFrom=[{"configMapRef": {"name": "late"}}])])
        missing = f"ConfigMap {sea.namespace}/late does not exist"
        await case.told("FailedCreatePod", CREATED, missing)
        await case.rests()
        assert case.attempts("GET", "/late") <= 1, case.sent
        assert case.attempts("POST", "/pods") == 0, case.sent
        await put(sea.above, CONFIG_MAPS, "late", sea.namespace)
        await case.runs()


@trial("an image name that is none")
async def invalid_image(case: Case) -> None:
    """Servers take it. A kubelet does not, and says so of the container; this is what it says."""
    sea, image = case.sea, "Not/An:Image:Name"
    why = f'Failed to apply default image tag "{image}": couldn\'t parse image name'
    waiting = {"reason": "InvalidImageName", "message": why}
    slow = {"annotations": {"pod-run.stage.kwok.x-k8s.io/delay": "600s"}}
    async with case.syncing():
        pod = await sea.run(containers=[container(image=image)], metadata=slow)
        ppod = (await until(lambda: sea.ppods("web")))[0]
        await until(lambda: sea.shows(phase="Pending"))
        await say_of_container(sea, ppod, waiting)

        async def shown() -> bool:
            said = (await sea.shows(phase="Pending")).content()["status"]
            states = [each["state"].get("waiting") for each in said.get("containerStatuses", ())]
            assert states == [waiting]
            unready = [c for c in said["conditions"] if c["type"] == "ContainersReady"]
            events = await sea.told_of("web", "InspectFailed")
            named = any("[c]" in condition["message"] for condition in unready)
            return named and any(event.message == why for event in events)

        await until(shown)
        await case.rests()
        assert case.sent == [], "the kubelet tries, and nobody else"
        good = StrategicPatch({"spec": {"containers": [{"name": "c", "image": "good:1"}]}})
        await sea.above.patch(PODS, pod.name, good, pod.namespace)

        async def mended() -> bool:
            found = (await sea.ppod()).content()["spec"]["containers"][0]
            return bool(found["image"] == "good:1")

        await until(mended)


async def say_of_container(sea: PodSea, ppod: PhysicalPod, waiting: dict[str, str]) -> None:
    state: Json = {"name": "c", "image": "", "imageID": "", "ready": False, "restartCount": 0}
    unready = {"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady"}
    status = {
        "conditions": [unready | {"message": "containers with unready status: [c]"}],
        "containerStatuses": [state | {"state": {"waiting": waiting}}],
    }
    await sea.patch_below(ppod, "status", status=status)
    about = {"kind": "Pod", "name": ppod.name, "namespace": ppod.namespace, "uid": ppod.uid}
    said = {"involvedObject": about, "type": "Warning", "reason": "InspectFailed"}
    await put(sea.below, EVENTS, "e0", sea.mount, **said, message=waiting["message"])


@trial("an admission webhook that says no")
async def refusing_webhook(case: Case) -> None:
    sea = case.sea
    async with guarding(sea.below, sea.mount, directory=case.directory) as webhook, case.syncing():
        webhook.refusal = "no guests on Mondays"
        await known(case, webhook, PODS)
        await sea.run()
        words = (sea.ppod_name(), "door.example.com", webhook.refusal)
        await case.told("FailedCreatePod", CREATED, *words)
        before = webhook.asked
        await case.rests()
        assert webhook.asked - before <= MOST
        assert case.attempts("POST", "/pods") <= MOST, case.sent
        webhook.refusal = ""
        await case.runs()


@trial("an admission webhook that does not answer")
async def deaf_webhook(case: Case) -> None:
    sea = case.sea
    async with guarding(sea.below, sea.mount, directory=case.directory) as webhook, case.syncing():
        webhook.deaf = True
        await known(case, webhook, PODS)
        await sea.run()
        await case.told("FailedCreatePod", CREATED, sea.ppod_name(), "door.example.com")
        await case.rests()
        assert case.attempts("POST", "/pods") <= MOST, case.sent
        webhook.deaf = False
        await case.runs()


@trial("an admission webhook that takes no Secrets")
async def webhook_against_secrets(case: Case) -> None:
    sea = case.sea
    guard = guarding(sea.below, sea.mount, resource="secrets", directory=case.directory)
    async with guard as webhook, case.syncing():
        webhook.deaf = True
        await known(case, webhook, SECRETS)
        await put(sea.above, SECRETS, "key", sea.namespace)
        await sea.run(containers=[container(envFrom=[{"secretRef": {"name": "key"}}])])
        words = (f"Secret {sea.namespace}/key", "door.example.com")
        await case.told("FailedCreatePod", CREATED, *words)
        await case.rests()
        assert case.attempts("POST", "/secrets") <= MOST, case.sent
        webhook.deaf = False
        await case.runs()


async def known(case: Case, webhook: Webhook, kind: Resource[Any]) -> None:
    """A server takes a moment to know its webhooks."""
    body: Json = {"metadata": {"name": "probe", "namespace": case.sea.mount}}
    if kind is PODS:
        body["spec"] = {"containers": [container()]}

    async def asks() -> bool:
        with suppress(ApiError):
            await case.sea.below.create(kind, body, dry_run=True)
        return webhook.asked > 0

    await until(asks)


@trial("a service account that is gone")
async def deleted_account(case: Case) -> None:
    sea = case.sea
    uid = await put(sea.above, SERVICE_ACCOUNTS, "robot", sea.namespace)
    await sea.run(serviceAccountName="robot", volumes=[TOKEN])
    await sea.above.delete(SERVICE_ACCOUNTS, "robot", sea.namespace, uid=uid)
    words = (f"{sea.namespace}/robot", "not found")
    async with case.syncing():
        await case.told("FailedUpdatePod", SYNCED, *words)
        await case.rests()
        assert case.attempts("POST", "/token") <= MOST, case.sent
        uid = await put(sea.above, SERVICE_ACCOUNTS, "robot", sea.namespace)
        await case.runs()
        (secret,) = (await sea.below.list(SECRETS, sea.mount)).items

        # Gone again: the token that the pod has cannot be renewed when that is due.
        await sea.above.delete(SERVICE_ACCOUNTS, "robot", sea.namespace, uid=uid)
        due = MergePatch({"metadata": {"annotations": {DUE: "2026-01-01T00:00:00Z"}}})
        await sea.below.patch(SECRETS, secret.name, due, sea.mount)
        await case.told("FailedUpdatePod", SYNCED, *words)
        await put(sea.above, SERVICE_ACCOUNTS, "robot", sea.namespace)
        await case.runs()


@trial("what the binding does not allow")
async def denied_privilege(case: Case) -> None:
    sea = case.sea
    await allow(sea, hostNetwork="Deny")
    async with case.syncing():
        await sea.run(hostNetwork=True)
        await case.told("FailedCreatePod", CREATED, "spec.hostNetwork", "does not allow it")
        await case.rests()
        assert case.attempts("POST", "/pods") == 0, case.sent
        await allow(sea, hostNetwork="Allow")
        await case.runs()


@trial("a directory of the node behind a claim")
async def denied_volume(case: Case) -> None:
    sea, volume = case.sea, f"pv-{case.sea.name}"
    await allow(sea, hostPath="Deny")
    shared = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none"}
    spec = shared | {"capacity": {"storage": "1Mi"}, "hostPath": {"path": "/etc"}}
    await sea.above.create(VOLUMES, {"metadata": {"name": volume}, "spec": spec})
    wants = shared | {"volumeName": volume, "resources": {"requests": {"storage": "1Mi"}}}
    await put(sea.above, CLAIMS, "data", sea.namespace, spec=wants)
    uses: Json = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    words = (f"PersistentVolume {volume}", "spec.hostPath", "does not allow it")
    async with case.syncing():
        await sea.run(volumes=[uses])
        await case.told("FailedCreatePod", CREATED, *words)
        await case.rests()
        assert not [line for line in case.sent if line.startswith("POST")], case.sent
        ours = f"{sea.domain.cluster_binding}={sea.name}"
        assert not (await sea.below.list(VOLUMES, labels=ours)).items
        await allow(sea, hostPath="Allow")
        await case.runs()

        # That it was copied once is no way around it.
        await allow(sea, hostPath="Deny")
        await sea.run("second", volumes=[uses])
        (event, *_) = await until(lambda: sea.told_of("second", "FailedCreatePod"))
        assert "spec.hostPath" in event.message
        assert not await sea.ppods("second")
        await sea.runs()


async def allow(sea: PodSea, **privileges: str) -> None:
    patch = MergePatch({"spec": {"podPrivileges": privileges}})
    await sea.above.patch(CLUSTER_BINDINGS, sea.name, patch)


async def undergo(case: Case) -> None:
    try:
        await case.sea.open()
        await TRIALS[case.name](case)
    except (AssertionError, ApiError) as error:
        case.error = error
    finally:
        case.told_of.set()


async def watch(cases: list[Case]) -> None:
    """All at a time, once everybody was told."""
    for case in cases:
        await case.told_of.wait()
    before = [len(case.requests()) for case in cases]
    await asyncio.sleep(WATCHED_S)  # the passing of time is what is tested
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
    """All of it, once."""
    await install_our_kinds(client)
    below, directory = worker.client(), tmp_path_factory.mktemp("webhooks")
    base = PodSea(cluster, worker, client, below, pnodes=simulated)
    made = [Case(name, replace(base.neighbour(), pnodes=simulated), directory) for name in TRIALS]
    try:
        async with asyncio.TaskGroup() as group:
            for case in made:
                group.create_task(undergo(case))
            group.create_task(watch(made))
        yield {case.name: case for case in made}
    finally:
        await below.close()


@pytest.mark.parametrize("name", TRIALS)
async def test_bad_input_is_told_and_tried_ever_more_rarely_and_runs_when_it_can(
    cases: dict[str, Case], name: str
) -> None:
    if (error := cases[name].error) is not None:
        raise error
