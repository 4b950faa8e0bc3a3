"""What tenants and administrators may write does not get them out of the rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

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
