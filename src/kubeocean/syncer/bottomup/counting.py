"""Counting: what the pods on each of the worker's nodes request, ours and others'.

Follows the worker's pods one change at a time and tells whose node may come to offer more or less.
Pods that bear our label are cached whole for another reason, and counted from there. A label may
come and go, and then two caches tell of one pod in any order: each is answered for by itself.
What others request always counts. What ours request counts only beside an offer that it reaches: an
offer never falls below it, and is not touched by less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kubeocean.leasing.amounts import Amounts
from kubeocean.leasing.counted import CountedPod
from kubeocean.leasing.requests import requests_of
from kubeocean.leasing.usage import NodeUsage
from kubeocean.runtime.codec import decode_object
from kubeocean.runtime.objects import Object
from kubeocean.runtime.quantity import ZERO
from kubeocean.syncer.podviews import PhysicalPod

__all__ = ["Counting"]

_NOTHING = NodeUsage()
_LABELLED: Final = "labelled/"  # before the UID of a pod that the other cache tells of


class Counting:
    """The usage of every node; `offer` tells what one offers now, None if that is not known."""

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
        """The usage of a node; not to be changed."""
        return self._nodes.get(node, _NOTHING)

    def follow(self, old: CountedPod | None, new: CountedPod | None) -> None:
        """A handler for informers of everybody else's pods."""
        self._move(old, new)

    def follow_labelled(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        """A handler for the informer of pods that bear our label."""
        if old is not None and new is not None and _asks_the_same(old, new):
            return
        there = new is not None and new.spec.node_name
        counted = decode_object(CountedPod, new.raw, keep_raw=False) if new and there else None
        self._move(old, counted, _LABELLED)

    def _move(
        self, old: CountedPod | PhysicalPod | None, new: CountedPod | None, by: str = ""
    ) -> None:
        if old is not None and (new is None or new.spec.node_name != old.spec.node_name):
            self._drop(old, by)
        if new is not None:
            # Of one that was not ours until now, others request less.
            self._put(new, by, others_too=old is not None and not self._is_ours(old))

    def _put(self, pod: CountedPod, by: str, *, others_too: bool) -> None:
        node = pod.spec.node_name
        usage = self._nodes.setdefault(node, NodeUsage())
        ours = self._is_ours(pod)
        before = usage.ours if ours else {}
        if usage.put(by + pod.uid, requests_of(pod), ours=ours):
            self._changed(node, (before, usage.ours) if ours and not others_too else ())

    def _drop(self, pod: CountedPod | PhysicalPod, by: str) -> None:
        node = pod.spec.node_name
        usage = self._nodes.get(node)
        if usage is None:
            return
        ours = self._is_ours(pod)
        before = usage.ours if ours else {}
        if usage.drop(by + pod.uid):
            self._changed(node, (before, usage.ours) if ours else ())
        if not len(usage):
            del self._nodes[node]

    def _changed(self, node: str, ours: Sequence[Amounts]) -> None:
        """`ours` is what our pods requested before and do now, if only that changed."""
        offer = self._offer(node) if ours else None
        if offer is None or any(_reaches(amounts, offer) for amounts in ours):
            self._on_change(node)


def _asks_the_same(old: PhysicalPod, new: PhysicalPod) -> bool:
    """Whether a change cannot be one of what a pod requests, by what is cheap to look at.

    Who is given something else than at first was asked to take it, in another specification. When
    a kubelet has done so is for its status to say: from then on everything is counted. Labels say
    whose it is.
    """
    return (
        _is_as_made(old)
        and _is_as_made(new)
        and old.spec == new.spec
        and old.finished == new.finished
        and old.metadata.labels == new.metadata.labels
    )


def _is_as_made(pod: PhysicalPod) -> bool:
    """Whether its specification is the first one; servers before 1.33 count none. A deletion counts
    as a change of it."""
    return pod.metadata.generation == (2 if pod.deleting else 1)


def _reaches(amounts: Amounts, offer: Amounts) -> bool:
    return any(amount >= offer.get(resource, ZERO) for resource, amount in amounts.items())
