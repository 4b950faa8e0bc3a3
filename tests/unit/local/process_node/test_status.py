"""The status of a pod that runs as processes."""

from __future__ import annotations

from kubeocean.local.process_node.status import ContainerState, phase, remembered, status, waiting
from kubeocean.runtime.objects import Json

T0, T1, T2 = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"


def received(*containers: ContainerState, old: Json | None = None, now: str = T2) -> Json:
    return status(containers, old or {}, address="127.2.0.2", host="127.2.0.1", now=now)


def condition(document: Json, kind: str) -> Json:
    return next(each for each in document["conditions"] if each["type"] == kind)


def test_a_container_that_waits_says_why() -> None:
    one = ContainerState("c", "i")
    waiting([one], "ErrImagePull", "not ours")
    document = received(one)
    assert document["phase"] == "Pending"
    (entry,) = document["containerStatuses"]
    assert entry["state"] == {"waiting": {"reason": "ErrImagePull", "message": "not ours"}}
    assert condition(document, "Ready")["reason"] == "ContainersNotReady"


def test_a_pod_is_ready_when_all_its_containers_are() -> None:
    one, two = (
        ContainerState("a", "i", started_at=T0, ready=True),
        ContainerState("b", "i", started_at=T0),
    )
    first = received(one, two)
    assert (first["phase"], condition(first, "Ready")["status"]) == ("Running", "False")
    two.ready = True
    second = received(one, two, old=first, now=T2)
    assert condition(second, "Ready") == {
        "type": "Ready",
        "status": "True",
        "lastTransitionTime": T2,
    }


def test_nothing_changes_while_nothing_changes() -> None:
    one = ContainerState("a", "i", started_at=T0, ready=True)
    first = received(one, now=T1)
    assert received(one, old=first, now=T2) == first


def test_a_run_that_ended_is_remembered() -> None:
    one = ContainerState("a", "i", started_at=T0, ready=True)
    one.end(-15, T1)
    one.reason = "CrashLoopBackOff"
    (entry,) = received(one)["containerStatuses"]
    assert entry["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert entry["lastState"]["terminated"] == {
        "exitCode": 143,
        "signal": 15,
        "reason": "Error",
        "startedAt": T0,
        "finishedAt": T1,
    }
    assert entry["ready"] is False


def test_a_pod_whose_programs_are_over_has_succeeded_or_failed() -> None:
    one, two = ContainerState("a", "i", started_at=T0), ContainerState("b", "i", started_at=T0)
    one.end(0, T1)
    one.over = True
    assert phase([one, two]) == "Running"
    two.end(3, T1)
    two.over = True
    assert phase([one, two]) == "Failed"
    assert phase([one]) == "Succeeded"
    (entry,) = received(one)["containerStatuses"]
    assert entry["state"]["terminated"]["reason"] == "Completed"


def test_a_run_without_a_recorded_end_counts_as_a_restart() -> None:
    spec = {"containers": [{"name": name, "image": "i"} for name in ("a", "b", "c")]}
    told_before = [
        {"name": "a", "restartCount": 2, "state": {"running": {"startedAt": T0}}},
        {"name": "b", "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
    ]
    actual = remembered({"spec": spec, "status": {"containerStatuses": told_before}})
    assert [(each.name, each.restarts) for each in actual] == [("a", 3), ("b", 2), ("c", 0)]
    assert [each.restarts for each in remembered({"spec": spec})] == [0, 0, 0]
