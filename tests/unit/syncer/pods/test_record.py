"""Tests of the syncer's records of pods, and of when they are deleted."""

from __future__ import annotations

import pytest

from kubeocean.runtime.objects import Key, Meta
from kubeocean.syncer.pods.record import (
    FIRST_RETRY_S,
    LONGEST_MESSAGE,
    LONGEST_RETRY_S,
    PhysicalPodRecord,
    PodProblem,
    PodRecord,
    PodRecords,
)
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod

KEY = Key("team", "web")
Status = type(PhysicalPod().status)


def vpod(uid: str = "u1", *, version: str = "1") -> VirtualPod:
    meta = Meta(name=KEY.name, namespace=KEY.namespace, uid=uid, resource_version=version)
    return VirtualPod(metadata=meta)


def ppod(uid: str = "p1", *, version: str = "1", phase: str = "Running") -> PhysicalPod:
    meta = Meta(name="web-1", namespace="mount", uid=uid, resource_version=version)
    return PhysicalPod(metadata=meta, status=Status(phase=phase))


def records_with(*cached: PhysicalPod) -> PodRecords:
    """Return records of a syncer whose cache shows these physical pods."""
    return PodRecords({pod.key: pod for pod in cached}.get)


# --- the life of a record


def test_a_virtual_pod_has_one_record_until_it_is_forgotten() -> None:
    records = records_with()
    record = records.of(vpod())
    record.had_physical = True
    assert records.of(vpod(version="2")) is record
    assert record.key == KEY
    records.forget(vpod(version="3"))
    assert len(records) == 0
    assert not records.of(vpod()).had_physical


def test_another_pod_of_the_same_name_has_a_record_of_its_own() -> None:
    records = records_with()
    records.of(vpod("u1")).put_off(0.0)
    records.of(vpod("u1")).admitted = True
    assert not records.of(vpod("u2")).is_waiting
    assert not records.is_admitted(vpod("u2"))
    records.forget(vpod("u1"))
    assert len(records) == 1


def test_a_record_that_a_reconcile_still_holds_is_not_kept() -> None:
    records = records_with()
    record = records.of(vpod())
    records.forget(vpod())
    record.had_physical = True
    record.put_off(0.0)
    assert len(records) == 0
    assert [*records.waiting()] == []


def test_reading_whether_a_pod_was_admitted_makes_no_record() -> None:
    records = records_with()
    assert not records.is_admitted(vpod())
    assert len(records) == 0
    records.of(vpod()).admitted = True
    assert records.is_admitted(vpod())


def test_the_record_of_a_physical_pod_outlives_that_of_its_virtual_pod() -> None:
    records = records_with(ppod())
    records.of(vpod())
    records.physical(ppod()).deletion_requested = True
    records.forget(vpod())
    assert records.physical(ppod(version="2")).deletion_requested
    records.forget_physical(ppod())
    assert not records.physical(ppod()).deletion_requested


@pytest.mark.parametrize("cached", [(), (ppod("p2"),)])
def test_the_record_of_a_physical_pod_that_the_cache_does_not_show_is_not_kept(
    cached: tuple[PhysicalPod, ...],
) -> None:
    records = records_with(*cached)
    records.physical(ppod("p1")).deletion_requested = True
    assert len(records) == 0
    assert not records.physical(ppod("p1")).deletion_requested


def test_forgetting_twice_is_harmless() -> None:
    records = records_with()
    for _ in range(2):
        records.forget(vpod())
        records.forget_physical(ppod())


# --- versions that need no work


def test_versions_are_synced_until_something_else_changes() -> None:
    record = PodRecord(KEY)
    assert not record.is_own_write(vpod())
    assert not record.has_shown(ppod())
    record.settle(("5", "7"), revision=record.revision)
    record.futile = ("5", "7")
    assert record.is_own_write(vpod(version="5"))
    assert not record.is_own_write(vpod(version="6"))
    assert record.has_shown(ppod(version="7"))
    assert not record.has_shown(ppod(version="8"))
    record.show_also(ppod(version="8"))
    assert record.has_shown(ppod(version="8"))
    assert record.is_own_write(vpod(version="5"))
    record.unsettle()
    assert (record.synced, record.futile) == (None, None)


