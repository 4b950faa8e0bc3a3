"""What a pod has to wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kubeocean.runtime.objects import Key

__all__ = ["TOLD_S", "Missing"]

TOLD_S: Final = 300.0  # what we are told of need not be looked for


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that a pod cannot do without is not there, or cannot be copied.

    `message` says which and why, for people. The pod is looked at again when that changes; looking
    after `retry_s` seconds is only for what nobody tells.
    """

    kind: str  # ConfigMap, Secret, PersistentVolumeClaim, …
    key: Key  # of the virtual object
    message: str
    retry_s: float = TOLD_S
    absent: bool = False  # the computing cluster's server says that there is none
