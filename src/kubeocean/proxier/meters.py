"""Meters: what a virtual node as a whole has used.

A virtual node is nothing but its pods, so that its use is the sum of theirs. Counters of a node
must not go back when a pod leaves: what it had used until then is kept with the node's own count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kubeocean.proxier.exposition import PodName

__all__ = ["Meter", "Meters"]

_MOST: Final = 10_000  # nodes


@dataclass(slots=True)
class Meter:
    """The count of one node."""

    _departed: float = 0.0
    _last: dict[str, float] = field(default_factory=dict)  # by UID

    def read(self, pods: Iterable[tuple[PodName, float]]) -> float:
        """The count, now that its pods say this."""
        now: dict[str, float] = {}
        for pod, value in pods:
            now[pod.uid] = now.get(pod.uid, 0.0) + value
        for uid, before in self._last.items():
            # A pod that is gone, or that counts from the beginning again.
            if now.get(uid, 0.0) < before:
                self._departed += before
        self._last = now
        return self._departed + sum(now.values())


class Meters:
    """A meter for each node that was looked at."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}

    def of(self, vnode: str) -> Meter:
        meter = self._meters.pop(vnode, None) or Meter()
        self._meters[vnode] = meter
        while len(self._meters) > _MOST:
            del self._meters[next(iter(self._meters))]
        return meter
