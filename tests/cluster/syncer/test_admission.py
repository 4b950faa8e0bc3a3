"""A pod whose client wrote spec.nodeName gets no more of a node than a scheduler would give."""

from __future__ import annotations

from functools import partial

from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, EVENTS, NODES
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.views import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod, VirtualPod
from support.binding_env import BindingEnv
from support.pod_env import GIVEN, PodEnv, make_namespace, usable
from support.wait import until


def body(name: str, vnode: str, cpu: str, **metadata: object) -> Json:
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


async def ends(binding_env: BindingEnv, namespace: str, name: str, phase: str) -> VirtualPod:
    pod = await binding_env.computing_api.get(VIRTUAL_PODS, name, namespace, keep_raw=True)
    assert pod.status.phase == phase, pod.content()["status"]
    return pod


async def test_a_pod_that_does_not_fit_its_node_is_rejected(
    binding_env: BindingEnv, namespace: str, kubelets: SimulatedNodes
) -> None:
    await kubelets.add(1, prefix=f"k{binding_env.name}", labels=binding_env.label)
    mount = f"m-{binding_env.name}"
    await make_namespace(binding_env.worker_api, mount)
    await usable(binding_env.computing_api, namespace)
    await binding_env.bind(mountNamespace=mount, directScheduling=True)
    policy = await binding_env.lend(resourceLimits=[{"resource": "cpu", "quantity": "2"}])

    async def worker_api() -> list[PhysicalPod]:
        return (await binding_env.worker_api.list(PHYSICAL_PODS, mount)).items

    async with binding_env.syncing(mount=mount, given=GIVEN):
        vnode = (await until(binding_env.vnodes))[0].name
        await binding_env.computing_api.create(
            VIRTUAL_PODS, body("huge", vnode, "6"), namespace=namespace
        )
        huge = await until(lambda: ends(binding_env, namespace, "huge", "Failed"))
        await binding_env.computing_api.create(
            VIRTUAL_PODS, body("fits", vnode, "1500m"), namespace=namespace
        )
        await until(lambda: ends(binding_env, namespace, "fits", "Running"))
        status = huge.content()["status"]
        words = "Node didn't have enough resource: cpu, requested: 6000, used: 0, capacity: 2000"
        assert status["reason"] == "OutOfcpu"
        assert status["message"] == f"Pod was rejected: {words}"
        fields = "involvedObject.name=huge,reason=OutOfcpu"

        async def messages() -> list[str]:
            events = (await binding_env.computing_api.list(EVENTS, namespace, fields=fields)).items
            return [event.message for event in events]

        assert await until(messages) == [words]

        # Half a CPU is left beside the running pod, which is not checked again.
        await binding_env.computing_api.create(
            VIRTUAL_PODS, body("late", vnode, "501m"), namespace=namespace
        )
        late = await until(lambda: ends(binding_env, namespace, "late", "Failed"))
        assert "requested: 501, used: 1500, capacity: 2000" in late.content()["status"]["message"]
        await binding_env.patch_policy(
            policy, resourceLimits=[{"resource": "cpu", "quantity": "1"}]
        )

        async def offers() -> str:
            return str(((await binding_env.vnodes())[0].status.allocatable or {})["cpu"])

        async def floored() -> bool:
            return await offers() == "1500m"

        await until(floored)
        change = MergePatch({"metadata": {"labels": {"x": "y"}}})
        await binding_env.computing_api.patch(VIRTUAL_PODS, "fits", change, namespace)
        await until(lambda: _all_have(worker_api, "x"))
        await ends(binding_env, namespace, "fits", "Running")
        assert [
            each.annotations["kubeocean.io/virtual-pod-name"] for each in await worker_api()
        ] == ["fits"]
        for pod in (huge, late):
            await binding_env.computing_api.delete(VIRTUAL_PODS, pod.name, namespace, uid=pod.uid)
        await binding_env.unbind()
        await until(binding_env.is_unbound)


