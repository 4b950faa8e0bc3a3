"""Counts of the pods on virtual nodes, and the requests of these pods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Final

from kubeocean.api.conditions import POD_CREATED
from kubeocean.api.naming import VNODE_PREFIX
from kubeocean.leasing.amounts import Amounts, add
from kubeocean.leasing.requests import CountedPod, requests_of
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.objects import find_condition
from kubeocean.runtime.quantity import Quantity

__all__ = ["NodeUse", "PodCounter", "PodCounts", "sum_counts"]

_PHASES: Final = ("pending", "running", "succeeded", "failed")
_SCHEDULED: Final = "PodScheduled"
_LATE: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class PodCounts:
    """Pods by phase; `terminating`, `refused` and `late` are counted in their phase as well."""

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    terminating: int = 0
    refused: int = 0  # the worker does not admit them
    late: int = 0  # no syncer has acted on them for minutes

    @property
    def total(self) -> int:
        return self.pending + self.running + self.succeeded + self.failed + self.unknown


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The pods of one virtual node, and the sum of their requests."""

    pods: PodCounts = field(default_factory=PodCounts)
    used: Amounts = field(default_factory=dict)


class PodCounter:
    """Counts pods page by page, without keeping them; without `now` no pod is late."""

    def __init__(self, now: datetime | None = None) -> None:
        self._now = now
        self._counts: dict[str, dict[str, int]] = {}
        self._used: dict[str, dict[str, Quantity]] = {}

    def clear(self) -> None:
        """Forget all counts, because the list starts again."""
        self._counts.clear()
        self._used.clear()

    def count(self, pods: Iterable[CountedPod]) -> None:
        """Count the pods that are bound to a virtual node."""
        for pod in pods:
            node = pod.spec.node_name
            if node.startswith(VNODE_PREFIX):
                counts = self._counts.setdefault(node, {})
                for name in _counts_of(pod, self._now):
                    counts[name] = counts.get(name, 0) + 1
                add(self._used.setdefault(node, {}), requests_of(pod))

    def usage(self) -> dict[str, NodeUse]:
        """Return the counts of each node that has pods."""
        return {
            node: NodeUse(PodCounts(**counts), self._used[node])
            for node, counts in self._counts.items()
        }


def _counts_of(pod: CountedPod, now: datetime | None) -> Iterable[str]:
    """Yield the fields of `PodCounts` in which a pod counts."""
    phase = pod.status.phase.lower()
    yield phase if phase in _PHASES else "unknown"
    if pod.deleting:
        yield "terminating"
    created = find_condition(pod.status.conditions, POD_CREATED)
    if created is not None and created.status == "False":
        yield "refused"
    elif now is not None and _is_late(pod, now):
        yield "late"


def _is_late(pod: CountedPod, now: datetime) -> bool:
    """Whether a syncer should have acted on the pod minutes ago, and the pod does not show it."""
    if pod.deleting:
        since = instant_of(pod.metadata.deletion_timestamp)  # the grace period is included
    elif pod.status.phase != "Pending":
        return False
    else:
        conditions = pod.status.conditions or ()
        if any(each.type != _SCHEDULED for each in conditions):
            return False  # the worker has the pod, and reports its progress
        scheduled = find_condition(conditions, _SCHEDULED)
        transition = scheduled.last_transition_time if scheduled is not None else None
        since = instant_of(transition or pod.metadata.creation_timestamp)
    return since is not None and now - since >= _LATE


def sum_counts(counts: Iterable[PodCounts]) -> PodCounts:
    """Return the sum of all counts."""
    names = [each.name for each in fields(PodCounts)]
    total = dict.fromkeys(names, 0)
    for each in counts:
        for name in names:
            total[name] += getattr(each, name)
    return PodCounts(**total)
