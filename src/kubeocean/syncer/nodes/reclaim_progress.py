"""The reclaims of one binding: one record for each virtual node, one for each policy.

`NodeController` and its `Evictor` write the records; `PolicyController` shows them in the status of
the policies, `BindingCleanup` in a condition of the binding. Records live as long as the process:
after a restart, a virtual node has no record until it was reconciled, and until then the reclaim
fields of its policy's status stay unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from kubeocean.api.policies import Eviction
from kubeocean.leasing.progress import NodeReport, PolicyProgress

__all__ = ["ReclaimProgress"]


@dataclass(slots=True)
class _NodeProgress:
    policy: str | None = None  # None: not reconciled yet
    report: NodeReport | None = None  # None: lent
    last_eviction: datetime | None = None


@dataclass(slots=True)
class _UnreportedProgress:
    """Progress of a policy's reclaims that the policy's status does not show yet."""

    evictions: list[Eviction] = field(default_factory=list)
    began: NodeReport | None = None
    lent_again: bool = False


class ReclaimProgress:
    """The virtual nodes of one binding that are being reclaimed, and the pods evicted from them."""

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeProgress] = {}
        self._policies: dict[str, _UnreportedProgress] = {}
        self._handlers: list[Callable[[str], None]] = []

    def on_change(self, handler: Callable[[str], None]) -> None:
        """Call the handler with the name of a policy whose progress changed."""
        self._handlers.append(handler)

    # Written by the node controller

    def record_reclaim(self, policy: str, report: NodeReport) -> None:
        """Record the progress of the reclaim of a virtual node."""
        node = self._node_of(policy, report.node)
        if node.report == report:
            return
        node.report = report
        record = self._policies.setdefault(policy, _UnreportedProgress())
        if report.under_way and record.began is None:
            record.began = report
        self._changed(policy)

    def record_lent(self, vnode: str, policy: str) -> None:
        """Record that the virtual node is lent, and that its reclaim, if any, is over."""
        node = self._node_of(policy, vnode)
        report, node.report = node.report, None
        if report is not None:
            self._policies.setdefault(policy, _UnreportedProgress()).lent_again |= report.under_way
            self._changed(policy)

    def record_eviction(self, policy: str, eviction: Eviction, at: datetime) -> None:
        """Record that a pod was evicted from, or deleted on, a virtual node of a policy."""
        self._nodes.setdefault(eviction.node, _NodeProgress()).last_eviction = at
        self._policies.setdefault(policy, _UnreportedProgress()).evictions.append(eviction)
        self._changed(policy)

    def forget_node(self, vnode: str) -> None:
        """Drop the record of a virtual node that does not exist any more."""
        node = self._nodes.pop(vnode, None)
        if node is not None and node.policy is not None and node.report is not None:
            self._changed(node.policy)

    def last_eviction(self, vnode: str) -> datetime | None:
        """Return when a pod was last evicted from the virtual node."""
        node = self._nodes.get(vnode)
        return node.last_eviction if node is not None else None

    # Read by the policy controller and by the deletion of the binding

    def is_known(self, vnode: str) -> bool:
        """Whether the virtual node was reconciled since this process started."""
        node = self._nodes.get(vnode)
        return node is not None and node.policy is not None

    def is_reclaimed(self, vnode: str) -> bool:
        """Whether the last reconcile of the virtual node reported the progress of a reclaim."""
        node = self._nodes.get(vnode)
        return node is not None and node.report is not None

    def reports(self) -> list[NodeReport]:
        """Return the reports of all virtual nodes that are being reclaimed, by name."""
        reports = (node.report for node in self._nodes.values() if node.report is not None)
        return sorted(reports, key=lambda report: report.node)

    def of_policy(self, policy: str, *, lends: bool) -> PolicyProgress:
        """Return a policy's reclaims and the evictions that its status does not show yet."""
        record = self._policies.get(policy) or _UnreportedProgress()
        nodes = (node for node in self._nodes.values() if node.policy == policy)
        return PolicyProgress(
            reports=tuple(node.report for node in nodes if node.report is not None),
            evictions=tuple(record.evictions),
            began=record.began,
            lent_again=record.lent_again,
            lends=lends,
        )

    def mark_written(self, policy: str, progress: PolicyProgress) -> None:
        """Drop the progress that the policy's status shows; later progress stays."""
        record = self._policies.get(policy)
        if record is None:
            return
        del record.evictions[: len(progress.evictions)]
        if record.began is progress.began:
            record.began = None
        if not any(report.under_way for report in progress.reports):
            record.lent_again = False
        if record == _UnreportedProgress():
            del self._policies[policy]

    def forget_policy(self, policy: str) -> None:
        """Drop the record of a policy that does not exist any more."""
        self._policies.pop(policy, None)

    def _node_of(self, policy: str, vnode: str) -> _NodeProgress:
        """Return the record of a virtual node; drop a report of the policy that lent it before."""
        node = self._nodes.setdefault(vnode, _NodeProgress())
        before, node.policy = node.policy, policy
        if before not in (None, policy) and node.report is not None:
            node.report = None
            self._changed(str(before))
        return node

    def _changed(self, policy: str) -> None:
        for handler in self._handlers:
            handler(policy)
