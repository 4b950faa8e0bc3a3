"""Counting: what the pods on each of the worker's nodes request, ours and others'.

Follows the worker's pods one change at a time and tells whose node may come to offer more or less.
What others request always counts. What ours request counts only beside an offer that it reaches: an
offer never falls below it, and is not touched by less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kubeocean.leasing.amounts import Amounts
from kubeocean.leasing.counted import CountedPod
from kubeocean.leasing.requests import requests_of
from kubeocean.leasing.usage import NodeUsage
from kubeocean.runtime.quantity import ZERO

__all__ = ["Counting"]

_NOTHING = NodeUsage()


class Counting:
    """The usage of every node; `offer` tells what one offers now, None if that is not known."""

    def __init__(
        self,
        is_ours: Callable[[CountedPod], bool],
        on_change: Callable[[str], None],
        *,
        offer: Callable[[str], Amounts | None],
    ) -> None:
        self._is_ours = is_ours
        self._on_change = on_change
        self._offer = offer
        self._nodes: dict[str, NodeUsage] = {}

    def of(self, node: str) -> NodeUsage:
        """The usage of a node; not to be changed."""
        return self._nodes.get(node, _NOTHING)

    def follow(self, old: CountedPod | None, new: CountedPod | None) -> None:
        """A handler for the informer of the worker's pods."""
        if old is not None and (new is None or new.spec.node_name != old.spec.node_name):
            self._drop(old)
        if new is not None:
            self._put(new)

    def _put(self, pod: CountedPod) -> None:
        node = pod.spec.node_name
        usage = self._nodes.setdefault(node, NodeUsage())
        ours = self._is_ours(pod)
        before = usage.ours if ours else {}
        if usage.put(pod.uid, requests_of(pod), ours=ours):
            self._changed(node, (before, usage.ours) if ours else ())

    def _drop(self, pod: CountedPod) -> None:
        node = pod.spec.node_name
        usage = self._nodes.get(node)
        if usage is None:
            return
        ours = self._is_ours(pod)
        before = usage.ours if ours else {}
        if usage.drop(pod.uid):
            self._changed(node, (before, usage.ours) if ours else ())
        if not len(usage):
            del self._nodes[node]

    def _changed(self, node: str, ours: Sequence[Amounts]) -> None:
        """`ours` is what our pods requested before and do now, if only that changed."""
        offer = self._offer(node) if ours else None
        if offer is None or any(_reaches(amounts, offer) for amounts in ours):
            self._on_change(node)


def _reaches(amounts: Amounts, offer: Amounts) -> bool:
    return any(amount >= offer.get(resource, ZERO) for resource, amount in amounts.items())
