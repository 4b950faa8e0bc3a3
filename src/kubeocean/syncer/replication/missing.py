"""The answer of a replicator that cannot give a pod the copy of an object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kubeocean.runtime.objects import Key

__all__ = ["WATCHED_S", "Missing"]

WATCHED_S: Final = 300.0  # how often to retry where a watch reports the change


@dataclass(frozen=True, slots=True)
class Missing:
    """An object that a pod needs and that does not exist, or cannot be replicated.

    `message` names the object and the cause, for people. The pod is enqueued when the object is
    replicated; `retry_s` is the interval of retries for causes that no watch reports.
    """

    kind: str  # ConfigMap, Secret, PersistentVolumeClaim, …
    key: Key  # of the virtual object
    message: str
    retry_s: float = WATCHED_S
    absent: bool = False  # the API server of the computing cluster has no such object
