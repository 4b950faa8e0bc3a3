"""The status of a virtual pod."""

from __future__ import annotations

import pytest

from kubeocean.errors import Invalid, StatusCause
from kubeocean.leasing.admission import Shortage
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.pods.status import (
    excluded,
    final,
    gates,
    lost,
    not_created,
    not_synced,
    rejected,
    status_patch,
    waits_for_node,
    without_refused,
)

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
CONTAINERS: Json = {
    "initContainers": [{"name": "i"}],
    "containers": [{"name": "c"}],
    "ephemeralContainers": [{"name": "e"}],
}


def condition(kind: str, status: str = "True", at: str = EARLY, **more: object) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": at, **more}


def pod(*conditions: Json, spec: Json | None = None, **status: object) -> Json:
    base = {"phase": "Pending", **status}
    return {
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {"nodeName": "n", **CONTAINERS} | (spec or {}),
        "status": base | ({"conditions": list(conditions)} if conditions else {}),
    }


def applied(vpod: Json, patch: Json) -> Json:
    """Return the pod after a server applied the patch."""
    status = {k: v for k, v in (vpod["status"] | patch).items() if v is not None}
    return vpod | {"status": status}


def types(patch: Json) -> dict[str, str]:
    return {each["type"]: each["status"] for each in patch["conditions"]}


RUNNING: Json = {
    "phase": "Running",
    "hostIP": "10.0.0.1",
    "hostIPs": [{"ip": "10.0.0.1"}],
    "podIP": "10.1.0.1",
    "podIPs": [{"ip": "10.1.0.1"}],
    "startTime": EARLY,
    "resize": "Proposed",
    "containerStatuses": [{"name": "c", "ready": True, "resources": {"requests": {"cpu": "1"}}}],
    "initContainerStatuses": [{"name": "i"}],
    "ephemeralContainerStatuses": [{"name": "e"}],
}


def test_every_field_is_shown() -> None:
    ppod = pod(condition("Ready"), **RUNNING)
    assert status_patch(pod(), ppod) == RUNNING | {"conditions": [condition("Ready")]}


def test_containers_that_the_workers_admission_injected_are_not_shown() -> None:
    injected: Json = {
        "containerStatuses": [{"name": "c", "ready": True}, {"name": "mesh", "ready": True}],
        "initContainerStatuses": [{"name": "mesh-proxy", "started": True}],
    }
    patch = status_patch(pod(), pod(**injected))
    assert patch == {"containerStatuses": [{"name": "c", "ready": True}]}
    assert status_patch(applied(pod(), patch), pod(**injected)) == {}


def test_addresses_outside_of_the_workers_networks_are_not_shown() -> None:
    cidrs = ("10.1.0.0/16", "fd00::/8", "nonsense")
    two = [{"ip": "169.254.169.254"}, {"ip": "fd00::1"}]
    ppod = pod(podIP="169.254.169.254", podIPs=two, hostIP="10.2.0.1", hostIPs=[{"ip": "10.2.0.1"}])
    patch = status_patch(pod(), ppod, cidrs=cidrs)
    assert patch == {"podIP": "fd00::1", "podIPs": [{"ip": "fd00::1"}]}
    assert status_patch(applied(pod(), patch), ppod, cidrs=cidrs) == {}
    shown = pod(podIP="10.2.0.9", podIPs=[{"ip": "10.2.0.9"}])
    assert status_patch(shown, shown, cidrs=cidrs) == {"podIP": None, "podIPs": None}
    inside = pod(podIP="10.1.9.9", podIPs=[{"ip": "10.1.9.9"}], hostIP="10.1.0.1")
    assert status_patch(pod(), inside, cidrs=cidrs) == {
        key: value for key, value in inside["status"].items() if key != "phase"
    }
    assert status_patch(pod(), inside, cidrs=()) == status_patch(pod(), inside)
    assert status_patch(pod(), ppod, cidrs=("nonsense",)) == {}


def test_a_status_is_shown_without_the_fields_that_a_server_refuses() -> None:
    status: Json = {"phase": "Failed", "containerStatuses": [], "initContainerStatuses": []}
    causes = (
        StatusCause(field="status.initContainerStatuses[1].state"),
        StatusCause(field="metadata.labels"),
        StatusCause(field="status.containerStatuses"),
    )
    assert without_refused(status, Invalid("refused", causes=causes)) == {"phase": "Failed"}
    assert without_refused(status, Invalid("refused")) == status


def test_without_a_difference_the_patch_is_empty() -> None:
    ppod = pod(condition("Ready", lastProbeTime=None, observedGeneration=3), **RUNNING)
    vpod = pod(condition("PodScheduled"), qosClass="Burstable", nominatedNodeName="x")
    assert status_patch(applied(vpod, status_patch(vpod, ppod)), ppod) == {}


