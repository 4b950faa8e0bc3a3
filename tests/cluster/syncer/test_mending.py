"""What people take away from our objects, or put in their way, is mended or got along with."""

from __future__ import annotations

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids
from kubeocean.bound.identities import identity_of
from kubeocean.local.faults import Faults
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.objects import Json, Untyped
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.inventory import Inventory
from kubeocean.syncer.podviews import VIRTUAL_PODS
from podseas import PodSea
from waiting import until

TOKEN: Json = {"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}
TOKENS: list[Json] = [{"name": "t", "projected": {"sources": [TOKEN]}}]
IS_TOKEN = "kubeocean.io/service-account-token"


@pytest.mark.parametrize("labels", [("managed-by",), ("cluster-binding",), ()])
async def test_a_pod_without_labels_runs_on(podsea: PodSea, labels: tuple[str, ...]) -> None:
    async with podsea.pods():
        await podsea.run("web", grace_s=1)
        vpod = await until(podsea.runs)
        ppod = await podsea.ppod()
        keys = [f"kubeocean.io/{label}" for label in labels] or list(ppod.labels)
        await podsea.patch_below(ppod, metadata={"labels": dict.fromkeys(keys)})

        async def mended() -> bool:
            now = await podsea.ppod()
            assert now.uid == ppod.uid
            return ppod.labels.items() <= now.labels.items()

        await until(mended)
        assert (await podsea.runs()).uid == vpod.uid
        await podsea.patch_below(ppod, metadata={"labels": dict.fromkeys(keys)})
        await podsea.delete(vpod, 1)
        await until(podsea.gone)


async def test_a_pod_without_labels_does_not_outlive_its_virtual_pod(podsea: PodSea) -> None:
    below = Faults()
    async with podsea.pods(below=below):
        await podsea.run("web", grace_s=1)
        vpod = await until(podsea.runs)
        # Nobody is quick enough to mend it.
        below.answer(403, times=10_000, when=lambda request: request.method == "PATCH")
        ppod, label = await podsea.ppod(), "kubeocean.io/managed-by"
        await podsea.patch_below(ppod, metadata={"labels": {label: None}})

        async def tried() -> bool:
            return any(request.method == "PATCH" for request in below.requests)

        await until(tried)
        await podsea.delete(vpod, 1)

        async def ends() -> bool:
            there = [pod for pod in await podsea.ppods() if not pod.deleting]
            assert not there or await podsea.vpod() is not None
            return not there

        await until(ends)
        await until(podsea.gone)


@pytest.mark.parametrize(
    "keys", [("virtual-pod-name",), ("virtual-pod-namespace",), ("virtual-pod-uid",), ()]
)
async def test_a_pod_that_lost_whose_it_is_runs_on(podsea: PodSea, keys: tuple[str, ...]) -> None:
    async with podsea.pods():
        await podsea.run("web", grace_s=1, metadata={"annotations": {"users": "own"}})
        vpod = await until(podsea.runs)
        ppod = await podsea.ppod()
        stripped = dict.fromkeys([f"kubeocean.io/{key}" for key in keys] or ppod.annotations)

        async def mended() -> bool:
            (now,) = await podsea.ppods()
            assert now.uid == ppod.uid
            return ppod.annotations.items() <= now.annotations.items()

        async def shown() -> bool:
            return (await podsea.runs()).content()["status"].get("message") == "hello"

        await podsea.patch_below(ppod, metadata={"annotations": stripped})
        await podsea.patch_below(ppod, "status", status={"message": "hello"})
        await until(mended)
        await until(shown)
        assert (await podsea.runs()).uid == vpod.uid
        await podsea.patch_below(ppod, metadata={"annotations": stripped})
        await podsea.delete(vpod, 1)
        await until(podsea.gone)


async def test_a_token_without_labels_is_written_anew(podsea: PodSea) -> None:
    async with podsea.pods():
        await podsea.run("web", grace_s=1, volumes=TOKENS)
        vpod = await until(podsea.runs)
        for part in ("labels", "annotations", ""):

            async def tokens() -> list[Untyped]:
                found = (await podsea.below.list(SECRETS, podsea.mount)).items
                return [each for each in found if IS_TOKEN in each.labels]

            (token,) = await until(tokens)
            parts = (part,) if part else ("labels", "annotations")
            body = MergePatch({"metadata": dict.fromkeys(parts)})
            await podsea.below.patch(SECRETS, token.name, body, podsea.mount)

            async def mended(before: Untyped = token) -> bool:
                now = await podsea.below.get(SECRETS, before.name, podsea.mount)
                assert now.uid == before.uid
                said = now.annotations.get("kubeocean.io/virtual-pod-uid")
                return before.labels.items() <= now.labels.items() and said == vpod.uid

            await until(mended)
        assert (await podsea.runs()).uid == vpod.uid


async def test_a_worker_whose_id_begins_like_ours_uses_nothing_of_ours(podsea: PodSea) -> None:
    class Longer(PodSea):
        @property
        def cluster_id(self) -> str:
            return f"{podsea.cluster_id}-b"

    other = Longer(
        podsea.computing,
        podsea.worker,
        podsea.above,
        podsea.below,
        name=f"{podsea.name}b",
        pnodes=podsea.pnodes,
    )
    await other.open()
    secret = {"metadata": {"name": "s"}, "data": {"k": "eA=="}}
    await podsea.above.create(SECRETS, secret, namespace=podsea.namespace)
    uses: Json = {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}
    async with podsea.pods(), other.pods():
        ours = await podsea.run("a", grace_s=1, **uses)
        theirs = other.body("b", **uses)
        theirs["metadata"]["namespace"] = podsea.namespace
        await podsea.above.create(VIRTUAL_PODS, theirs)
        await until(lambda: podsea.runs("a"))
        await until(lambda: other.ppods("b"))
        ids = Ids(podsea.name, podsea.cluster_id, await identity_of(podsea.above))
        inventory = Inventory(
            podsea.above, podsea.below, ids=ids, mount_namespace=podsea.mount, domain=DEFAULT
        )
        assert set((await inventory.look()).pods) == {ours.key}
        await podsea.delete(ours, 1)

        async def copied(sea: PodSea) -> bool:
            return bool((await sea.below.list(SECRETS, sea.mount)).items)

        async def gone() -> bool:
            return not await copied(podsea)

        await until(gone)
        assert await copied(other)


async def test_a_status_is_shown_where_annotations_have_no_room(podsea: PodSea) -> None:
    async with podsea.pods():
        large = {"annotations": {"large": "x" * (256 * 1024 - 6000)}}
        await podsea.run("web", metadata=large)
        await until(podsea.runs)
        ppod = await podsea.ppod()
        await podsea.patch_below(ppod, metadata={"annotations": {"cni.example/status": "y" * 3000}})
        for message in ("one", "two"):
            await podsea.patch_below(ppod, "status", status={"message": message})

            async def shown(said: str = message) -> bool:
                return (await podsea.shows()).content()["status"].get("message") == said

            await until(shown)
        events = await until(lambda: podsea.told_of("web", "FailedUpdatePod"))
        assert "annotations" in events[0].message
