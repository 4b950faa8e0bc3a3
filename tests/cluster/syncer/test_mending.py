"""Objects that lost their labels or annotations are restored, and pods keep running meanwhile."""

from __future__ import annotations

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.objects import Json, Untyped
from kubeocean.syncer.cleanup.snapshot import ClusterSnapshot
from kubeocean.syncer.pods.views import VIRTUAL_PODS
from kubeocean.worker_access.identity import identity_of
from support.faults import Faults
from support.pod_env import PodEnv
from support.wait import until

TOKEN: Json = {"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}
TOKENS: list[Json] = [{"name": "t", "projected": {"sources": [TOKEN]}}]
IS_TOKEN = "kubeocean.io/service-account-token"


@pytest.mark.parametrize("labels", [("managed-by",), ("cluster-binding",), ()])
async def test_a_physical_pod_without_its_labels_keeps_running(
    pod_env: PodEnv, labels: tuple[str, ...]
) -> None:
    async with pod_env.pods():
        await pod_env.run("web", grace_s=1)
        vpod = await until(pod_env.runs)
        ppod = await pod_env.ppod()
        keys = [f"kubeocean.io/{label}" for label in labels] or list(ppod.labels)
        await pod_env.patch_below(ppod, metadata={"labels": dict.fromkeys(keys)})

        async def restored() -> bool:
            now = await pod_env.ppod()
            assert now.uid == ppod.uid
            return ppod.labels.items() <= now.labels.items()

        await until(restored)
        assert (await pod_env.runs()).uid == vpod.uid
        await pod_env.patch_below(ppod, metadata={"labels": dict.fromkeys(keys)})
        await pod_env.delete(vpod, 1)
        await until(pod_env.gone)


async def test_a_physical_pod_without_its_labels_does_not_outlive_its_virtual_pod(
    pod_env: PodEnv,
) -> None:
    worker_api = Faults()
    async with pod_env.pods(worker_api=worker_api) as pods:
        await pod_env.run("web", grace_s=1)
        vpod = await until(pod_env.runs)
        # The syncer cannot restore the label.
        worker_api.answer(403, times=10_000, when=lambda request: request.method == "PATCH")
        ppod, label = await pod_env.ppod(), "kubeocean.io/managed-by"
        await pod_env.patch_below(ppod, metadata={"labels": {label: None}})

        async def tried() -> bool:
            return any(request.method == "PATCH" for request in worker_api.requests)

        await until(tried)
        await pod_env.delete(vpod, 1)

        async def ends() -> bool:
            living = [pod for pod in await pod_env.ppods() if not pod.deleting]
            assert not living or await pod_env.vpod() is not None
            return not living

        await until(ends)
        await until(pod_env.gone)
        # No cache has shown the physical pod since it lost the label.
        await until(lambda: len(pods.records) == 0)


@pytest.mark.parametrize(
    "keys", [("virtual-pod-name",), ("virtual-pod-namespace",), ("virtual-pod-uid",), ()]
)
async def test_a_physical_pod_that_lost_its_annotations_keeps_running(
    pod_env: PodEnv, keys: tuple[str, ...]
) -> None:
    async with pod_env.pods():
        await pod_env.run("web", grace_s=1, metadata={"annotations": {"users": "own"}})
        vpod = await until(pod_env.runs)
        ppod = await pod_env.ppod()
        stripped = dict.fromkeys([f"kubeocean.io/{key}" for key in keys] or ppod.annotations)

        async def restored() -> bool:
            (now,) = await pod_env.ppods()
            assert now.uid == ppod.uid
            return ppod.annotations.items() <= now.annotations.items()

        async def shown() -> bool:
            return (await pod_env.runs()).content()["status"].get("message") == "hello"

        await pod_env.patch_below(ppod, metadata={"annotations": stripped})
        await pod_env.patch_below(ppod, "status", status={"message": "hello"})
        await until(restored)
        await until(shown)
        assert (await pod_env.runs()).uid == vpod.uid
        await pod_env.patch_below(ppod, metadata={"annotations": stripped})
        await pod_env.delete(vpod, 1)
        await until(pod_env.gone)


async def test_a_token_without_labels_is_written_anew(pod_env: PodEnv) -> None:
    async with pod_env.pods():
        await pod_env.run("web", grace_s=1, volumes=TOKENS)
        vpod = await until(pod_env.runs)
        for part in ("labels", "annotations", ""):

            async def tokens() -> list[Untyped]:
                stored = (await pod_env.worker_api.list(SECRETS, pod_env.mount)).items
                return [each for each in stored if IS_TOKEN in each.labels]

            (token,) = await until(tokens)
            parts = (part,) if part else ("labels", "annotations")
            body = MergePatch({"metadata": dict.fromkeys(parts)})
            await pod_env.worker_api.patch(SECRETS, token.name, body, pod_env.mount)

            async def restored(before: Untyped = token) -> bool:
                now = await pod_env.worker_api.get(SECRETS, before.name, pod_env.mount)
                assert now.uid == before.uid
                uid = now.annotations.get("kubeocean.io/virtual-pod-uid")
                return before.labels.items() <= now.labels.items() and uid == vpod.uid

            await until(restored)
        assert (await pod_env.runs()).uid == vpod.uid


async def test_a_worker_with_a_cluster_id_that_begins_like_ours_uses_nothing_of_ours(
    pod_env: PodEnv,
) -> None:
    class Longer(PodEnv):
        @property
        def cluster_id(self) -> str:
            return f"{pod_env.cluster_id}-b"

    other = Longer(
        pod_env.computing,
        pod_env.worker,
        pod_env.computing_api,
        pod_env.worker_api,
        name=f"{pod_env.name}b",
        pnodes=pod_env.pnodes,
    )
    await other.open()
    secret = {"metadata": {"name": "s"}, "data": {"k": "eA=="}}
    await pod_env.computing_api.create(SECRETS, secret, namespace=pod_env.namespace)
    uses: Json = {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}
    async with pod_env.pods(), other.pods():
        ours = await pod_env.run("a", grace_s=1, **uses)
        theirs = other.body("b", **uses)
        theirs["metadata"]["namespace"] = pod_env.namespace
        await pod_env.computing_api.create(VIRTUAL_PODS, theirs)
        await until(lambda: pod_env.runs("a"))
        await until(lambda: other.ppods("b"))
        ids = Ids(pod_env.name, pod_env.cluster_id, await identity_of(pod_env.computing_api))
        inventory = ClusterSnapshot(
            pod_env.computing_api,
            pod_env.worker_api,
            ids=ids,
            mount_namespace=pod_env.mount,
            domain=DEFAULT,
        )
        assert set((await inventory.look()).pods) == {ours.key}
        await pod_env.delete(ours, 1)

        async def copied(binding_env: PodEnv) -> bool:
            return bool((await binding_env.worker_api.list(SECRETS, binding_env.mount)).items)

        async def gone() -> bool:
            return not await copied(pod_env)

        await until(gone)
        assert await copied(other)


async def test_a_status_is_written_when_annotations_are_too_large(pod_env: PodEnv) -> None:
    async with pod_env.pods():
        large = {"annotations": {"large": "x" * (256 * 1024 - 6000)}}
        await pod_env.run("web", metadata=large)
        await until(pod_env.runs)
        ppod = await pod_env.ppod()
        await pod_env.patch_below(
            ppod, metadata={"annotations": {"cni.example/status": "y" * 3000}}
        )
        for message in ("one", "two"):
            await pod_env.patch_below(ppod, "status", status={"message": message})

            async def shown(expected: str = message) -> bool:
                return (await pod_env.shows()).content()["status"].get("message") == expected

            await until(shown)
        events = await until(lambda: pod_env.told_of("web", "FailedUpdatePod"))
        assert "annotations" in events[0].message
