"""The status of a virtual pod."""

from __future__ import annotations

import pytest

from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.podstatus import (
    gates,
    lost,
    merge_diff,
    mirror,
    refusal,
    refused_for,
    trouble,
    waits_for_node,
)

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def condition(kind: str, status: str = "True", at: str = EARLY, **more: object) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": at, **more}


def pod(*conditions: Json, spec: Json | None = None, **status: object) -> Json:
    said = {"phase": "Pending", **status}
    return {
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {"nodeName": "n"} | (spec or {}),
        "status": said | ({"conditions": list(conditions)} if conditions else {}),
    }


def applied(vpod: Json, patch: Json) -> Json:
    """The pod as a server makes it of the patch."""
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
    assert mirror(pod(), ppod) == RUNNING | {"conditions": [condition("Ready")]}


def test_no_difference_is_no_patch() -> None:
    ppod = pod(condition("Ready", lastProbeTime=None, observedGeneration=3), **RUNNING)
    vpod = pod(condition("PodScheduled"), qosClass="Burstable", nominatedNodeName="x")
    assert mirror(applied(vpod, mirror(vpod, ppod)), ppod) == {}


def test_what_is_decided_above_is_left_alone() -> None:
    vpod = pod(qosClass="BestEffort", observedGeneration=1, resourceClaimStatuses=[{"name": "a"}])
    ppod = pod(qosClass="Guaranteed", observedGeneration=7, nominatedNodeName="x")
    assert mirror(vpod, ppod) == {}


def test_what_is_gone_below_goes_above() -> None:
    vpod = pod(reason="NodeLost", message="lost", resize="Proposed")
    assert mirror(vpod, pod()) == {"reason": None, "message": None, "resize": None}


def test_parts_of_objects_are_compared_by_field() -> None:
    vpod = pod(allocatedResources={"cpu": "1", "memory": "1Gi"})
    assert mirror(vpod, pod(allocatedResources={"cpu": "2"})) == {
        "allocatedResources": {"cpu": "2", "memory": None}
    }


def test_where_it_is_scheduled_is_said_above() -> None:
    above, below = condition("PodScheduled", at=EARLY), condition("PodScheduled", at=LATE)
    assert mirror(pod(above), pod(below)) == {}
    assert mirror(pod(), pod(below)) == {"conditions": [below]}


def test_conditions_of_controllers_above_survive() -> None:
    own = [condition("DisruptionTarget", reason="EvictionByEvictionAPI"), condition("lb.io/ready")]
    patch = mirror(pod(*own), pod(condition("Ready")))
    assert types(patch) == {"DisruptionTarget": "True", "lb.io/ready": "True", "Ready": "True"}
    assert patch["conditions"][:2] == own


def test_what_the_kubelet_takes_back_goes() -> None:
    vpod = pod(condition("Ready"), condition("PodResizePending"))
    assert types(mirror(vpod, pod(condition("Ready", "False")))) == {"Ready": "False"}


def test_the_kubelet_is_right_about_readiness() -> None:
    vpod = pod(condition("Ready", "False", at=LATE, reason="NodeNotReady"))
    assert types(mirror(vpod, pod(condition("Ready", at=EARLY)))) == {"Ready": "True"}


@pytest.mark.parametrize(("above", "below"), [(EARLY, LATE), (LATE, EARLY), (EARLY, EARLY)])
def test_a_gate_may_be_opened_on_either_side(above: str, below: str) -> None:
    spec = {"readinessGates": [{"conditionType": "lb.io/ready"}]}
    vpod = pod(condition("lb.io/ready", "False", at=above), spec=spec)
    ppod = pod(condition("lb.io/ready", "True", at=below), spec=spec)
    up, down = mirror(vpod, ppod), gates(vpod, ppod)
    assert bool(up) != bool(down)  # exactly one side learns
    assert bool(up) == (below > above)


