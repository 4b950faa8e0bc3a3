"""Who writes a node's name into a pod gets no more of it than a scheduler would give."""

from __future__ import annotations

from kubeocean.local.kwok import SimulatedNodes
from kubeocean.runtime.kinds import EVENTS
from kubeocean.runtime.objects import Json
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.podviews import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod, VirtualPod
from oceans import Sea
from podseas import GIVEN, make_namespace, usable
from waiting import until


def asking(name: str, vnode: str, cpu: str, **metadata: object) -> Json:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": name, **metadata},
        "spec": {
            "nodeName": vnode,
            "containers": [container],
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
        },
    }


async def ends(sea: Sea, namespace: str, name: str, phase: str) -> VirtualPod:
    pod = await sea.above.get(VIRTUAL_PODS, name, namespace, keep_raw=True)
    assert pod.status.phase == phase, pod.content()["status"]
    return pod


async def test_a_pod_that_does_not_fit_its_node_is_turned_away(
    sea: Sea, namespace: str, kubelets: SimulatedNodes
) -> None:
    await kubelets.add(1, prefix=f"k{sea.name}", labels=sea.label)
    mount = f"m-{sea.name}"
    await make_namespace(sea.below, mount)
    await usable(sea.above, namespace)
    await sea.bind(mountNamespace=mount, directScheduling=True)
    policy = await sea.lend(resourceLimits=[{"resource": "cpu", "quantity": "2"}])

    async def below() -> list[PhysicalPod]:
        return (await sea.below.list(PHYSICAL_PODS, mount)).items

    async with sea.syncing(mount=mount, given=GIVEN):
        vnode = (await until(sea.vnodes))[0].name
        await sea.above.create(VIRTUAL_PODS, asking("huge", vnode, "6"), namespace=namespace)
        huge = await until(lambda: ends(sea, namespace, "huge", "Failed"))
        await sea.above.create(VIRTUAL_PODS, asking("fits", vnode, "1500m"), namespace=namespace)
        await until(lambda: ends(sea, namespace, "fits", "Running"))
        status = huge.content()["status"]
        words = "Node didn't have enough resource: cpu, requested: 6000, used: 0, capacity: 2000"
        assert status["reason"] == "OutOfcpu"
        assert status["message"] == f"Pod was rejected: {words}"
        fields = "involvedObject.name=huge,reason=OutOfcpu"

        async def told() -> list[str]:
            found = (await sea.above.list(EVENTS, namespace, fields=fields)).items
            return [event.message for event in found]

        assert await until(told) == [words]

        # Beside what runs there is room for half a CPU; who runs is not asked again.
        await sea.above.create(VIRTUAL_PODS, asking("late", vnode, "501m"), namespace=namespace)
        late = await until(lambda: ends(sea, namespace, "late", "Failed"))
        assert "requested: 501, used: 1500, capacity: 2000" in late.content()["status"]["message"]
        await sea.patch_policy(policy, resourceLimits=[{"resource": "cpu", "quantity": "1"}])

        async def offers() -> str:
            return str(((await sea.vnodes())[0].status.allocatable or {})["cpu"])

        async def floored() -> bool:
            return await offers() == "1500m"

        await until(floored)
        change = MergePatch({"metadata": {"labels": {"x": "y"}}})
        await sea.above.patch(VIRTUAL_PODS, "fits", change, namespace)
        await until(lambda: _all_carry(below, "x"))
        await ends(sea, namespace, "fits", "Running")
        assert [each.annotations["kubeocean.io/virtual-pod-name"] for each in await below()] == [
            "fits"
        ]
        for pod in (huge, late):
            await sea.above.delete(VIRTUAL_PODS, pod.name, namespace, uid=pod.uid)
        await sea.unbind()
        await until(sea.is_unbound)


async def _all_carry(below: object, label: str) -> bool:
    assert callable(below)
    return all(label in pod.labels for pod in await below())