async def test_a_pod_that_names_a_node_with_a_closed_window_is_rejected(pod_env: PodEnv) -> None:
    domain, vnode = pod_env.domain, pod_env.vnode_key(0).name
    waits = {"name": "v", "configMap": {"name": "late"}}

    async def taint(*keys: str) -> None:
        taints = [{"key": key, "value": "true", "effect": "NoSchedule"} for key in keys]
        await pod_env.computing_api.patch(NODES, vnode, MergePatch({"spec": {"taints": taints}}))

    async with pod_env.pods():
        await pod_env.run("before")
        await until(lambda: pod_env.runs("before"))
        await pod_env.run("waiting", volumes=[waits])
        await until(lambda: pod_env.told_of("waiting", "FailedCreatePod"))
        await taint(domain.taint_vnode, domain.taint_out_of_time_windows)
        late = {"metadata": {"name": "late", "namespace": pod_env.namespace}}
        await pod_env.computing_api.create(CONFIG_MAPS, late)
        await pod_env.run("direct")
        for name in ("direct", "waiting"):
            pod = await until(partial(pod_env.shows, name, "Failed"))
            status = pod.content()["status"]
            assert status["reason"] == "NodeClosed"
            words = f"node {vnode} starts no pods now: its time window is closed"
            assert status["message"] == f"Pod was rejected: {words}"
            assert "DisruptionTarget" in [each["type"] for each in status["conditions"]]
            (event,) = await until(partial(pod_env.told_of, name, "NodeClosed"))
            assert event.message == words
            assert not await pod_env.ppods(name)
        await pod_env.runs("before")
        await taint(domain.taint_vnode)
        await pod_env.run("after")
        await until(lambda: pod_env.runs("after"))


async def test_a_pod_with_a_host_port_that_is_taken_is_rejected(pod_env: PodEnv) -> None:
    pnode, number = pod_env.pnodes[0], 20_000 + int(pod_env.name[1:5], 16) % 10_000

    def container(port: int, **more: object) -> Json:
        ports = [{"containerPort": 80, "hostPort": port, **more}]
        return {"name": "c", "image": "none", "ports": ports}

    owners = {
        "metadata": {"name": "owners"},
        "spec": {
            "nodeName": pnode,
            "containers": [container(number)],
            "automountServiceAccountToken": False,
        },
    }
    await pod_env.worker_api.create(VIRTUAL_PODS, owners, namespace=pod_env.mount)
    async with pod_env.pods():
        await pod_env.run("taken", containers=[container(number, hostIP="10.0.0.1")])
        pod = await until(lambda: pod_env.shows("taken", "Failed"))
        status = pod.content()["status"]
        assert status["reason"] == "NodePorts"
        assert status["message"].endswith(f"{number}/TCP is taken")
        assert not await pod_env.ppods("taken")
        await until(lambda: pod_env.told_of("taken", "NodePorts"))
        await pod_env.run("other", containers=[container(number, protocol="UDP")])
        await until(lambda: pod_env.runs("other"))


async def test_a_pod_never_runs_on_a_node_that_only_an_annotation_names(pod_env: PodEnv) -> None:
    vnode, pnode = pod_env.vnode_key(0).name, pod_env.pnodes[0]

    async def names(physical: str) -> None:
        annotations = {pod_env.domain.physical_node_name: physical}
        patch = MergePatch({"metadata": {"annotations": annotations}})
        await pod_env.computing_api.patch(NODES, vnode, patch)

    async with pod_env.pods() as pods:
        await names(pod_env.pnodes[1])

        async def renamed() -> bool:
            node = pods.clusters.vnodes.get(pod_env.vnode_key(0))
            return node is not None and pods.clusters.pnode_of(node) == pod_env.pnodes[1]

        await until(renamed)
        await pod_env.run()
        (event, *_) = await until(lambda: pod_env.told_of("web", "FailedCreatePod"))
        assert "does not name its node of the worker" in event.message
        assert not await pod_env.ppods()
        await names(pnode)
        await until(pod_env.runs)
        assert (await pod_env.ppod()).spec.node_name == pnode


async def _all_have(worker_api: object, label: str) -> bool:
    assert callable(worker_api)
    return all(label in pod.labels for pod in await worker_api())


async def test_a_pod_that_has_started_is_not_checked_again_by_another_process(
    pod_env: PodEnv,
) -> None:
    """Its node may have been closed since: then the pod is evicted by the rules, and not failed."""
    pod = await pod_env.run()
    await pod_env.patch_above(pod, "status", status={"phase": "Running"})
    closed = MergePatch({"status": {"allocatable": {"pods": "0"}}})
    vnode = pod_env.vnode_key(0).name
    await pod_env.computing_api.patch(NODES, vnode, closed, subresource="status")
    async with pod_env.pods():

        async def created() -> bool:
            assert (await pod_env.shows()).status.phase == "Running"
            return len(await pod_env.ppods("web")) == 1

        await until(created)