def test_a_gate_that_is_open_above_is_told_below_once() -> None:
    spec = {"readinessGates": [{"conditionType": "lb.io/ready"}, {"conditionType": "Ready"}]}
    gate = condition("lb.io/ready")
    vpod = pod(gate, condition("Ready"), condition("other"), spec=spec)
    assert gates(vpod, pod(spec=spec)) == [gate]
    assert gates(vpod, pod(gate, spec=spec)) == []
    assert gates(pod(gate), pod()) == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_what_has_ended_has_ended(phase: str) -> None:
    assert mirror(pod(phase=phase), pod(**RUNNING)) == {}
    assert mirror(pod(phase=phase), pod(phase=phase, message="done")) == {"message": "done"}
    assert lost(pod(phase=phase), now=LATE) == {}


def test_a_lost_pod_fails_and_is_not_ready() -> None:
    vpod = pod(condition("Ready"), condition("PodScheduled"), phase="Running")
    patch = lost(vpod, now=LATE)
    assert (patch["phase"], patch["reason"]) == ("Failed", "PhysicalPodLost")
    assert patch["message"] == "Physical pod was deleted unexpectedly"
    assert types(patch) == {"Ready": "False", "PodScheduled": "True"}


def test_what_the_scheduler_says_is_shown_and_stays() -> None:
    unscheduled = condition("PodScheduled", "False", reason="Unschedulable", message="0/3 nodes")
    ppod = pod(unscheduled, spec={"nodeName": ""})
    assert waits_for_node(ppod) == "0/3 nodes"
    assert waits_for_node(pod(unscheduled)) is None
    assert waits_for_node(pod(spec={"nodeName": ""})) is None
    vpod = pod(condition("PodScheduled"))
    patch = mirror(vpod, ppod)
    assert patch == {"reason": "Unschedulable", "message": "0/3 nodes"}
    shown = applied(vpod, patch)
    assert lost(shown, now=LATE)["message"] == "Not scheduled in the worker in time: 0/3 nodes"
    assert mirror(shown, pod(phase="Running"))["message"] is None


def test_why_there_is_no_pod_is_said_until_there_is_one() -> None:
    vpod = pod(condition("PodScheduled"))
    patch = refusal(vpod, reason="FailedCreatePod", message="quota", now=EARLY)
    refused = applied(vpod, patch)
    assert refused_for(refused) == "quota"
    assert refusal(refused, reason="FailedCreatePod", message="quota", now=LATE) == {}
    again = refusal(refused, reason="FailedCreatePod", message="more quota", now=LATE)
    assert again["conditions"][-1]["lastTransitionTime"] == EARLY
    assert types(mirror(refused, pod())) == {"PodScheduled": "True"}
    assert refused_for(vpod) == ""


def test_what_is_wrong_with_a_pod_that_runs_is_said_until_it_is_right() -> None:
    vpod = pod(condition("PodScheduled"))
    assert trouble(vpod, "", now="") == {}
    told = applied(vpod, trouble(vpod, "no token", now=EARLY))
    assert types(told["status"]) == {"PodScheduled": "True", "PhysicalPodSynced": "False"}
    assert trouble(told, "no token", now=LATE) == {}
    assert mirror(told, pod()) == {}, "the kubelet has no say in it"
    (other,) = trouble(told, "no secret", now=LATE)["conditions"][1:]
    assert (other["message"], other["lastTransitionTime"]) == ("no secret", EARLY)
    assert types(trouble(told, "", now="")) == {"PodScheduled": "True"}
    assert types(lost(told, now=LATE)) == {"PodScheduled": "True"}


def test_a_patch_is_what_differs() -> None:
    assert merge_diff({"a": 1, "b": None}, {"a": 1}) == {}
    assert merge_diff({"a": {"x": 1}}, {"a": {"x": 1}}) == {}
    assert merge_diff({"a": {"x": 1, "y": 2}}, {"a": {"x": 3}}) == {"a": {"x": 3, "y": None}}
    assert merge_diff({"a": [1]}, {"b": 2}) == {"a": None, "b": 2}
