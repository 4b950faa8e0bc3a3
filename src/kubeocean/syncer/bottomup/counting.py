"""Counting: what the pods on each of the worker's nodes request, ours and others'.

Follows the worker's pods one change at a time and tells whose node came to offer more or less.
"""

from __future__ import annotations

from collections.abc import Callable

from kubeocean.api.group import Domain
from kubeocean.leasing.counted import CountedPod
from kubeocean.leasing.requests import requests_of
from kubeocean.leasing.usage import NodeUsage

__all__ = ["Counting"]

_NOTHING = NodeUsage()


class Counting:
    """The usage of every node."""

    def __init__(self, domain: Domain, on_change: Callable[[str], None]) -> None:
        self._domain = domain
        self._on_change = on_change
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
        ours = pod.labels.get(self._domain.managed_by) == self._domain.product
        if usage.put(pod.uid, requests_of(pod), ours=ours):
            self._on_change(node)

    def _drop(self, pod: CountedPod) -> None:
        node = pod.spec.node_name
        usage = self._nodes.get(node)
        if usage is None:
            return
        if usage.drop(pod.uid):
            self._on_change(node)
        if not len(usage):
            del self._nodes[node]
