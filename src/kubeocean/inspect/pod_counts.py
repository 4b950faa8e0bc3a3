"""Counts of the pods on virtual nodes, the first names of each count, and the pods' requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Final

from kubeocean.api import group
from kubeocean.api.conditions import POD_CREATED
from kubeocean.api.group import Domain
from kubeocean.api.naming import VNODE_PREFIX
from kubeocean.leasing.amounts import Amounts, add
from kubeocean.leasing.requests import CountedPod, requests_of
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.objects import controller_of, find_condition
from kubeocean.runtime.quantity import Quantity

__all__ = ["STAYING", "NodeUse", "PodCounter", "PodCounts", "merge_names", "sum_counts"]

STAYING: Final = "staying"  # names of pods that a reclaim waits for; not a count

_PHASES: Final = ("pending", "running", "succeeded", "failed")
_ENDED: Final = ("succeeded", "failed")
_DAEMONS: Final = "daemons"
_NAMED: Final = ("waiting", "refused", "late", "unreplicated", _DAEMONS, STAYING)
_NAMES: Final = 3  # kept of each count of a node
_SCHEDULED: Final = "PodScheduled"
_NOT_REPLICATED: Final = "NotReplicated"  # reason of the condition that a syncer writes
_LATE: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class PodCounts:
    """Numbers of pods by phase; the counts after `unknown` overlap with those of phases.

    `unreplicated` are pods of DaemonSets and of system namespaces, which a worker does not run.
    """

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    terminating: int = 0
    waiting: int = 0  # created in the worker minutes ago, and not running
    refused: int = 0  # the worker does not admit them
    late: int = 0  # no syncer has acted on them for minutes
    unreplicated: int = 0

    @property
    def total(self) -> int:
        return self.pending + self.running + self.succeeded + self.failed + self.unknown


_COUNTS: Final = tuple(each.name for each in fields(PodCounts))


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The pods of one virtual node: their numbers, names of some, and the sum of their requests.

    `daemons` counts the unreplicated pods that the binding's setting to run DaemonSets would
    replicate.
    """

    pods: PodCounts = field(default_factory=PodCounts)
    used: Amounts = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    daemons: int = 0

    @property
    def shown_names(self) -> Mapping[str, tuple[str, ...]]:
        """The first names of pods that need attention, by count, and of those in a reclaim."""
        return {name: self.names[name] for name in self.names if name != _DAEMONS}

    def with_daemons(self) -> NodeUse:
        """Return the use of a node whose binding runs DaemonSets: their waiting pods are late."""
        if not self.daemons:
            return self
        pods = replace(
            self.pods,
            late=self.pods.late + self.daemons,
            unreplicated=self.pods.unreplicated - self.daemons,
        )
        late = merge_names([self.names.get("late", ()), self.names.get(_DAEMONS, ())])
        return replace(self, pods=pods, names={**self.names, "late": late}, daemons=0)


