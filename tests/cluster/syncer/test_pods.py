"""The life of pods on two real control planes, with simulated kubelets in the worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeocean.api.group import Domain
from kubeocean.errors import NotFound
from kubeocean.runtime.clock import RealClock
from kubeocean.runtime.kinds import CONFIG_MAPS, EVENTS, SECRETS
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods import controller
from kubeocean.syncer.pods.physical_pods import PRIORITY_CLASSES
from kubeocean.syncer.pods.views import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod, VirtualPod
from support.etcd import half_delete
from support.faults import Faults, SkewedClock, watches
from support.pod_env import PodEnv, settled, writes
from support.wait import until

# Annotations that slow a simulated kubelet down.
SLOW_END = {"pod-terminate.stage.kwok.x-k8s.io/delay": "20s"}
SLOW_START = {"pod-run.stage.kwok.x-k8s.io/delay": "600s"}


def conditions(pod: VirtualPod | PhysicalPod) -> dict[str, str]:
    return {each.type: each.status for each in pod.status.conditions or ()}


async def test_a_pod_runs_in_the_worker_and_its_status_is_reported(pod_env: PodEnv) -> None:
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api) as pods:
        pod = await pod_env.run()
        shown = await until(pod_env.runs)
        assert shown.labels == {"kubeocean.io/managed-by": "kubeocean"}
        status = shown.content()["status"]
        assert status["podIP"] and status["hostIP"] and status["startTime"]
        assert status["containerStatuses"][0]["state"]["running"]
        assert status["qosClass"] == "BestEffort"
        assert conditions(shown)["Ready"] == "True"
        await settled(computing_api, worker_api)
        assert len(pods.remaining()) == 1
        assert len(writes(computing_api)) <= 2
        await pod_env.delete(pod)
        await until(pod_env.gone)
        await settled(computing_api, worker_api)
        assert not pods.remaining()
    made = [word for word in writes(worker_api) if "priorityclasses" not in word]
    assert made[-2:] == ["POST pods", "DELETE pods"]
    assert writes(computing_api)[-2:] == ["PATCH pods/status", "DELETE pods"]
    assert len(writes(computing_api)) <= 4


async def test_a_pod_with_copies_and_a_token_costs_nine_requests(pod_env: PodEnv) -> None:
    for kind, name in ((CONFIG_MAPS, "cfg"), (SECRETS, "key")):
        body = {"metadata": {"name": name, "namespace": pod_env.namespace}}
        await pod_env.computing_api.create(kind, body)
    sources = [{"configMapRef": {"name": "cfg"}}, {"secretRef": {"name": "key"}}]
    more: Json = {
        "containers": [{"name": "c", "image": "none", "envFrom": sources}],
        "automountServiceAccountToken": True,
    }
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api):
        await pod_env.run("first", **more)  # creates the copies that both pods share
        await until(lambda: pod_env.runs("first"))
        await settled(computing_api, worker_api)
        before = len(_sent(computing_api, worker_api))
        pod = await pod_env.run("second", **more)
        await until(lambda: pod_env.runs("second"))
        await pod_env.delete(pod)
        await until(lambda: pod_env.gone("second"))
        await settled(computing_api, worker_api)
        spent = _sent(computing_api, worker_api)[before:]
    assert len(spent) <= 9, spent


def _sent(*plans: Faults) -> list[str]:
    """Return all requests except watches and Events."""
    return [
        f"{r.method} {r.path}"
        for plan in plans
        for r in plan.requests
        if not watches(r) and "/events" not in r.path
    ]


async def test_a_restarted_syncer_writes_nothing(pod_env: PodEnv) -> None:
    names = [f"web-{n}" for n in range(3)]
    async with pod_env.pods() as pods:
        for name in names:
            await pod_env.run(name)
        for name in names:
            await until(lambda name=name: pod_env.runs(name))
        metrics = pods.clusters.metrics.render().decode()
    bound = f'cluster_binding="{pod_env.name}"'
    assert f"kubeocean_pod_create_lag_seconds_count{{{bound}}} 3.0" in metrics
    assert f"kubeocean_pod_status_lag_seconds_count{{{bound}}}" in metrics
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api) as pods:
        await until(lambda: pods.clusters.vpods.has_synced and pods.clusters.ppods.has_synced)
        await settled(computing_api, worker_api)
    assert not writes(computing_api, worker_api)
    assert not [word for word in _sent(computing_api, worker_api) if "/pods/" in word]


async def test_labels_and_annotations_of_both_clusters_are_kept(pod_env: PodEnv) -> None:
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api):
        await pod_env.run(metadata={"labels": {"app": "web"}, "annotations": {"note": "1"}})
        pod = await until(pod_env.runs)
        ppod = await pod_env.ppod()
        assert ppod.labels["app"] == "web"
        await pod_env.patch_below(ppod, metadata={"annotations": {"cni.example/ip": "1"}})
        await pod_env.patch_above(pod, metadata={"labels": {"new": "1", "app": None}})

        async def both() -> bool:
            pod, ppod = await pod_env.runs(), await pod_env.ppod()
            assert pod.annotations.get("cni.example/ip") == "1"
            assert pod.annotations.get("note") == "1"
            assert pod.labels.get("new") == ppod.labels.get("new") == "1"
            return "app" not in pod.labels and "app" not in ppod.labels

        await until(both)
        await settled(computing_api, worker_api)
        await pod_env.patch_below(ppod, metadata={"annotations": {"cni.example/ip": None}})

        async def gone() -> bool:
            return "cni.example/ip" not in (await pod_env.runs()).annotations

        await until(gone)
        await settled(computing_api, worker_api)


async def test_a_pod_shows_what_the_bindings_worker_trust_allows(pod_env: PodEnv) -> None:
    computing_api, worker_api = Faults(), Faults()
    theirs = {"app.kubernetes.io/name": "payments-db"}
    noted = {"cni.example/ip": "1", "prometheus.io/scrape": "true"}
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api):
        await pod_env.run(metadata={"labels": {"app": "web"}})
        await until(pod_env.runs)
        ppod = await pod_env.ppod()
        await pod_env.patch_below(ppod, metadata={"labels": theirs, "annotations": noted})

        async def as_of_a_kubelet() -> bool:
            pod = await pod_env.runs()
            assert pod.labels.get("app") == "web"
            shown = theirs.keys() & pod.labels.keys() or "prometheus.io/scrape" in pod.annotations
            return not shown and pod.annotations.get("cni.example/ip") == "1"

        async def wholly() -> bool:
            pod = await pod_env.runs()
            return theirs.items() <= pod.labels.items() and noted.items() <= pod.annotations.items()

        await until(as_of_a_kubelet)
        await settled(computing_api, worker_api)
        assert await as_of_a_kubelet()
        await pod_env.rebind(workerTrust="Full")
        await until(wholly)
        await pod_env.rebind(workerTrust="Kubelet")
        await until(as_of_a_kubelet)
        await settled(computing_api, worker_api)


async def test_conditions_of_the_computing_clusters_controllers_are_kept(pod_env: PodEnv) -> None:
    async with pod_env.pods():
        await pod_env.run()
        pod = await until(pod_env.runs)
        now = f"{RealClock().now():%Y-%m-%dT%H:%M:%SZ}"  # controllers remove old conditions
        disrupted = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": now}
        listed = [*pod.content()["status"]["conditions"], disrupted]
        await pod_env.patch_above(pod, "status", status={"conditions": listed})
        ppod = await pod_env.ppod()
        await pod_env.patch_below(ppod, "status", status={"message": "changed"})

        async def changed() -> VirtualPod | None:
            pod = await pod_env.runs()
            return pod if pod.content()["status"].get("message") == "changed" else None

        shown = await until(changed)
        assert shown is not None
        assert conditions(shown)["DisruptionTarget"] == "True"


async def test_a_readiness_gate_is_opened_in_either_cluster(pod_env: PodEnv) -> None:
    gates = [{"conditionType": "example.com/up"}, {"conditionType": "example.com/down"}]
    up = {"type": "example.com/up", "status": "True", "lastTransitionTime": "2026-01-02T00:00:00Z"}
    down = up | {"type": "example.com/down"}
    computing_api, worker_api = Faults(), Faults()
    async with pod_env.pods(computing_api=computing_api, worker_api=worker_api):
        await pod_env.run(readinessGates=gates)
        pod = await until(pod_env.runs)
        ppod = await pod_env.ppod()
        listed = [*pod.content()["status"]["conditions"], down]
        await pod_env.patch_above(pod, "status", status={"conditions": listed})
        listed = [*ppod.content()["status"]["conditions"], up]
        await pod_env.patch_below(ppod, "status", status={"conditions": listed})

        async def known() -> bool:
            both = await pod_env.runs(), await pod_env.ppod()
            return all({"example.com/up", "example.com/down"} <= set(conditions(p)) for p in both)

        await until(known)
        await settled(computing_api, worker_api)


# The end


async def test_the_grace_of_a_deletion_is_that_of_the_virtual_pod(pod_env: PodEnv) -> None:
    async with pod_env.pods():
        await pod_env.run(metadata={"annotations": SLOW_END}, grace_s=90)
        pod = await until(pod_env.runs)
        await pod_env.delete(pod, grace_s=50)

        async def grace(seconds: int) -> bool:
            ppod = await pod_env.ppod()
            return ppod.metadata.deletion_grace_period_seconds == seconds

        await until(lambda: grace(50))
        assert (await pod_env.shows()).deleting
        await pod_env.delete(pod, grace_s=40)
        await until(lambda: grace(40))
        await pod_env.delete(pod, grace_s=0)
        assert await pod_env.vpod() is None
        await until(lambda: grace(1))


async def test_the_end_of_the_containers_is_reported_before_the_pod_is_removed(
    pod_env: PodEnv,
) -> None:
    hold = {"finalizers": ["example.com/hold"]}
    async with pod_env.pods():
        await pod_env.run(metadata=hold)
        pod = await until(pod_env.runs)
        await pod_env.delete(pod)

        async def ended() -> VirtualPod | None:
            pod = await pod_env.shows(phase="Failed")
            return pod if pod.metadata.deletion_grace_period_seconds == 0 else None

        shown = await until(ended)
        assert shown is not None
        state = shown.content()["status"]["containerStatuses"][0]["state"]
        assert state["terminated"]["exitCode"] == 143
        await pod_env.patch_above(shown, metadata={"finalizers": None})
        await until(pod_env.gone)


async def test_a_pod_with_an_interrupted_deletion_is_removed(pod_env: PodEnv) -> None:
    async with pod_env.pods():
        pod = await pod_env.run()
        await until(pod_env.runs)
    await half_delete(pod_env.computing, pod_env.computing_api, pod.name, pod.namespace)
    async with pod_env.pods():
        await until(pod_env.gone)


async def test_a_pod_that_ended_stays_as_it_ended(pod_env: PodEnv) -> None:
    async with pod_env.pods():
        await pod_env.run(restartPolicy="Never")
        await until(pod_env.runs)
        ppod = await pod_env.ppod()
        await pod_env.patch_below(ppod, "status", status={"phase": "Succeeded"})
        await pod_env.worker_api.delete(
            PHYSICAL_PODS, ppod.name, ppod.namespace, uid=ppod.uid, grace_s=0
        )
        pod = await until(lambda: pod_env.shows(phase="Succeeded"))
        computing_api = Faults()
        async with pod_env.pods(computing_api=computing_api):
            await settled(computing_api)
            assert not writes(computing_api)
        assert not await pod_env.told_of("web", "PhysicalPodLost")
        await pod_env.delete(pod)
        await until(pod_env.gone)


async def test_a_pod_that_is_lost_in_the_worker_fails_and_is_not_created_again(
    pod_env: PodEnv,
) -> None:
    worker_api = Faults()
    async with pod_env.pods(worker_api=worker_api):
        await pod_env.run()
        await pod_env.run("early", metadata={"annotations": SLOW_START})
        await until(pod_env.runs)
        for name in ("web", "early"):
            ppod = (await until(lambda name=name: pod_env.ppods(name)))[0]
            await pod_env.worker_api.delete(
                PHYSICAL_PODS, ppod.name, ppod.namespace, uid=ppod.uid, grace_s=0
            )
            lost = await until(lambda name=name: pod_env.shows(name, phase="Failed"))
            assert lost.status.reason == "PhysicalPodLost"
            assert lost.content()["status"]["message"] == "Physical pod was deleted unexpectedly"
            await until(lambda name=name: pod_env.told_of(name, "PhysicalPodLost"))
        await settled(worker_api)
        assert not await pod_env.ppods()
    assert writes(worker_api).count("POST pods") <= 3  # one of them without its PriorityClass


async def test_a_pod_that_the_worker_does_not_schedule_fails(
    pod_env: PodEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "UNSCHEDULED_S", 8.0)
    env = replace(pod_env.neighbour(), pnodes=pod_env.pnodes)
    await env.open(direct=False)
    # The clocks of two clusters may differ, which must not make the pod fail early.
    async with env.pods(clock=SkewedClock(4_000)):
        await env.run()
        (ppod,) = await until(lambda: env.ppods("web"))
        assert not ppod.spec.node_name
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        listed = [condition | {"message": "0/3 nodes are available"}]
        await env.patch_below(ppod, "status", status={"conditions": listed})

        async def shown() -> bool:
            pod = await env.shows(phase="Pending")
            return pod.content()["status"].get("message") == "0/3 nodes are available"

        await until(shown)
        lost = await until(lambda: env.shows(phase="Failed"))
        assert lost.status.reason == "PhysicalPodLost"
        assert "0/3 nodes are available" in lost.content()["status"]["message"]
        (event, *_) = await until(lambda: env.told_of("web", "FailedSchedulingPod"))
        assert "0/3 nodes are available" in event.message
        assert not await env.ppods()


async def test_system_pods_and_daemons_do_not_run_in_the_worker_but_can_be_deleted(
    pod_env: PodEnv,
) -> None:
    owner = {
        "apiVersion": "apps.kruise.io/v1alpha1",  # a kind that no controller here collects
        "kind": "DaemonSet",
        "name": "d",
        "uid": "6e5b1b64-0000-4000-8000-000000000000",
        "controller": True,
    }
    worker_api = Faults()
    async with pod_env.pods(worker_api=worker_api):
        daemon = await pod_env.run("daemon", metadata={"ownerReferences": [owner]})
        request = {"kubeocean.io/running-daemonset": "true"}
        await pod_env.run("wanted", metadata={"ownerReferences": [owner], "annotations": request})
        body = pod_env.body(f"{pod_env.name}-system")
        body["metadata"]["namespace"] = "kube-system"
        system = await pod_env.computing_api.create(VIRTUAL_PODS, body)
        await until(lambda: pod_env.runs("wanted"))
        await settled(worker_api)
        name = "kubeocean.io/virtual-pod-name"
        assert [ppod.annotations[name] for ppod in await pod_env.ppods()] == ["wanted"]
        # The user learns why the pod stays pending, once.
        live = await pod_env.shows("daemon", "Pending")
        (condition,) = [c for c in live.status.conditions or () if c.type == "PhysicalPodExpected"]
        assert (condition.status, condition.reason) == ("False", "NotReplicated")
        assert "kubeocean.io/running-daemonset" in condition.message
        (event,) = await until(lambda: pod_env.told_of("daemon", "NotReplicated"))
        assert (event.type, event.message, event.count) == ("Normal", condition.message, 1)
        for pod in (daemon, system):
            await pod_env.delete(pod)

            async def gone(pod: VirtualPod = pod) -> bool:
                try:
                    await pod_env.computing_api.get(VIRTUAL_PODS, pod.name, pod.namespace)
                except NotFound:
                    return True
                return False

            await until(gone)


# Objects that a pod depends on


async def test_the_priority_class_is_created_with_the_first_pod(pod_env: PodEnv) -> None:
    product = f"x{pod_env.name}"
    env = replace(pod_env.neighbour(), pnodes=pod_env.pnodes, domain=Domain(f"{product}.io"))
    await env.open()
    async with env.pods():
        await env.run()
        await until(env.runs)
    made = await env.worker_api.get(PRIORITY_CLASSES, f"{product}-default", keep_raw=True)
    assert made.content()["value"] == -10_000
    assert made.labels[f"{product}.io/managed-by"] == product


async def test_a_manifest_that_was_copied_from_a_running_pod_runs(pod_env: PodEnv) -> None:
    mapping = {
        "kubeocean.io/physical-pod-uid": "11111111-0000-4000-8000-000000000000",
        "kubeocean.io/physical-pod-name": "other",
        "kubeocean.io/physical-pod-namespace": "..",
    }
    async with pod_env.pods():
        await pod_env.run(metadata={"annotations": mapping})
        await until(pod_env.runs)


async def test_events_of_the_physical_pod_are_copied_to_the_virtual_pod(pod_env: PodEnv) -> None:
    async with pod_env.pods():
        await pod_env.run()
        pod = await until(pod_env.runs)
        ppod = await pod_env.ppod()
        for n, (reason, uid) in enumerate((("BackOff", ppod.uid), ("Foreign", "another"))):
            body = {
                "metadata": {"name": f"e{n}", "namespace": pod_env.mount},
                "involvedObject": {
                    "kind": "Pod",
                    "name": ppod.name,
                    "namespace": ppod.namespace,
                    "uid": uid,
                },
                "type": "Warning",
                "reason": reason,
                "message": f"restarting failed container in pod {ppod.name}_{ppod.namespace}",
            }
            await pod_env.worker_api.create(EVENTS, body)
        (event,) = await until(lambda: pod_env.told_of("web", "BackOff"))
        assert event.type == "Warning"
        assert event.message.startswith("restarting failed container in pod web_")
        assert event.involved_object.uid == pod.uid
        assert not await pod_env.told_of("web", "Foreign")


async def test_pods_with_long_and_dotted_names_run(pod_env: PodEnv) -> None:
    names = ["a" * 29 + "." + "b" * 20, ".".join(["c" * 60] * 4)]
    async with pod_env.pods():
        for name in names:
            await pod_env.run(name)
        for name in names:
            await until(lambda name=name: pod_env.runs(name))