def test_fields_of_the_computing_cluster_are_not_changed() -> None:
    vpod = pod(qosClass="BestEffort", observedGeneration=1, resourceClaimStatuses=[{"name": "a"}])
    ppod = pod(qosClass="Guaranteed", observedGeneration=7, nominatedNodeName="x")
    assert status_patch(vpod, ppod) == {}


def test_a_field_that_the_physical_pod_lost_is_removed() -> None:
    vpod = pod(reason="NodeLost", message="lost", resize="Proposed")
    assert status_patch(vpod, pod()) == {"reason": None, "message": None, "resize": None}


def test_parts_of_objects_are_compared_by_field() -> None:
    vpod = pod(allocatedResources={"cpu": "1", "memory": "1Gi"})
    assert status_patch(vpod, pod(allocatedResources={"cpu": "2"})) == {
        "allocatedResources": {"cpu": "2", "memory": None}
    }


def test_the_scheduled_condition_is_the_virtual_pods() -> None:
    early, late = condition("PodScheduled", at=EARLY), condition("PodScheduled", at=LATE)
    assert status_patch(pod(early), pod(late)) == {}
    assert status_patch(pod(), pod(late)) == {"conditions": [late]}


def test_conditions_of_the_computing_clusters_controllers_are_kept() -> None:
    own = [condition("DisruptionTarget", reason="EvictionByEvictionAPI"), condition("lb.io/ready")]
    patch = status_patch(pod(*own), pod(condition("Ready")))
    assert types(patch) == {"DisruptionTarget": "True", "lb.io/ready": "True", "Ready": "True"}
    assert patch["conditions"][:2] == own


def test_a_condition_that_the_kubelet_removes_is_removed() -> None:
    vpod = pod(condition("Ready"), condition("PodResizePending"))
    assert types(status_patch(vpod, pod(condition("Ready", "False")))) == {"Ready": "False"}


def test_readiness_is_the_kubelets() -> None:
    vpod = pod(condition("Ready", "False", at=LATE, reason="NodeNotReady"))
    assert types(status_patch(vpod, pod(condition("Ready", at=EARLY)))) == {"Ready": "True"}


@pytest.mark.parametrize(
    ("virtual_at", "physical_at"), [(EARLY, LATE), (LATE, EARLY), (EARLY, EARLY)]
)
def test_a_readiness_gate_may_be_opened_in_either_cluster(
    virtual_at: str, physical_at: str
) -> None:
    spec = {"readinessGates": [{"conditionType": "lb.io/ready"}]}
    vpod = pod(condition("lb.io/ready", "False", at=virtual_at), spec=spec)
    ppod = pod(condition("lb.io/ready", "True", at=physical_at), spec=spec)
    up, down = status_patch(vpod, ppod), gates(vpod, ppod)
    assert bool(up) != bool(down)  # exactly one pod is patched
    assert bool(up) == (physical_at > virtual_at)


def test_a_gate_that_is_open_on_the_virtual_pod_is_applied_once() -> None:
    spec = {"readinessGates": [{"conditionType": "lb.io/ready"}, {"conditionType": "Ready"}]}
    gate = condition("lb.io/ready")
    vpod = pod(gate, condition("Ready"), condition("other"), spec=spec)
    assert gates(vpod, pod(spec=spec)) == [gate]
    assert gates(vpod, pod(gate, spec=spec)) == []
    assert gates(pod(gate), pod()) == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_stays_ended(phase: str) -> None:
    assert status_patch(pod(phase=phase), pod(**RUNNING)) == {}
    assert status_patch(pod(phase=phase), pod(phase=phase, message="done")) == {"message": "done"}
    assert lost(pod(phase=phase), now=LATE) == {}


def test_a_lost_pod_fails_and_is_not_ready() -> None:
    vpod = pod(condition("Ready"), condition("PodScheduled"), phase="Running")
    patch = lost(vpod, now=LATE)
    assert (patch["phase"], patch["reason"]) == ("Failed", "PhysicalPodLost")
    assert patch["message"] == "Physical pod was deleted unexpectedly"
    assert types(patch) == {"Ready": "False", "PodScheduled": "True", "DisruptionTarget": "True"}


def test_a_job_does_not_count_a_lost_pod_as_its_own_failure() -> None:
    (condition_,) = lost(pod(phase="Running"), now=LATE)["conditions"]
    assert condition_ == {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PhysicalPodLost",
        "message": "Physical pod was deleted unexpectedly",
        "lastTransitionTime": LATE,
    }
    evicted = condition("DisruptionTarget", reason="EvictionByEvictionAPI")
    assert lost(pod(evicted), now=LATE)["conditions"] == [evicted]
    spared = condition("DisruptionTarget", "False")
    assert types(lost(pod(spared), now=LATE)) == {"DisruptionTarget": "True"}


