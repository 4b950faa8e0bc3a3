"""The life of pods on two real control planes, with simulated kubelets below."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etcd import half_delete
from kubeocean.api.group import Domain
from kubeocean.errors import NotFound
from kubeocean.local.faults import Faults, SkewedClock, watches
from kubeocean.runtime.clock import RealClock
from kubeocean.runtime.kinds import CONFIG_MAPS, EVENTS, SECRETS
from kubeocean.runtime.objects import Json
from kubeocean.syncer.podviews import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod, VirtualPod
from kubeocean.syncer.topdown import podfollowing
from kubeocean.syncer.topdown.podcreation import PRIORITY_CLASSES
from podseas import PodSea, settled, writes
from waiting import until

# How a simulated kubelet is made to take its time.
SLOW_END = {"pod-terminate.stage.kwok.x-k8s.io/delay": "20s"}
SLOW_START = {"pod-run.stage.kwok.x-k8s.io/delay": "600s"}


def conditions(pod: VirtualPod | PhysicalPod) -> dict[str, str]:
    return {each.type: each.status for each in pod.status.conditions or ()}


async def test_a_pod_runs_below_and_is_seen_above(podsea: PodSea) -> None:
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below) as pods:
        pod = await podsea.run()
        shown = await until(podsea.runs)
        assert shown.labels == {"kubeocean.io/managed-by": "kubeocean"}
        status = shown.content()["status"]
        assert status["podIP"] and status["hostIP"] and status["startTime"]
        assert status["containerStatuses"][0]["state"]["running"]
        assert status["qosClass"] == "BestEffort"
        assert conditions(shown)["Ready"] == "True"
        await settled(above, below)
        assert len(pods.remaining()) == 1
        assert len(writes(above)) <= 2
        await podsea.delete(pod)
        await until(podsea.gone)
        await settled(above, below)
        assert not pods.remaining()
    made = [word for word in writes(below) if "priorityclasses" not in word]
    assert made[-2:] == ["POST pods", "DELETE pods"]
    assert writes(above)[-2:] == ["PATCH pods/status", "DELETE pods"]
    assert len(writes(above)) <= 4


async def test_a_pod_with_all_that_it_needs_costs_nine_requests(podsea: PodSea) -> None:
    for kind, name in ((CONFIG_MAPS, "cfg"), (SECRETS, "key")):
        body = {"metadata": {"name": name, "namespace": podsea.namespace}}
        await podsea.above.create(kind, body)
    env = [{"configMapRef": {"name": "cfg"}}, {"secretRef": {"name": "key"}}]
    more: Json = {
        "containers": [{"name": "c", "image": "none", "envFrom": env}],
        "automountServiceAccountToken": True,
    }
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below):
        await podsea.run("first", **more)  # pays for what all of them share
        await until(lambda: podsea.runs("first"))
        await settled(above, below)
        before = len(_sent(above, below))
        pod = await podsea.run("second", **more)
        await until(lambda: podsea.runs("second"))
        await podsea.delete(pod)
        await until(lambda: podsea.gone("second"))
        await settled(above, below)
        spent = _sent(above, below)[before:]
    assert len(spent) <= 9, spent


def _sent(*plans: Faults) -> list[str]:
    """All but watches and Events."""
    return [
        f"{r.method} {r.path}"
        for plan in plans
        for r in plan.requests
        if not watches(r) and "/events" not in r.path
    ]


async def test_a_second_run_writes_nothing(podsea: PodSea) -> None:
    names = [f"web-{n}" for n in range(3)]
    async with podsea.pods() as pods:
        for name in names:
            await podsea.run(name)
        for name in names:
            await until(lambda name=name: podsea.runs(name))
        metrics = pods.world.metrics.render().decode()
    bound = f'cluster_binding="{podsea.name}"'
    assert f"kubeocean_pod_create_lag_seconds_count{{{bound}}} 3.0" in metrics
    assert f"kubeocean_pod_status_lag_seconds_count{{{bound}}}" in metrics
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below) as pods:
        await until(lambda: pods.world.vpods.has_synced and pods.world.ppods.has_synced)
        await settled(above, below)
    assert not writes(above, below)
    assert not [word for word in _sent(above, below) if "/pods/" in word]


async def test_labels_and_annotations_of_both_sides_are_kept(podsea: PodSea) -> None:
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below):
        await podsea.run(metadata={"labels": {"app": "web"}, "annotations": {"note": "1"}})
        pod = await until(podsea.runs)
        ppod = await podsea.ppod()
        assert ppod.labels["app"] == "web"
        await podsea.patch_below(ppod, metadata={"annotations": {"cni.example/ip": "1"}})
        await podsea.patch_above(pod, metadata={"labels": {"new": "1", "app": None}})

        async def both() -> bool:
            pod, ppod = await podsea.runs(), await podsea.ppod()
            assert pod.annotations.get("cni.example/ip") == "1"
            assert pod.annotations.get("note") == "1"
            assert pod.labels.get("new") == ppod.labels.get("new") == "1"
            return "app" not in pod.labels and "app" not in ppod.labels

        await until(both)
        await settled(above, below)
        await podsea.patch_below(ppod, metadata={"annotations": {"cni.example/ip": None}})

        async def gone() -> bool:
            return "cni.example/ip" not in (await podsea.runs()).annotations

        await until(gone)
        await settled(above, below)


async def test_conditions_of_controllers_above_survive(podsea: PodSea) -> None:
    async with podsea.pods():
        await podsea.run()
        pod = await until(podsea.runs)
        now = f"{RealClock().now():%Y-%m-%dT%H:%M:%SZ}"  # controllers clear old ones
        disrupted = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": now}
        listed = [*pod.content()["status"]["conditions"], disrupted]
        await podsea.patch_above(pod, "status", status={"conditions": listed})
        ppod = await podsea.ppod()
        await podsea.patch_below(ppod, "status", status={"message": "changed"})

        async def changed() -> VirtualPod | None:
            pod = await podsea.runs()
            return pod if pod.content()["status"].get("message") == "changed" else None

        shown = await until(changed)
        assert shown is not None
        assert conditions(shown)["DisruptionTarget"] == "True"


async def test_a_readiness_gate_is_opened_from_above_or_from_below(podsea: PodSea) -> None:
    gates = [{"conditionType": "example.com/up"}, {"conditionType": "example.com/down"}]
    up = {"type": "example.com/up", "status": "True", "lastTransitionTime": "2026-01-02T00:00:00Z"}
    down = up | {"type": "example.com/down"}
    above, below = Faults(), Faults()
    async with podsea.pods(above=above, below=below):
        await podsea.run(readinessGates=gates)
        pod = await until(podsea.runs)
        ppod = await podsea.ppod()
        listed = [*pod.content()["status"]["conditions"], down]
        await podsea.patch_above(pod, "status", status={"conditions": listed})
        listed = [*ppod.content()["status"]["conditions"], up]
        await podsea.patch_below(ppod, "status", status={"conditions": listed})

        async def known() -> bool:
            both = await podsea.runs(), await podsea.ppod()
            return all({"example.com/up", "example.com/down"} <= set(conditions(p)) for p in both)

        await until(known)
        await settled(above, below)


# The end


async def test_the_grace_of_a_deletion_is_that_of_the_virtual_pod(podsea: PodSea) -> None:
    async with podsea.pods():
        await podsea.run(metadata={"annotations": SLOW_END}, grace_s=90)
        pod = await until(podsea.runs)
        await podsea.delete(pod, grace_s=50)

        async def grace(seconds: int) -> bool:
            ppod = await podsea.ppod()
            return ppod.metadata.deletion_grace_period_seconds == seconds

        await until(lambda: grace(50))
        assert (await podsea.shows()).deleting
        await podsea.delete(pod, grace_s=40)
        await until(lambda: grace(40))
        await podsea.delete(pod, grace_s=0)
        assert await podsea.vpod() is None
        await until(lambda: grace(1))


async def test_how_the_containers_ended_is_seen_before_the_pod_goes(podsea: PodSea) -> None:
    hold = {"finalizers": ["example.com/hold"]}
    async with podsea.pods():
        await podsea.run(metadata=hold)
        pod = await until(podsea.runs)
        await podsea.delete(pod)

        async def ended() -> VirtualPod | None:
            pod = await podsea.shows(phase="Failed")
            return pod if pod.metadata.deletion_grace_period_seconds == 0 else None

        shown = await until(ended)
        assert shown is not None
        state = shown.content()["status"]["containerStatuses"][0]["state"]
        assert state["terminated"]["exitCode"] == 143
        await podsea.patch_above(shown, metadata={"finalizers": None})
        await until(podsea.gone)


async def test_a_pod_whose_deletion_was_cut_short_goes(podsea: PodSea) -> None:
    async with podsea.pods():
        pod = await podsea.run()
        await until(podsea.runs)
    await half_delete(podsea.computing, podsea.above, pod.name, pod.namespace)
    async with podsea.pods():
        await until(podsea.gone)


async def test_a_pod_that_ended_stays_as_it_ended(podsea: PodSea) -> None:
    async with podsea.pods():
        await podsea.run(restartPolicy="Never")
        await until(podsea.runs)
        ppod = await podsea.ppod()
        await podsea.patch_below(ppod, "status", status={"phase": "Succeeded"})
        await podsea.below.delete(PHYSICAL_PODS, ppod.name, ppod.namespace, uid=ppod.uid, grace_s=0)
        pod = await until(lambda: podsea.shows(phase="Succeeded"))
        above = Faults()
        async with podsea.pods(above=above):
            await settled(above)
            assert not writes(above)
        assert not await podsea.told_of("web", "PhysicalPodLost")
        await podsea.delete(pod)
        await until(podsea.gone)


async def test_a_pod_that_is_lost_below_fails_above_and_is_not_made_again(podsea: PodSea) -> None:
    below = Faults()
    async with podsea.pods(below=below):
        await podsea.run()
        await podsea.run("early", metadata={"annotations": SLOW_START})
        await until(podsea.runs)
        for name in ("web", "early"):
            ppod = (await until(lambda name=name: podsea.ppods(name)))[0]
            await podsea.below.delete(
                PHYSICAL_PODS, ppod.name, ppod.namespace, uid=ppod.uid, grace_s=0
            )
            lost = await until(lambda name=name: podsea.shows(name, phase="Failed"))
            assert lost.status.reason == "PhysicalPodLost"
            assert lost.content()["status"]["message"] == "Physical pod was deleted unexpectedly"
            await until(lambda name=name: podsea.told_of(name, "PhysicalPodLost"))
        await settled(below)
        assert not await podsea.ppods()
    assert writes(below).count("POST pods") <= 3  # one of them without its PriorityClass


async def test_a_pod_that_the_worker_does_not_schedule_is_given_up(
    podsea: PodSea, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podfollowing, "UNSCHEDULED_S", 8.0)
    sea = replace(podsea.neighbour(), pnodes=podsea.pnodes)
    await sea.open(direct=False)
    # The clocks of two clusters differ; that is nobody's fault, and no reason to give up.
    async with sea.pods(clock=SkewedClock(4_000)):
        await sea.run()
        (ppod,) = await until(lambda: sea.ppods("web"))
        assert not ppod.spec.node_name
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        listed = [said | {"message": "0/3 nodes are available"}]
        await sea.patch_below(ppod, "status", status={"conditions": listed})

        async def told() -> bool:
            pod = await sea.shows(phase="Pending")
            return pod.content()["status"].get("message") == "0/3 nodes are available"

        await until(told)
        lost = await until(lambda: sea.shows(phase="Failed"))
        assert lost.status.reason == "PhysicalPodLost"
        assert "0/3 nodes are available" in lost.content()["status"]["message"]
        (event, *_) = await until(lambda: sea.told_of("web", "FailedSchedulingPod"))
        assert "0/3 nodes are available" in event.message
        assert not await sea.ppods()


async def test_pods_that_belong_to_nodes_stay_away_but_may_leave(podsea: PodSea) -> None:
    owner = {
        "apiVersion": "apps.kruise.io/v1alpha1",  # a kind that no controller here collects
        "kind": "DaemonSet",
        "name": "d",
        "uid": "6e5b1b64-0000-4000-8000-000000000000",
        "controller": True,
    }
    below = Faults()
    async with podsea.pods(below=below):
        daemon = await podsea.run("daemon", metadata={"ownerReferences": [owner]})
        asked = {"kubeocean.io/running-daemonset": "true"}
        await podsea.run("asked", metadata={"ownerReferences": [owner], "annotations": asked})
        body = podsea.body(f"{podsea.name}-system")
        body["metadata"]["namespace"] = "kube-system"
        system = await podsea.above.create(VIRTUAL_PODS, body)
        await until(lambda: podsea.runs("asked"))
        await settled(below)
        said = "kubeocean.io/virtual-pod-name"
        assert [ppod.annotations[said] for ppod in await podsea.ppods()] == ["asked"]
        for pod in (daemon, system):
            await podsea.delete(pod)

            async def gone(pod: VirtualPod = pod) -> bool:
                try:
                    await podsea.above.get(VIRTUAL_PODS, pod.name, pod.namespace)
                except NotFound:
                    return True
                return False

            await until(gone)


# What has to be there


async def test_the_priority_class_is_made_when_it_is_needed(podsea: PodSea) -> None:
    product = f"x{podsea.name}"
    sea = replace(podsea.neighbour(), pnodes=podsea.pnodes, domain=Domain(f"{product}.io"))
    await sea.open()
    async with sea.pods():
        await sea.run()
        await until(sea.runs)
    made = await sea.below.get(PRIORITY_CLASSES, f"{product}-default", keep_raw=True)
    assert made.content()["value"] == -10_000
    assert made.labels[f"{product}.io/managed-by"] == product


async def test_a_manifest_that_was_copied_from_a_running_pod_runs(podsea: PodSea) -> None:
    mapping = {
        "kubeocean.io/physical-pod-uid": "11111111-0000-4000-8000-000000000000",
        "kubeocean.io/physical-pod-name": "other",
        "kubeocean.io/physical-pod-namespace": "..",
    }
    async with podsea.pods():
        await podsea.run(metadata={"annotations": mapping})
        await until(podsea.runs)


async def test_events_of_the_physical_pod_are_told_of_the_virtual_one(podsea: PodSea) -> None:
    async with podsea.pods():
        await podsea.run()
        pod = await until(podsea.runs)
        ppod = await podsea.ppod()
        for n, (reason, uid) in enumerate((("BackOff", ppod.uid), ("Foreign", "another"))):
            body = {
                "metadata": {"name": f"e{n}", "namespace": podsea.mount},
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
            await podsea.below.create(EVENTS, body)
        (event,) = await until(lambda: podsea.told_of("web", "BackOff"))
        assert event.type == "Warning"
        assert event.message.startswith("restarting failed container in pod web_")
        assert event.involved_object.uid == pod.uid
        assert not await podsea.told_of("web", "Foreign")


async def test_pods_with_long_and_dotted_names_run(podsea: PodSea) -> None:
    names = ["a" * 29 + "." + "b" * 20, ".".join(["c" * 60] * 4)]
    async with podsea.pods():
        for name in names:
            await podsea.run(name)
        for name in names:
            await until(lambda name=name: podsea.runs(name))
