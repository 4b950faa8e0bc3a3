"""Drain: what still stands between a binding that is deleted and its end, in words.

Pure but for `Unconfirmed`, which remembers what was done in the computing cluster while the worker
could not confirm it. All texts name the first few, and count all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from kubeocean.leasing.instants import text_of
from kubeocean.leasing.report import NodeReport, counted
from kubeocean.leasing.rules import ABANDON_S

__all__ = ["Unconfirmed", "ends_by", "first_few", "remaining"]

_NAMED: Final = 5


class Unconfirmed:
    """What the worker has not confirmed; once it answers, it can be looked at again."""

    def __init__(self) -> None:
        self._nodes: dict[str, None] = {}
        self._pods: dict[str, None] = {}

    def node(self, pnode: str) -> None:
        """A virtual node was removed, and its worker's node still carries our label."""
        self._nodes[pnode] = None

    def pod(self, pod: str) -> None:
        """A pod was removed, which may still run in the worker."""
        self._pods[pod] = None

    def clear(self) -> None:
        self._nodes.clear()
        self._pods.clear()

    def describe(self) -> str:
        """What may be left in the worker."""
        nodes = f" ({first_few(self._nodes)})" if self._nodes else ""
        pods = f" ({first_few(self._pods)})" if self._pods else ""
        return (
            f"pods of this binding that may still run in the worker{pods}, our label on its"
            f" nodes{nodes}, our finalizer on its policies"
        )


def remaining(reports: Iterable[NodeReport], vnodes: Collection[str]) -> str:
    """The virtual nodes that are still there, with the pods that they wait for."""
    known = {report.node: report for report in reports}
    said = []
    for vnode in sorted(vnodes)[:_NAMED]:
        report = known.get(vnode)
        said.append(vnode if report is None else vnode + _pods(report))
    return f"{counted(len(vnodes), 'virtual node')}: {', '.join(said)}{_more(len(vnodes))}"


def _pods(report: NodeReport) -> str:
    waited = [f"{pod.namespace}/{pod.name} {pod.reason}" for pod in report.pods]
    if not report.pending or not waited:
        return ""
    return f" ({counted(report.pending, 'pod')}: {first_few(waited)})"


def first_few(names: Collection[str]) -> str:
    """The first of them, and how many more there are."""
    return f"{', '.join(sorted(names)[:_NAMED])}{_more(len(names))}"


def _more(number: int) -> str:
    return f" and {number - _NAMED} more" if number > _NAMED else ""


def ends_by(reports: Iterable[NodeReport]) -> str:
    """When at the latest the last pod is given up; empty, if nobody is waited for."""
    deadlines = [each.deadline for each in reports if each.going and each.deadline is not None]
    last: datetime | None = max(deadlines, default=None)
    return f"; ends by {text_of(last + timedelta(seconds=ABANDON_S))}" if last is not None else ""
