"""The progress of a binding's deletion as text: nodes, pods and copies that still exist.

All texts name the first few objects, and count all. `Unconfirmed` remembers deletions that the
worker could not confirm; `Leftovers` counts the objects of a deleted binding in the clusters,
besides its nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from kubeocean.leasing.decision import ABANDON_S, DEADLINE_S
from kubeocean.leasing.progress import NodeReport
from kubeocean.leasing.report import counted
from kubeocean.runtime.clock import text_of
from kubeocean.syncer.pods.controller import PodController
from kubeocean.syncer.replication.log_configs import LogConfigs
from kubeocean.syncer.replication.pod_copies import PodCopies
from kubeocean.syncer.replication.services import Services

__all__ = [
    "CLEANUP_S",
    "GIVE_UP_S",
    "Leftovers",
    "Unconfirmed",
    "ends_by",
    "first_few",
    "give_up_at",
    "remaining",
]

GIVE_UP_S: Final = DEADLINE_S + ABANDON_S  # for a whole deletion, if no policy gives pods longer
CLEANUP_S: Final = 60.0  # for pods and copies after the last node, and for a syncer that starts
_NAMED: Final = 5


class Unconfirmed:
    """Deletions that the worker has not confirmed; cleared when the worker answers again."""

    def __init__(self) -> None:
        self._nodes: dict[str, None] = {}
        self._pods: dict[str, None] = {}

    def node(self, pnode: str) -> None:
        """Remember a worker's node that keeps our label, though its virtual node was deleted."""
        self._nodes[pnode] = None

    def pod(self, pod: str) -> None:
        """Remember a pod that was deleted and may still run in the worker."""
        self._pods[pod] = None

    def clear(self) -> None:
        """Forget all nodes and pods; called when the worker answers again."""
        self._nodes.clear()
        self._pods.clear()

    def describe(self) -> str:
        """Return a text that names the objects that may be left in the worker."""
        nodes = f" ({first_few(self._nodes)})" if self._nodes else ""
        pods = f" ({first_few(self._pods)})" if self._pods else ""
        return (
            f"pods of this binding that may still run in the worker{pods}, the binding's label"
            f" on the worker's nodes{nodes}, the binding's finalizer on the worker's policies"
        )


def remaining(reports: Iterable[NodeReport], vnodes: Collection[str]) -> str:
    """Return a text with the virtual nodes that still exist and the pods that each waits for."""
    known = {report.node: report for report in reports}
    texts = []
    for vnode in sorted(vnodes)[:_NAMED]:
        report = known.get(vnode)
        texts.append(vnode if report is None else vnode + _pods(report))
    return f"{counted(len(vnodes), 'virtual node')}: {', '.join(texts)}{_more(len(vnodes))}"


def _pods(report: NodeReport) -> str:
    pods = [f"{pod.namespace}/{pod.name} {pod.reason}" for pod in report.pods]
    if not report.pending or not pods:
        return ""
    return f" ({counted(report.pending, 'pod')}: {first_few(pods)})"


def first_few(names: Collection[str]) -> str:
    """Return the first few of the sorted `names` as text, and how many more there are."""
    return f"{', '.join(sorted(names)[:_NAMED])}{_more(len(names))}"


def _more(number: int) -> str:
    return f" and {number - _NAMED} more" if number > _NAMED else ""


def ends_by(reports: Iterable[NodeReport]) -> str:
    """Return the text "; ends by <time>", with the time when the last pod is abandoned.

    Empty if no node waits for a pod.
    """
    last = _last_deadline(reports)
    return f"; ends by {text_of(last + timedelta(seconds=ABANDON_S))}" if last is not None else ""


def give_up_at(
    deleted: datetime, *, seen: datetime, reports: Iterable[NodeReport] = ()
) -> datetime:
    """Return when the deletion of a binding is given up, whichever objects are left.

    `seen` is when this syncer first saw the deletion; `reports` describe the reclaim of the nodes
    that still exist. The time is later than `GIVE_UP_S` after the deletion only if a policy gives
    its pods a later deadline, or if this syncer has just started.
    """
    last = _last_deadline(reports)
    pods = () if last is None else (last + timedelta(seconds=ABANDON_S + CLEANUP_S),)
    latest = deleted + timedelta(seconds=GIVE_UP_S), seen + timedelta(seconds=CLEANUP_S)
    return max(*latest, *pods)


def _last_deadline(reports: Iterable[NodeReport]) -> datetime | None:
    deadlines = (each.deadline for each in reports if each.under_way and each.deadline is not None)
    return max(deadlines, default=None)


class Leftovers:
    """The physical pods and copies of one binding that is being deleted."""

    def __init__(
        self,
        pods: PodController,
        pod_copies: PodCopies,
        services: Services,
        logconfigs: LogConfigs,
    ) -> None:
        self._pods = pods
        self._pod_copies = pod_copies
        self._services = services
        self._logconfigs = logconfigs

    def drain(self, *, confirmed: bool) -> None:
        """Delete all copies and unmark their sources; wait for the worker only if `confirmed`."""
        self._pod_copies.drain(confirmed=confirmed)

    @property
    def copies(self) -> int:
        """Number of copies, and of marked sources, that exist."""
        return self._pod_copies.remaining()

    def describe(self) -> str:
        """Return a text that counts the pods and copies in the caches; empty if there are none."""
        counts = (
            (len(self._pods.remaining()), "pod"),
            (self._pod_copies.remaining(), "copied object"),
            (self._services.remaining(), "mirrored Service"),
            (self._logconfigs.remaining(), "copied LogConfig"),
        )
        return ", ".join(
            f"{counted(number, noun)} in the worker" for number, noun in counts if number
        )
