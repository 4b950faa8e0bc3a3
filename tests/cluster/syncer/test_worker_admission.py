"""A mutating webhook of the worker that adds a container to each pod and rewrites its images."""

from __future__ import annotations

from pathlib import Path

from kubeocean.errors import ApiError
from kubeocean.runtime.client import StrategicPatch
from kubeocean.runtime.kinds import PODS
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.views import PHYSICAL_PODS
from support.admission_webhook import Webhook, guarding
from support.faults import Faults
from support.pod_env import PodEnv, settled, writes
from support.wait import until

MIRROR = "mirror.example.com"
SIDECAR = {"name": "sidecar", "image": f"{MIRROR}/sidecar"}
CHANGES: list[Json] = [
    {"op": "replace", "path": "/spec/containers/0/image", "value": f"{MIRROR}/one"},
    {"op": "replace", "path": "/spec/containers/1/image", "value": f"{MIRROR}/two"},
    {"op": "add", "path": "/spec/containers/-", "value": SIDECAR},
]


async def is_served(env: PodEnv, webhook: Webhook) -> bool:
    """Whether the worker's API server calls the webhook yet."""
    two = [{"name": name, "image": "i"} for name in ("a", "b")]
    probe: Json = {"metadata": {"name": "probe"}, "spec": {"containers": two}}
    try:
        await env.worker_api.create(PODS, probe, namespace=env.mount, dry_run=True)
    except ApiError:
        return False
    return webhook.requests > 0


async def images(env: PodEnv) -> dict[str, str]:
    spec = (await env.ppod()).content()["spec"]
    return {each["name"]: each["image"] for each in spec["containers"]}


def status_of(name: str, *, restarts: int = 0) -> Json:
    started = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    return {
        "name": name,
        "image": f"{MIRROR}/{name}",
        "imageID": "id",
        "ready": True,
        "restartCount": restarts,
        "state": started,
    }


async def test_injected_containers_and_rewritten_images_stay_and_freeze_no_status(
    pod_env: PodEnv, tmp_path: Path
) -> None:
    env, plan = pod_env, Faults()
    guard = guarding(env.worker_api, env.mount, directory=tmp_path, mutating=True)
    async with guard as webhook, env.pods(computing_api=plan, worker_api=plan):
        webhook.changes = CHANGES
        await until(lambda: is_served(env, webhook))
        containers = [{"name": name, "image": name} for name in ("one", "two")]
        vpod = await env.run(containers=containers)
        await until(env.runs)
        rewritten = {"one": f"{MIRROR}/one", "two": f"{MIRROR}/two", "sidecar": SIDECAR["image"]}
        assert await images(env) == rewritten
        await settled(plan)

        # The injected container restarts, and one of the pod's own does after it.
        statuses = [
            status_of("one", restarts=3),
            status_of("two"),
            status_of("sidecar", restarts=7),
        ]
        await env.patch_below(await env.ppod(), "status", status={"containerStatuses": statuses})

        async def shown() -> bool:
            pod = await env.shows()
            states = pod.content()["status"]["containerStatuses"]
            return {each["name"]: each["restartCount"] for each in states} == {"one": 3, "two": 0}

        await until(shown)
        await settled(plan)

        # Another image for one container; the image of the other stays the worker's.
        body = StrategicPatch({"spec": {"containers": [{"name": "one", "image": "newer"}]}})
        await env.computing_api.patch(PODS, vpod.name, body, vpod.namespace)
        expected = rewritten | {"one": "newer"}

        async def changed() -> bool:
            return await images(env) == expected

        await until(changed)
        await settled(plan)
        before = len(writes(plan))
        (ppod,) = (await env.worker_api.list(PHYSICAL_PODS, env.mount)).items
        assert not ppod.deleting
        await settled(plan)
        assert writes(plan)[before:] == []
        assert await images(env) == expected