def test_refused_changes_are_tried_again_after_a_change_outside_both_pods() -> None:
    record = PodRecord(KEY)
    record.applied = 1
    record.unsettle()
    assert record.applied == 1
    record.problems[PodProblem.CHANGES] = "the binding does not allow it"
    record.unsettle()
    assert record.applied is None


def test_a_change_during_a_sync_is_not_covered_by_its_end() -> None:
    record = PodRecord(KEY)
    revision = record.revision
    record.unsettle()  # such as by a change of the binding, while the sync writes
    record.settle(("5", "7"), revision=revision)
    assert record.synced is None
    record.settle(("5", "7"), revision=record.revision)
    assert record.synced == ("5", "7")


# --- the end of the physical pod


@pytest.mark.parametrize(
    ("phase", "reported", "certain"),
    [("Succeeded", False, True), ("Succeeded", True, True), ("Running", False, False)],
)
def test_an_end_is_certain_if_the_pod_had_finished(
    phase: str, reported: bool, certain: bool
) -> None:
    record = PodRecord(KEY)
    assert not record.is_end_certain
    pod = ppod(phase=phase)
    record.physical_pod_left(pod, reported=reported)
    assert record.is_end_certain is certain
    assert record.last_physical is (None if reported else pod)


# --- retries


def test_retries_become_rarer_up_to_a_limit() -> None:
    record = PodRecord(KEY)
    assert record.retry_in_s(0.0) == 0
    delays = [record.put_off(100.0) for _ in range(12)]
    assert delays[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert delays[-1] == LONGEST_RETRY_S
    assert record.retry_in_s(100.0) == LONGEST_RETRY_S
    assert record.retry_in_s(1000.0) == 0


def test_a_shorter_limit_holds_for_the_next_delay_too() -> None:
    record = PodRecord(KEY)
    for _ in range(4):
        record.put_off(0.0)
    assert record.put_off(0.0, at_most_s=3.0) == 3.0
    assert record.put_off(0.0) == 6.0


def test_a_retry_now_ends_the_wait_but_not_its_growth() -> None:
    record = PodRecord(KEY)
    record.retry_now()
    assert not record.is_waiting
    record.put_off(100.0)
    record.retry_now()
    assert record.is_waiting
    assert record.retry_in_s(100.0) == 0
    assert record.put_off(100.0) == 2 * FIRST_RETRY_S
    record.clear_retry()
    assert not record.is_waiting
    assert record.put_off(100.0) == FIRST_RETRY_S


def test_only_pods_that_wait_are_waiting() -> None:
    records = records_with()
    records.of(vpod("u1"))
    waiting = records.of(vpod("u2"))
    waiting.put_off(0.0)
    assert [*records.waiting()] == [waiting]
    waiting.clear_retry()
    assert [*records.waiting()] == []


# --- problems


def test_the_wait_ends_with_the_last_problem() -> None:
    record = PodRecord(KEY)
    assert record.problem_text == ""
    record.problems |= {PodProblem.CHANGES: "no secret", PodProblem.TOKENS: "no token"}
    record.put_off(0.0)
    assert record.problem_text == "no secret; no token"
    record.clear_problem(PodProblem.CHANGES)
    assert record.is_waiting
    record.clear_problem(PodProblem.TOKENS)
    assert not record.is_waiting
    assert record.problem_text == ""


def test_a_problem_that_a_pod_does_not_have_ends_no_wait() -> None:
    record = PodRecord(KEY)
    record.put_off(0.0)
    record.clear_problem(PodProblem.TOKENS)
    assert record.is_waiting


def test_the_message_of_a_condition_is_bounded() -> None:
    record = PodRecord(KEY)
    record.problems[PodProblem.CHANGES] = "x" * (LONGEST_MESSAGE + 1)
    assert len(record.problem_text) == LONGEST_MESSAGE


# --- physical pods


def test_the_wait_for_a_node_begins_when_it_is_first_seen() -> None:
    record = PhysicalPodRecord()
    assert record.unscheduled_for_s(100.0) == 0
    assert record.unscheduled_for_s(130.0) == 30


def test_a_deletion_is_repeated_only_with_another_grace() -> None:
    record = PhysicalPodRecord()
    assert not record.was_deleted_with(None)
    record.deletion_requested, record.deletion_grace_s = True, None
    assert record.was_deleted_with(None)
    assert not record.was_deleted_with(30)
