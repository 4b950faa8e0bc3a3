"""Records: the syncer's memory of each pod from one reconcile to the next.

A virtual pod and a physical pod each have one record, keyed by UID. A record is dropped when its
pod leaves the cache. Physical pods have records of their own because they can outlive their virtual
pod, and a deletion that was requested must be remembered until the pod is gone.

Records are only memory: after a restart all of them are empty, and whatever matters is read from
the clusters again. Times are readings of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from kubeocean.runtime.clock import Clock
from kubeocean.runtime.objects import Key, Object
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod

__all__ = [
    "FIRST_RETRY_S",
    "LONGEST_MESSAGE",
    "LONGEST_RETRY_S",
    "UNDERWAY_S",
    "PhysicalPodRecord",
    "PodProblem",
    "PodRecord",
    "PodRecords",
    "Removals",
    "awaits_removal",
    "removal_due_in_s",
]

FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 300.0
UNDERWAY_S: Final = 3.0  # longer than an API server takes from the mark to the removal
LONGEST_MESSAGE: Final = 1024  # characters of a condition's message

_Versions: TypeAlias = tuple[str, str]  # of the virtual pod, of the physical pod


class PodProblem(Enum):
    """The steps after a pod's creation that can fail while the pod runs."""

    CHANGES = auto()  # a change of the virtual pod cannot be applied to the physical pod
    TOKENS = auto()  # a service account token cannot be issued
    STATUS = auto()  # the API server refuses a part of the physical pod's status


@dataclass(slots=True)
class PodRecord:
    """The syncer's memory of one virtual pod between reconciles."""

    key: Key
    admitted: bool = False  # the pod fits its node, which is decided once
    may_be_outdated: bool = False  # the cached pod is old enough to have been deleted since
    had_physical: bool = False  # a physical pod was created or seen
    physical_created_at_s: float | None = None  # until its first status was reported
    physical_left: bool = False  # a physical pod left the cache
    last_physical: PhysicalPod | None = None  # as it left the cache, if its end was not reported
    removed: bool = False  # we deleted the virtual pod for good
    removal_seen_s: float | None = None  # since when only its removal is missing
    revision: int = 0  # counts the changes outside both pods that concern them
    synced: _Versions | None = None  # versions between which nothing is left to write
    futile: _Versions | None = None  # versions for which a patch was accepted and changed nothing
    applied: int | None = None  # digest of the pods between which no change is left to apply
    problems: dict[PodProblem, str] = field(default_factory=dict)  # with their messages
    retry_at_s: float | None = None  # when a step that failed is due again
    next_retry_s: float = FIRST_RETRY_S
    bound_at_s: float | None = None  # for metrics: since when no physical pod was created
    changed_at_s: float | None = None  # for metrics: since when a status was not reported

    # Versions that need no work

    def is_own_write(self, vpod: VirtualPod) -> bool:
        """Whether this version of the virtual pod is our last patch, with nothing left to do."""
        return self.synced is not None and self.synced[0] == vpod.resource_version

    def has_shown(self, ppod: PhysicalPod) -> bool:
        """Whether the virtual pod shows the status of this version of the physical pod."""
        return self.synced is not None and self.synced[1] == ppod.resource_version

    def show_also(self, ppod: PhysicalPod) -> None:
        """Record that a newer version of the physical pod has nothing else to show."""
        assert self.synced is not None
        self.synced = (self.synced[0], ppod.resource_version)

    def unsettle(self) -> None:
        """Compare both pods again at the next reconcile, because another object changed.

        Changes that were refused are tried again: the binding may allow them now.
        """
        self.revision += 1
        self.synced = None
        self.futile = None
        if PodProblem.CHANGES in self.problems:
            self.applied = None

    def settle(self, versions: _Versions, *, revision: int) -> None:
        """Record that these versions are synced, unless `unsettle` was called since `revision`."""
        if revision == self.revision:
            self.synced = versions

    # The end of the physical pod

    def physical_pod_left(self, ppod: PhysicalPod, *, reported: bool) -> None:
        """Note that a physical pod left the cache; `reported` if the virtual pod shows its end."""
        self.physical_left = True
        self.last_physical = None if reported else ppod

    @property
    def is_end_certain(self) -> bool:
        """Whether the physical pod is known to have ended.

        A pod that left the cache while it ran may only have lost the label that the cache selects
        by.
        """
        last = self.last_physical
        return self.physical_left and (last is None or last.finished)

    # Retries

    @property
    def is_waiting(self) -> bool:
        return self.retry_at_s is not None

    def retry_in_s(self, now_s: float) -> float:
        """Return the seconds until the next attempt at a failed step is due."""
        return 0.0 if self.retry_at_s is None else max(0.0, self.retry_at_s - now_s)

    def put_off(self, now_s: float, *, at_most_s: float = LONGEST_RETRY_S) -> float:
        """Schedule the next retry, after twice the last delay; return the delay in seconds."""
        delay_s = min(self.next_retry_s, at_most_s)
        self.retry_at_s = now_s + delay_s
        self.next_retry_s = min(delay_s * 2, LONGEST_RETRY_S)
        return delay_s

    def retry_now(self) -> None:
        """Make the retry due now; the next delay still grows if the step fails again."""
        if self.retry_at_s is not None:
            self.retry_at_s = 0.0

    def clear_retry(self) -> None:
        """Forget the failures of a step that succeeded, and their growing delay."""
        self.retry_at_s = None
        self.next_retry_s = FIRST_RETRY_S

    # Problems of a pod that runs

    @property
    def problem_text(self) -> str:
        """All problems as one message; empty if the pod has none."""
        return "; ".join(self.problems.values())[:LONGEST_MESSAGE]

    def clear_problem(self, problem: PodProblem) -> None:
        """Forget a problem; with the last problem, the retry is cancelled."""
        if self.problems.pop(problem, None) is not None and not self.problems:
            self.clear_retry()


