"""Lags: how far each side of a pod is behind the other, as figures.

From the moment in which a cache shows something until the other side has it. Where several share a
binding, each tells of its own pods, from when they are its own.
"""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.clock import Clock
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key
from kubeocean.syncer.parts import WHOLE, Part, of_pod

__all__ = ["PodLags"]

_BUCKETS: Final = (
    0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1, 2.5, 5, 10, 30, 60, 300,
)  # fmt: skip


class PodLags:
    """Of one binding's pods; bounded by the pods that something is due for."""

    def __init__(self, binding: str, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._part: Part = WHOLE
        self._bound: dict[Key, float] = {}
        self._changed: dict[Key, float] = {}
        label = ["cluster_binding"]
        self._create = metrics.histogram(
            "kubeocean_pod_create_lag_seconds",
            "From a pod that is bound above until it is created below",
            label,
            _BUCKETS,
        ).labels(binding)
        self._status = metrics.histogram(
            "kubeocean_pod_status_lag_seconds",
            "From a change of a pod below until it is shown above",
            label,
            _BUCKETS,
        ).labels(binding)

    def share(self, part: Part) -> None:
        """Tell of the pods of this part only; before anything runs."""
        self._part = part

    def bound(self, key: Key) -> None:
        """A virtual pod came into sight."""
        if self._part.owns(of_pod(key)):
            self._bound.setdefault(key, self._clock.monotonic())

    def created(self, key: Key) -> None:
        since = self._bound.pop(key, None)
        if since is not None:
            self._create.observe(self._clock.monotonic() - since)

    def changed(self, key: Key) -> None:
        """A physical pod is another one than before."""
        if self._part.owns(of_pod(key)):
            self._changed.setdefault(key, self._clock.monotonic())

    def shown(self, key: Key, *, written: bool) -> None:
        """The virtual pod shows it; or nothing of it concerned the virtual pod."""
        since = self._changed.pop(key, None)
        if since is not None and written:
            self._status.observe(self._clock.monotonic() - since)

    def runs(self, key: Key) -> None:
        """It was created before we looked."""
        self._bound.pop(key, None)

    def forget(self, key: Key) -> None:
        """It is gone."""
        self._bound.pop(key, None)
        self._changed.pop(key, None)
