"""Counting: pods of virtual nodes, as they go by in pages; none of them is kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Final

from kubeocean.api.naming import VNODE_PREFIX
from kubeocean.api.reasons import POD_CREATED
from kubeocean.leasing.amounts import Amounts, add
from kubeocean.leasing.counted import CountedPod
from kubeocean.leasing.instants import instant_of
from kubeocean.leasing.requests import requests_of
from kubeocean.runtime.objects import find_condition
from kubeocean.runtime.quantity import Quantity
from kubeocean.view.facts import NodeUse
from kubeocean.view.model import PodCounts, Resources

__all__ = ["Tally", "sum_counts", "sum_resources"]

_PHASES = ("pending", "running", "succeeded", "failed")
_SCHEDULED: Final = "PodScheduled"
_LATE: Final = timedelta(minutes=2)


class Tally:
    """The pods of each virtual node, as they are now."""

    def __init__(self, now: datetime | None = None) -> None:
        self._now = now
        self._counts: dict[str, dict[str, int]] = {}
        self._used: dict[str, dict[str, Quantity]] = {}

    def clear(self) -> None:
        self._counts.clear()
        self._used.clear()

    def count(self, pods: Iterable[CountedPod]) -> None:
        """Count those that are bound to a virtual node."""
        for pod in pods:
            node = pod.spec.node_name
            if node.startswith(VNODE_PREFIX):
                counts = self._counts.setdefault(node, {})
                for what in _kinds(pod, self._now):
                    counts[what] = counts.get(what, 0) + 1
                add(self._used.setdefault(node, {}), requests_of(pod))

    def uses(self) -> dict[str, NodeUse]:
        """What was counted, by node."""
        return {
            node: NodeUse(PodCounts(**counts), self._used[node])
            for node, counts in self._counts.items()
        }


def _kinds(pod: CountedPod, now: datetime | None) -> Iterable[str]:
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
    """Whether a syncer should long have done something with it, and nothing shows that it has."""
    if pod.deleting:
        since = instant_of(pod.metadata.deletion_timestamp)  # its grace is in that
    elif pod.status.phase != "Pending":
        return False
    else:
        told = pod.status.conditions or ()
        if any(each.type != _SCHEDULED for each in told):
            return False  # the worker has it, and says how far it is
        bound = find_condition(told, _SCHEDULED)
        known = bound.last_transition_time if bound is not None else None
        since = instant_of(known or pod.metadata.creation_timestamp)
    return since is not None and now - since >= _LATE


def sum_counts(counts: Iterable[PodCounts]) -> PodCounts:
    """All of them together."""
    names = [each.name for each in fields(PodCounts)]
    total = dict.fromkeys(names, 0)
    for each in counts:
        for name in names:
            total[name] += getattr(each, name)
    return PodCounts(**total)


def sum_resources(resources: Iterable[Resources]) -> Resources:
    """All of them together; a resource that is lent nowhere now is still named."""
    several = list(resources)
    return Resources(
        _sum(each.lent for each in several),
        _sum(each.used for each in several),
        _sum(each.free for each in several),
    )


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    total: dict[str, Quantity] = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total[name] + amount if name in total else amount
    return total