class PodCounter:
    """Counts the pods of virtual nodes page by page, and keeps a few names.

    Without `now` no pod is late or waits.
    """

    def __init__(self, now: datetime | None = None, *, domain: Domain = group.DEFAULT) -> None:
        self._now = now
        self._domain = domain
        self._counts: dict[str, dict[str, int]] = {}
        self._names: dict[str, dict[str, tuple[str, ...]]] = {}
        self._used: dict[str, dict[str, Quantity]] = {}

    def clear(self) -> None:
        """Forget all counts; called when a list starts again."""
        self._counts.clear()
        self._names.clear()
        self._used.clear()

    def count(self, pods: Iterable[CountedPod]) -> None:
        """Count the pods that are bound to a virtual node."""
        for pod in pods:
            node = pod.spec.node_name
            if node.startswith(VNODE_PREFIX):
                counts = self._counts.setdefault(node, {})
                for name in self._categories(pod):
                    if name in _NAMED:
                        self._keep_name(node, name, str(pod.key))
                    counts[name] = counts.get(name, 0) + 1
                add(self._used.setdefault(node, {}), requests_of(pod))

    def usage(self) -> dict[str, NodeUse]:
        """Return the counts of each node that has pods."""
        return {node: self._use(node, counts) for node, counts in self._counts.items()}

    def _use(self, node: str, counts: Mapping[str, int]) -> NodeUse:
        pods = PodCounts(**{name: counts.get(name, 0) for name in _COUNTS})
        names = self._names.get(node, {})
        return NodeUse(pods, self._used[node], names, counts.get(_DAEMONS, 0))

    def _keep_name(self, node: str, category: str, name: str) -> None:
        names = self._names.setdefault(node, {})
        kept = names.get(category, ())
        if len(kept) < _NAMES:
            names[category] = (*kept, name)

    def _categories(self, pod: CountedPod) -> Iterable[str]:
        """Yield the fields of `PodCounts` in which a pod counts, _DAEMONS and STAYING."""
        phase = pod.status.phase.lower()
        yield phase if phase in _PHASES else "unknown"
        if pod.deleting:
            yield "terminating"
        if phase not in _ENDED and not _is_daemon(pod):
            yield STAYING
        conditions = pod.status.conditions or ()
        created = find_condition(conditions, POD_CREATED)
        if any(each.status == "False" and each.reason == _NOT_REPLICATED for each in conditions):
            yield "unreplicated"
        elif created is not None and created.status == "False":
            yield "refused"
        elif self._now is not None and _is_late(pod, self._now):
            if self._is_system(pod):
                yield "unreplicated"
            elif self._is_unrequested_daemon(pod):
                yield from ("unreplicated", _DAEMONS)
            else:
                yield "late"
        elif self._now is not None and _waits(pod, self._now):
            yield "waiting"

    def _is_system(self, pod: CountedPod) -> bool:
        return pod.namespace in self._domain.system_namespaces

    def _is_unrequested_daemon(self, pod: CountedPod) -> bool:
        requested = pod.annotations.get(self._domain.running_daemonset) == group.TRUE
        return _is_daemon(pod) and not requested


def _is_daemon(pod: CountedPod) -> bool:
    owner = controller_of(pod)
    return owner is not None and owner.kind == "DaemonSet"


def _is_late(pod: CountedPod, now: datetime) -> bool:
    """Whether a pod has waited for minutes for its syncer to act on it."""
    if pod.deleting:
        since = instant_of(pod.metadata.deletion_timestamp)  # the grace period is included
    elif pod.status.phase != "Pending":
        return False
    elif any(each.type != _SCHEDULED for each in pod.status.conditions or ()):
        return False  # the worker has the pod, and reports its progress
    else:
        since = _scheduled_at(pod)
    return since is not None and now - since >= _LATE


def _waits(pod: CountedPod, now: datetime) -> bool:
    """Whether a pod has been in the worker for minutes without running."""
    if pod.deleting or pod.status.phase != "Pending":
        return False
    since = _scheduled_at(pod)
    return since is not None and now - since >= _LATE


def _scheduled_at(pod: CountedPod) -> datetime | None:
    scheduled = find_condition(pod.status.conditions, _SCHEDULED)
    transition = scheduled.last_transition_time if scheduled is not None else None
    return instant_of(transition or pod.metadata.creation_timestamp)


def sum_counts(counts: Iterable[PodCounts]) -> PodCounts:
    """Return the sum of the counts of several nodes."""
    total = dict.fromkeys(_COUNTS, 0)
    for each in counts:
        for name in _COUNTS:
            total[name] += getattr(each, name)
    return PodCounts(**total)


def merge_names(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the first names of several groups, limited to as many as are kept of one group."""
    names: tuple[str, ...] = ()
    for group_ in groups:
        names = (*names, *group_)[:_NAMES]
    return names
