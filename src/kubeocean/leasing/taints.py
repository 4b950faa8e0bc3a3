"""Taints and tolerations: whether a pod tolerates a taint of its node, and for how long.

The rules are those of `ToleratesTaint` (k8s.io/api/core/v1/toleration.go) and, for the time, of
Kubernetes' own taint eviction (kubernetes/pkg/controller/tainteviction), read at v1.34: of several
tolerations that match a taint the first one counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

__all__ = ["FOREVER", "NO_EXECUTE", "NO_SCHEDULE", "Toleration", "tolerated_s", "tolerates"]

NO_EXECUTE: Final = "NoExecute"
NO_SCHEDULE: Final = "NoSchedule"
FOREVER: Final = float("inf")


class Toleration(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Toleration of a pod, for one taint or for many."""

    key: str = ""  # "": any key
    operator: str = ""  # "": Equal
    value: str = ""
    effect: str = ""  # "": any effect
    toleration_seconds: int | None = None  # None: for ever


class _Taint(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def effect(self) -> str: ...


def tolerates(toleration: Toleration, taint: _Taint) -> bool:
    """Whether a toleration matches a taint, for any duration."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    # Gt and Lt, which newer API servers have behind a feature gate, compare numbers; the values of
    # Kubeocean's taints are no numbers.
    return toleration.operator == "Exists"


def tolerated_s(tolerations: Iterable[Toleration], taint: _Taint) -> float:
    """Return for how many seconds after a taint took effect a pod with these tolerations may stay;
    `FOREVER` if unlimited."""
    for toleration in tolerations:
        if tolerates(toleration, taint):
            seconds = toleration.toleration_seconds
            return FOREVER if seconds is None else max(seconds, 0)
    return 0
