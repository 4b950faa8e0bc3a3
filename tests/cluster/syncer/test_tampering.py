"""What tenants and administrators may write does not get them out of the rules."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from kubeocean.errors import NotFound
from kubeocean.runtime.kinds import NODES, PODS
from kubeocean.runtime.objects import Json
from kubeocean.runtime.patches import MergePatch
from oceans import Sea
from waiting import until

MARK = "kubeocean.io/policy-applied"


def closed() -> list[Json]:
    """Windows in which nothing is lent for hours."""
    start = datetime.now(UTC) + timedelta(hours=6)
    return [{"start": f"{start:%H:%M}", "end": f"{start + timedelta(minutes=1):%H:%M}"}]


async def label(sea: Sea, pod: str, namespace: str, **labels: str) -> None:
    patch = MergePatch({"metadata": {"labels": labels}})
    await sea.above.patch(PODS, pod, patch, namespace)


async def test_no_label_keeps_a_pod_from_being_evicted(sea: Sea, namespace: str) -> None:
    await sea.bind()
    policy = await sea.lend(forceReclaim=True, forceReclaimDeadlineSeconds=1)
    await sea.add_node("n")
    async with sea.syncing():
        vnode = (await until(sea.vnodes))[0]
        sly = await sea.guest(namespace, f"{sea.name}-sly", vnode.name)
        await label(sea, sly.name, namespace, **{"kubeocean.io/hostport-fake-pod": "true"})
        await sea.patch_policy(policy, timeWindows=closed())
        await until(lambda: sea.is_gone(sly))


async def test_a_policy_may_have_a_name_that_no_label_can_hold(sea: Sea, namespace: str) -> None:
    await sea.bind()
    policy = await sea.lend("-".join((sea.name, "x" * 70)), forceReclaim=True)
    await sea.add_node("n")
    async with sea.syncing():
        vnode = (await until(sea.vnodes))[0]

        async def marked() -> str | None:
            return (await sea.below.get(NODES, f"{sea.name}-n")).labels.get(MARK)

        assert len(await until(marked) or "") <= 63
        guest = await sea.guest(namespace, f"{sea.name}-guest", vnode.name)
        await sea.patch_policy(policy, timeWindows=closed())
        await until(lambda: sea.is_gone(guest))
        await sea.unbind()
        await until(sea.is_unbound)
        assert await marked() is None


async def test_a_label_that_was_forged_ends_nothing(sea: Sea, namespace: str) -> None:
    await sea.bind()
    await sea.lend()
    pnode = await sea.add_node("n")
    async with sea.syncing():
        vnode = (await until(sea.vnodes))[0]
        guest = await sea.guest(namespace, f"{sea.name}-guest", vnode.name)
        for forged in ("nobody", None):
            labels = {"kubeocean.io/physical-node-uid": forged}
            await sea.above.patch(NODES, vnode.name, MergePatch({"metadata": {"labels": labels}}))

            async def mended() -> bool:
                now = (await sea.vnodes())[0]
                return now.labels.get("kubeocean.io/physical-node-uid") == pnode.uid

            await until(mended)
        assert (await sea.vnodes())[0].uid == vnode.uid
        assert not await sea.is_gone(guest)


async def test_nonsense_in_what_we_remember_is_as_good_as_nothing(sea: Sea) -> None:
    await sea.bind()
    policy = await sea.lend()
    await sea.add_node("n")
    async with sea.syncing():
        vnode = (await until(sea.vnodes))[0]
        said = {"kubeocean.io/expected-metadata": "é"}
        await sea.above.patch(NODES, vnode.name, MergePatch({"metadata": {"annotations": said}}))
        await sea.patch_policy(policy, timeWindows=closed())

        async def tainted() -> bool:
            taints = (await sea.vnodes())[0].spec.taints or ()
            return "kubeocean.io/out-of-time-windows" in [taint.key for taint in taints]

        await until(tainted)


async def test_a_node_that_lost_what_it_is_found_by_is_mended(sea: Sea, namespace: str) -> None:
    await sea.bind()
    await sea.lend()
    await sea.add_node("n")
    keys = ("kubeocean.io/managed-by", "kubeocean.io/cluster-binding")
    async with sea.syncing():
        vnode = (await until(sea.vnodes))[0]
        guest = await sea.guest(namespace, f"{sea.name}-guest", vnode.name)

        async def mended() -> bool:
            now = await sea.above.get(NODES, vnode.name)
            assert now.uid == vnode.uid
            return all(now.labels.get(key) == vnode.labels[key] for key in keys)

        for key in keys:
            for value in (None, "somebody"):
                labels = MergePatch({"metadata": {"labels": {key: value}}})
                await sea.above.patch(NODES, vnode.name, labels)
                await until(mended)
        assert not await sea.is_gone(guest)
    # The same, while nobody looks.
    stripped = MergePatch({"metadata": {"labels": dict.fromkeys(keys)}})
    await sea.above.patch(NODES, vnode.name, stripped)
    async with sea.syncing():
        await until(mended)
        assert not await sea.is_gone(guest)
        # And while the binding goes.
        await sea.unbind()
        with suppress(NotFound):
            await sea.above.patch(NODES, vnode.name, stripped)
        await until(sea.is_unbound)

        async def gone() -> bool:
            try:
                await sea.above.get(NODES, vnode.name)
            except NotFound:
                return True
            return False

        await until(gone)


async def test_large_annotations_of_a_node_stop_nothing(sea: Sea, namespace: str) -> None:
    await sea.bind()
    policy = await sea.lend(forceReclaim=True, forceReclaimDeadlineSeconds=1)
    await sea.add_node("n")
    async with sea.syncing():
        vnode = (await until(sea.vnodes))[0]
        guest = await sea.guest(namespace, f"{sea.name}-guest", vnode.name)

        async def annotate(**annotations: str) -> None:
            body = MergePatch({"metadata": {"annotations": annotations}})
            await sea.below.patch(NODES, f"{sea.name}-n", body)

        async def shows(key: str) -> bool:
            return key in (await sea.vnodes())[0].annotations

        await annotate(inventory="x" * 130_000)
        await until(lambda: shows("inventory"))
        users = MergePatch({"metadata": {"annotations": {"users": "u" * 110_000}}})
        await sea.above.patch(NODES, vnode.name, users)
        await annotate(last="here")
        await until(lambda: shows("last"))
        assert not await shows("inventory")

        async def told() -> bool:
            return "AnnotationsLeftOut" in await sea.events(vnode.name)

        await until(told)
        # No room is left at all.
        there = (await sea.vnodes())[0].annotations
        rest = 256 * 1024 - sum(len(key) + len(value) for key, value in there.items())
        users = MergePatch({"metadata": {"annotations": {"more": "u" * (rest - len("more"))}}})
        await sea.above.patch(NODES, vnode.name, users)
        await sea.patch_policy(policy, timeWindows=closed())
        await until(lambda: sea.is_gone(guest))
