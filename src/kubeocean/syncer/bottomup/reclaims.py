"""Reclaims: what is known of the nodes that are being taken back, for those who tell about it.

Nodes and guests note here what they do; policies and the binding read it. It is kept while we run:
after a restart a node is unknown until it was looked at, and nothing is told of its policy before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kubeocean.api.policy import Eviction
from kubeocean.leasing.report import News, NodeReport

__all__ = ["Reclaims"]


@dataclass(slots=True)
class _Account:
    """What a policy has not told yet."""

    evictions: list[Eviction] = field(default_factory=list)
    began: NodeReport | None = None
    lent_again: bool = False


class Reclaims:
    """The nodes of one binding that are on their way back, by the policy that lent them."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[str, NodeReport]] = {}  # by policy, by virtual node
        self._policies: dict[str, str] = {}  # of each virtual node that was looked at
        self._accounts: dict[str, _Account] = {}
        self._handlers: list[Callable[[str], None]] = []

    def on_change(self, handler: Callable[[str], None]) -> None:
        """Call with the name of a policy when there is news of it."""
        self._handlers.append(handler)

    # What nodes and guests note

    def note(self, policy: str, report: NodeReport) -> None:
        """The virtual node is on its way back."""
        self._move(report.node, policy)
        reports = self._reports.setdefault(policy, {})
        if reports.get(report.node) == report:
            return
        reports[report.node] = report
        account = self._account(policy)
        if report.going and account.began is None:
            account.began = report
        self._changed(policy)

    def lent(self, vnode: str, policy: str) -> None:
        """The virtual node is lent, or lent again."""
        self._move(vnode, policy)
        report = self._drop(vnode, policy)
        if report is not None:
            self._account(policy).lent_again |= report.going
            self._changed(policy)

    def gone(self, vnode: str) -> None:
        """The virtual node is not there any more."""
        policy = self._policies.pop(vnode, None)
        if policy is not None and self._drop(vnode, policy) is not None:
            self._changed(policy)

    def evicted(self, policy: str, eviction: Eviction) -> None:
        """A pod had to go."""
        self._account(policy).evictions.append(eviction)
        self._changed(policy)

    # What policies and the binding tell

    def knows(self, vnode: str) -> bool:
        """Whether the virtual node was looked at since we run."""
        return vnode in self._policies

    def reports(self) -> list[NodeReport]:
        """Of all nodes that are on their way back, by name."""
        reports = (report for each in self._reports.values() for report in each.values())
        return sorted(reports, key=lambda report: report.node)

    def news(self, policy: str, *, lends: bool) -> News:
        """What there is to tell of a policy."""
        account = self._accounts.get(policy) or _Account()
        return News(
            reports=tuple(self._reports.get(policy, {}).values()),
            evictions=tuple(account.evictions),
            began=account.began,
            lent_again=account.lent_again,
            lends=lends,
        )

    def told(self, policy: str, news: News) -> None:
        """The news are written where the next one of us finds them."""
        account = self._accounts.get(policy)
        if account is None:
            return
        del account.evictions[: len(news.evictions)]
        if account.began is news.began:
            account.began = None
        if not any(report.going for report in news.reports):
            account.lent_again = False
        if account == _Account():
            del self._accounts[policy]

    def forget(self, policy: str) -> None:
        """Nobody is there to be told."""
        self._accounts.pop(policy, None)

    # Keeping

    def _account(self, policy: str) -> _Account:
        return self._accounts.setdefault(policy, _Account())

    def _move(self, vnode: str, policy: str) -> None:
        """A virtual node belongs to one policy at a time."""
        before = self._policies.get(vnode)
        self._policies[vnode] = policy
        if before not in (None, policy) and self._drop(vnode, str(before)) is not None:
            self._changed(str(before))

    def _drop(self, vnode: str, policy: str) -> NodeReport | None:
        reports = self._reports.get(policy, {})
        report = reports.pop(vnode, None)
        if not reports:
            self._reports.pop(policy, None)
        return report

    def _changed(self, policy: str) -> None:
        for handler in self._handlers:
            handler(policy)
