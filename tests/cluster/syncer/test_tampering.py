"""Labels and annotations that tenants or administrators write do not defeat the rules."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from kubeocean.errors import NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NODES, PODS
from kubeocean.runtime.objects import Json
from support.binding_env import BindingEnv
from support.wait import until

LABEL = "kubeocean.io/policy-applied"


def closed() -> list[Json]:
    """Return time windows of which none is open for hours."""
    start = datetime.now(UTC) + timedelta(hours=6)
    return [{"start": f"{start:%H:%M}", "end": f"{start + timedelta(minutes=1):%H:%M}"}]


async def label(binding_env: BindingEnv, pod: str, namespace: str, **labels: str) -> None:
    patch = MergePatch({"metadata": {"labels": labels}})
    await binding_env.computing_api.patch(PODS, pod, patch, namespace)


async def test_no_label_keeps_a_pod_from_being_evicted(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(forceReclaim=True, forceReclaimDeadlineSeconds=1)
    await binding_env.add_node("n")
    async with binding_env.syncing():
        vnode = (await until(binding_env.vnodes))[0]
        pod = await binding_env.create_bound_pod(
            namespace, f"{binding_env.name}-labelled", vnode.name
        )
        await label(binding_env, pod.name, namespace, **{"kubeocean.io/hostport-fake-pod": "true"})
        await binding_env.patch_policy(policy, timeWindows=closed())
        await until(lambda: binding_env.is_gone(pod))


async def test_a_policy_may_have_a_name_that_no_label_can_hold(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend("-".join((binding_env.name, "x" * 70)), forceReclaim=True)
    await binding_env.add_node("n")
    async with binding_env.syncing():
        vnode = (await until(binding_env.vnodes))[0]

        async def policy_label() -> str | None:
            return (await binding_env.worker_api.get(NODES, f"{binding_env.name}-n")).labels.get(
                LABEL
            )

        assert len(await until(policy_label) or "") <= 63
        pod = await binding_env.create_bound_pod(namespace, f"{binding_env.name}-pod", vnode.name)
        await binding_env.patch_policy(policy, timeWindows=closed())
        await until(lambda: binding_env.is_gone(pod))
        await binding_env.unbind()
        await until(binding_env.is_unbound)
        assert await policy_label() is None


async def test_a_forged_label_reclaims_nothing(binding_env: BindingEnv, namespace: str) -> None:
    await binding_env.bind()
    await binding_env.lend()
    pnode = await binding_env.add_node("n")
    async with binding_env.syncing():
        vnode = (await until(binding_env.vnodes))[0]
        pod = await binding_env.create_bound_pod(namespace, f"{binding_env.name}-pod", vnode.name)
        for forged in ("forged", None):
            labels = {"kubeocean.io/physical-node-uid": forged}
            await binding_env.computing_api.patch(
                NODES, vnode.name, MergePatch({"metadata": {"labels": labels}})
            )

            async def restored() -> bool:
                now = (await binding_env.vnodes())[0]
                return now.labels.get("kubeocean.io/physical-node-uid") == pnode.uid

            await until(restored)
        assert (await binding_env.vnodes())[0].uid == vnode.uid
        assert not await binding_env.is_gone(pod)


async def test_labels_alone_make_no_node_ours(binding_env: BindingEnv) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    neighbour = binding_env.neighbour()
    await neighbour.bind(nodeSelector=binding_env.selector())
    await neighbour.lend()
    ours = {
        "kubeocean.io/managed-by": "kubeocean",
        "kubeocean.io/cluster-binding": binding_env.name,
        "kubeocean.io/physical-cluster-id": binding_env.cluster_id,
    }
    real = {"metadata": {"name": f"{binding_env.name}-machine", "labels": {"kept": "yes"}}}
    await binding_env.computing_api.create(NODES, real)
    async with binding_env.syncing():
        (vnode,) = await until(binding_env.vnodes)
        async with neighbour.syncing():
            (theirs,) = await until(neighbour.vnodes)
        # No syncer reconciles the other binding's node any more, nor a machine.
        before = {}
        for name in (f"{binding_env.name}-machine", theirs.name):
            await binding_env.computing_api.patch(
                NODES, name, MergePatch({"metadata": {"labels": ours}})
            )
            before[name] = await _written_fields(binding_env, name)

        async def warned() -> bool:
            return all(["NotVirtualNode" in await binding_env.events(name) for name in before])

        await until(warned)
        # The syncer writes to its own node after all writes that it could make to the others.
        await binding_env.computing_api.delete(NODES, vnode.name, uid=vnode.uid)

        async def created_again() -> bool:
            present = await binding_env.vnodes()
            return any(node.name == vnode.name and node.uid != vnode.uid for node in present)

        await until(created_again)
        await binding_env.unbind()
        await until(binding_env.is_unbound)
    for name, node in before.items():
        assert await _written_fields(binding_env, name) == node


async def _written_fields(binding_env: BindingEnv, name: str) -> Json:
    """Return the fields of a node that a syncer writes; Kubernetes changes the conditions."""
    node = (await binding_env.computing_api.get(NODES, name, keep_raw=True)).content()
    meta, spec = node["metadata"], node["spec"]
    return {
        **{key: meta.get(key) for key in ("uid", "labels", "annotations", "finalizers")},
        "deletionTimestamp": meta.get("deletionTimestamp"),
        "unschedulable": spec.get("unschedulable"),
        "taints": [taint for taint in spec.get("taints", ()) if "kubeocean" in taint["key"]],
        "addresses": node.get("status", {}).get("addresses"),
    }


async def test_a_corrupt_annotation_of_expected_metadata_is_ignored(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend()
    await binding_env.add_node("n")
    async with binding_env.syncing():
        vnode = (await until(binding_env.vnodes))[0]
        corrupt = {"kubeocean.io/expected-metadata": "é"}
        await binding_env.computing_api.patch(
            NODES, vnode.name, MergePatch({"metadata": {"annotations": corrupt}})
        )
        await binding_env.patch_policy(policy, timeWindows=closed())

        async def tainted() -> bool:
            taints = (await binding_env.vnodes())[0].spec.taints or ()
            return "kubeocean.io/out-of-time-windows" in [taint.key for taint in taints]

        await until(tainted)


async def test_a_virtual_node_that_lost_its_selecting_labels_gets_them_back(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    keys = ("kubeocean.io/managed-by", "kubeocean.io/cluster-binding")
    async with binding_env.syncing():
        vnode = (await until(binding_env.vnodes))[0]
        pod = await binding_env.create_bound_pod(namespace, f"{binding_env.name}-pod", vnode.name)

        async def restored() -> bool:
            now = await binding_env.computing_api.get(NODES, vnode.name)
            assert now.uid == vnode.uid
            return all(now.labels.get(key) == vnode.labels[key] for key in keys)

        for key in keys:
            for value in (None, "other"):
                labels = MergePatch({"metadata": {"labels": {key: value}}})
                await binding_env.computing_api.patch(NODES, vnode.name, labels)
                await until(restored)
        assert not await binding_env.is_gone(pod)
    # The same, while no syncer runs.
    stripped = MergePatch({"metadata": {"labels": dict.fromkeys(keys)}})
    await binding_env.computing_api.patch(NODES, vnode.name, stripped)
    async with binding_env.syncing():
        await until(restored)
        assert not await binding_env.is_gone(pod)
        # And while the binding is being deleted.
        await binding_env.unbind()
        with suppress(NotFound):
            await binding_env.computing_api.patch(NODES, vnode.name, stripped)
        await until(binding_env.is_unbound)

        async def gone() -> bool:
            try:
                await binding_env.computing_api.get(NODES, vnode.name)
            except NotFound:
                return True
            return False

        await until(gone)


async def test_large_annotations_of_a_node_do_not_stop_its_updates(
    binding_env: BindingEnv, namespace: str
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(forceReclaim=True, forceReclaimDeadlineSeconds=1)
    await binding_env.add_node("n")
    async with binding_env.syncing():
        vnode = (await until(binding_env.vnodes))[0]
        pod = await binding_env.create_bound_pod(namespace, f"{binding_env.name}-pod", vnode.name)

        async def annotate(**annotations: str) -> None:
            body = MergePatch({"metadata": {"annotations": annotations}})
            await binding_env.worker_api.patch(NODES, f"{binding_env.name}-n", body)

        async def shows(key: str) -> bool:
            return key in (await binding_env.vnodes())[0].annotations

        await annotate(inventory="x" * 130_000)
        await until(lambda: shows("inventory"))
        users = MergePatch({"metadata": {"annotations": {"users": "u" * 110_000}}})
        await binding_env.computing_api.patch(NODES, vnode.name, users)
        await annotate(last="here")
        await until(lambda: shows("last"))
        assert not await shows("inventory")

        async def reported() -> bool:
            return "AnnotationsLeftOut" in await binding_env.events(vnode.name)

        await until(reported)
        # No byte is left for further annotations.
        annotations = (await binding_env.vnodes())[0].annotations
        rest = 256 * 1024 - sum(len(key) + len(value) for key, value in annotations.items())
        users = MergePatch({"metadata": {"annotations": {"more": "u" * (rest - len("more"))}}})
        await binding_env.computing_api.patch(NODES, vnode.name, users)
        await binding_env.patch_policy(policy, timeWindows=closed())
        await until(lambda: binding_env.is_gone(pod))
