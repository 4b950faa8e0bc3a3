"""Requests of pods on each of the worker's nodes, of the binding's pods and of other pods.

The tracker follows the worker's pods one change at a time, and calls a handler for a node whose
offer may change. Pods with our label are counted from the cache that holds them whole. A label may
be added or removed; then two caches have events of one pod in any order, and each cache's count is
kept apart. A change of other pods' requests always counts. A change of our pods' requests counts
only if they reach the offer: otherwise the offer does not depend on them (`leasing.capacity`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kubeocean.leasing.amounts import Amounts
from kubeocean.leasing.capacity import reaches_offer
from kubeocean.leasing.requests import CountedPod, NodeUsage, requests_of
from kubeocean.runtime.objects import Object, decode_object
from kubeocean.syncer.pods.views import PhysicalPod

__all__ = ["UsageTracker"]

_NOTHING = NodeUsage()
_LABELLED: Final = "labelled/"  # before the UID of a pod with our label


class UsageTracker:
    """The requests of pods on each worker node; `offer` returns a node's offer, None if unknown."""

    def __init__(
        self,
        is_ours: Callable[[Object], bool],
        on_change: Callable[[str], None],
        *,
        offer: Callable[[str], Amounts | None],
    ) -> None:
        self._is_ours = is_ours
        self._on_change = on_change
        self._offer = offer
        self._nodes: dict[str, NodeUsage] = {}

    def of(self, node: str) -> NodeUsage:
        """Return the usage of a node, which the caller must not change."""
        return self._nodes.get(node, _NOTHING)

    def follow(self, old: CountedPod | None, new: CountedPod | None) -> None:
        """Count a changed pod; a handler for the informers of pods without our label."""
        self._move(old, new)

    def follow_labelled(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        """Count a changed pod; a handler for the informer of pods with our label."""
        if old is not None and new is not None and _requests_the_same(old, new):
            return
        bound = new is not None and new.spec.node_name
        counted = decode_object(CountedPod, new.raw, keep_raw=False) if new and bound else None
        self._move(old, counted, _LABELLED)

    def _move(
        self, old: CountedPod | PhysicalPod | None, new: CountedPod | None, prefix: str = ""
    ) -> None:
        if old is not None and (new is None or new.spec.node_name != old.spec.node_name):
            self._drop(old, prefix)
        if new is not None:
            # A pod that was not ours until now lowers the requests of others, too.
            self._put(new, prefix, others_too=old is not None and not self._is_ours(old))

    def _put(self, pod: CountedPod, prefix: str, *, others_too: bool) -> None:
        node = pod.spec.node_name
        usage = self._nodes.setdefault(node, NodeUsage())
        ours = self._is_ours(pod)
        before = usage.ours if ours else {}
        if usage.put(prefix + pod.uid, requests_of(pod), ours=ours):
            self._changed(node, (before, usage.ours) if ours and not others_too else ())

    def _drop(self, pod: CountedPod | PhysicalPod, prefix: str) -> None:
        node = pod.spec.node_name
        usage = self._nodes.get(node)
        if usage is None:
            return
        ours = self._is_ours(pod)
        before = usage.ours if ours else {}
        if usage.drop(prefix + pod.uid):
            self._changed(node, (before, usage.ours) if ours else ())
        if not len(usage):
            del self._nodes[node]

    def _changed(self, node: str, ours: Sequence[Amounts]) -> None:
        """Call the handler for a node whose offer may change.

        `ours` are our pods' requests before and now, if only these changed.
        """
        offer = self._offer(node) if ours else None
        if offer is None or any(reaches_offer(amounts, offer) for amounts in ours):
            self._on_change(node)


def _requests_the_same(old: PhysicalPod, new: PhysicalPod) -> bool:
    """Whether a pod's requests cannot have changed, by fields that are cheap to compare.

    Only a new spec resizes a pod, and after that the pod's status shows when the kubelet has done
    so: from then on every change counts as a possible change of requests. Labels decide which
    informer counts the pod.
    """
    return (
        _has_first_spec(old)
        and _has_first_spec(new)
        and old.spec == new.spec
        and old.finished == new.finished
        and old.metadata.labels == new.metadata.labels
    )


def _has_first_spec(pod: PhysicalPod) -> bool:
    """Whether a pod's spec never changed, by the generation; a deletion increases that by one.

    API servers before 1.33 set no generation on pods.
    """
    return pod.metadata.generation == (2 if pod.deleting else 1)