@dataclass(slots=True)
class PhysicalPodRecord:
    """The syncer's memory of one physical pod between reconciles."""

    unscheduled_since_s: float | None = None
    recheck_s: float | None = None  # the next wait; set if the API server showed it to be no stray
    deletion_requested: bool = False
    deletion_grace_s: int | None = None  # of the last request

    def unscheduled_for_s(self, now_s: float) -> float:
        """Return for how many seconds the physical pod has been seen without a node."""
        if self.unscheduled_since_s is None:
            self.unscheduled_since_s = now_s
        return now_s - self.unscheduled_since_s

    def was_deleted_with(self, grace_s: int | None) -> bool:
        """Whether a deletion with this grace period was requested already."""
        return self.deletion_requested and self.deletion_grace_s == grace_s


class PodRecords:
    """The records of one binding's pods; `cached` returns a physical pod from the cache."""

    def __init__(self, cached: Callable[[Key], PhysicalPod | None]) -> None:
        self._cached = cached
        self._virtual: dict[str, PodRecord] = {}  # by UID of the virtual pod
        self._physical: dict[str, PhysicalPodRecord] = {}  # by UID of the physical pod

    def __len__(self) -> int:
        return len(self._virtual) + len(self._physical)

    def of(self, vpod: VirtualPod) -> PodRecord:
        """Return the record of a virtual pod that is in the cache.

        Call without an await since the pod was read: a reconcile keeps the record that it began
        with, and notes made after the pod has left the cache are dropped together with the record.
        """
        record = self._virtual.get(vpod.uid)
        if record is None:
            record = self._virtual[vpod.uid] = PodRecord(vpod.key)
        return record

    def is_admitted(self, vpod: VirtualPod) -> bool:
        record = self._virtual.get(vpod.uid)
        return record is not None and record.admitted

    def waiting(self) -> Iterator[PodRecord]:
        """Return the records of the virtual pods that wait for a retry."""
        return (record for record in list(self._virtual.values()) if record.is_waiting)

    def forget(self, vpod: VirtualPod) -> None:
        """Drop the record of a virtual pod that left the cache."""
        self._virtual.pop(vpod.uid, None)

    def physical(self, ppod: PhysicalPod) -> PhysicalPodRecord:
        """Return the record of a physical pod, created at the first call.

        The record of a pod that the cache does not show is new at each call and is not kept: no
        event of the cache would drop it.
        """
        cached = self._cached(ppod.key)
        if cached is None or cached.uid != ppod.uid:
            return PhysicalPodRecord()
        return self._physical.setdefault(ppod.uid, PhysicalPodRecord())

    def forget_physical(self, ppod: PhysicalPod) -> None:
        """Drop the record of a physical pod that left the cache."""
        self._physical.pop(ppod.uid, None)


def awaits_removal(pod: Object) -> bool:
    """Whether the API server should remove the pod right now, without any further request."""
    marked = pod.deleting and pod.metadata.deletion_grace_period_seconds == 0
    return marked and not pod.metadata.finalizers


def removal_due_in_s(pod: Object, *, seen_s: float | None, now_s: float) -> float | None:
    """Return the seconds until a pod is to be deleted; None if only a finalizer keeps it.

    `seen_s` is when the pod was first seen to await its removal.
    """
    if not pod.deleting or pod.metadata.deletion_grace_period_seconds != 0:
        return 0.0
    if pod.metadata.finalizers:
        return None
    return max(0.0, (now_s if seen_s is None else seen_s) + UNDERWAY_S - now_s)


class Removals:
    """Remembers when each pod was first seen to await its removal, and when to delete it again.

    API servers mark a pod with a deletion timestamp before they remove the pod. A pod with such a
    mark and no grace period left is being removed, or is kept by a finalizer, or its removal was
    interrupted and has to be requested again. Only the time since this process first saw the mark
    tells these apart: the mark's own time is of another clock, and may be that of an earlier
    deletion with a longer grace period.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_s: dict[str, float] = {}  # by UID, of pods that await their removal

    def due_in_s(self, pod: Object) -> float | None:
        """Return the seconds until a pod is to be deleted; None if only a finalizer keeps it."""
        now_s = self._clock.monotonic()
        seen_s = self._seen_s.setdefault(pod.uid, now_s) if awaits_removal(pod) else None
        return removal_due_in_s(pod, seen_s=seen_s, now_s=now_s)

    def forget(self, pod: Object) -> None:
        """Drop the memory of a pod that is removed."""
        self._seen_s.pop(pod.uid, None)