def test_the_message_of_the_workers_scheduler_is_shown_and_kept() -> None:
    unscheduled = condition("PodScheduled", "False", reason="Unschedulable", message="0/3 nodes")
    ppod = pod(unscheduled, spec={"nodeName": ""})
    assert waits_for_node(ppod) == "0/3 nodes"
    assert waits_for_node(pod(unscheduled)) is None
    assert waits_for_node(pod(spec={"nodeName": ""})) is None
    vpod = pod(condition("PodScheduled"))
    patch = status_patch(vpod, ppod)
    assert patch == {"reason": "Unschedulable", "message": "0/3 nodes"}
    shown = applied(vpod, patch)
    assert lost(shown, now=LATE)["message"] == "Not scheduled in the worker in time: 0/3 nodes"
    assert status_patch(shown, pod(phase="Running"))["message"] is None


def test_the_reason_for_a_missing_physical_pod_is_a_condition_until_there_is_one() -> None:
    vpod = pod(condition("PodScheduled"))
    patch = not_created(vpod, "quota", now=EARLY)
    assert patch["conditions"][-1]["message"] == "quota"
    assert patch["conditions"][-1]["reason"] == "FailedCreatePod"  # as of the event
    refused = applied(vpod, patch)
    assert not_created(refused, "quota", now=LATE) == {}
    again = not_created(refused, "more quota", now=LATE)
    assert again["conditions"][-1]["lastTransitionTime"] == EARLY
    assert types(status_patch(refused, pod())) == {"PodScheduled": "True"}


def test_a_pod_that_is_not_replicated_has_a_condition_until_it_runs() -> None:
    vpod = pod(condition("PodScheduled"))
    patch = excluded(vpod, "no daemons", now=EARLY)
    assert types(patch) == {"PodScheduled": "True", "PhysicalPodExpected": "False"}
    patched = applied(vpod, patch)
    assert excluded(patched, "no daemons", now=LATE) == {}
    assert types(status_patch(patched, pod())) == {"PodScheduled": "True"}


def test_a_change_that_could_not_be_applied_is_a_condition_until_it_is() -> None:
    vpod = pod(condition("PodScheduled"))
    assert not_synced(vpod, "", now="") == {}
    failing = applied(vpod, not_synced(vpod, "no token", now=EARLY))
    assert types(failing["status"]) == {"PodScheduled": "True", "PhysicalPodSynced": "False"}
    assert not_synced(failing, "no token", now=LATE) == {}
    assert status_patch(failing, pod()) == {}, "a status of the kubelet does not remove it"
    (other,) = not_synced(failing, "no secret", now=LATE)["conditions"][1:]
    assert (other["message"], other["lastTransitionTime"]) == ("no secret", EARLY)
    assert types(not_synced(failing, "", now="")) == {"PodScheduled": "True"}
    (quoting,) = not_synced(failing, "no secret \x1b[2Jx", now=LATE)["conditions"][1:]
    assert quoting["message"] == "no secret  [2Jx"
    assert types(lost(failing, now=LATE)) == {"PodScheduled": "True", "DisruptionTarget": "True"}
    (reason,) = (c["reason"] for c in failing["status"]["conditions"][1:])
    assert reason == "FailedUpdatePod"


def test_the_final_status_is_that_of_a_physical_pod_that_has_ended() -> None:
    vpod = pod(phase="Running")
    assert final(vpod, pod(phase="Succeeded"), now=LATE) == {"phase": "Succeeded"}


def test_without_a_known_end_only_a_pod_with_finalizers_is_failed() -> None:
    vpod = pod(phase="Running")
    assert final(vpod, None, now=LATE) == {}
    vpod["metadata"]["finalizers"] = ["example.com/hold"]
    assert final(vpod, None, now=LATE)["reason"] == "PhysicalPodLost"


def test_a_rejected_pod_has_failed_with_a_kubelets_reason() -> None:
    short = Shortage("pods", Quantity.stored("1"), Quantity.stored("3"), Quantity.stored("3"))
    status = rejected(short)
    assert (status["phase"], status["reason"]) == ("Failed", "OutOfpods")
    assert status["message"] == f"Pod was rejected: {short.message}"


def test_texts_of_the_worker_are_shown_without_escape_sequences_and_shortened() -> None:
    escape, long = "\x1b]0;title\x07\u202eend", "x" * 100_000
    physical = pod(
        condition("Ready", reason=escape, message=long), spec={"nodeName": "n"}, message=escape
    )
    patch = status_patch(pod(), physical)
    assert patch["message"] == " ]0;title  end"
    (ready,) = patch["conditions"]
    assert (ready["reason"], len(ready["message"])) == (" ]0;title  end", 1 << 15)
