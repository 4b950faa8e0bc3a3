"""Order of kinds: which manifests are applied before which others, and removed after them.

Manifests are applied in waves; those of one wave at the same time. A failure in a wave does not
stop the next. Left-overs are removed in the reverse order, so that objects that depend on others
are removed first. Kinds that are not listed are applied last, custom resources among them, after
the definitions that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

__all__ = ["LAST_WAVE", "WAVES", "apply_order", "delete_order", "wave_of"]

T = TypeVar("T")

WAVES: Final[tuple[frozenset[tuple[str, str]], ...]] = (
    frozenset({("", "Namespace"), ("scheduling.k8s.io", "PriorityClass")}),
    frozenset(
        {
            ("networking.k8s.io", "NetworkPolicy"),
            ("", "ResourceQuota"),
            ("", "LimitRange"),
            ("policy", "PodSecurityPolicy"),
            ("policy", "PodDisruptionBudget"),
            ("", "ServiceAccount"),
            ("", "Secret"),
            ("", "ConfigMap"),
            ("storage.k8s.io", "StorageClass"),
            ("", "PersistentVolume"),
            ("", "PersistentVolumeClaim"),
            ("apiextensions.k8s.io", "CustomResourceDefinition"),
            ("networking.k8s.io", "IngressClass"),
        }
    ),
    frozenset(
        {
            ("rbac.authorization.k8s.io", "Role"),
            ("rbac.authorization.k8s.io", "ClusterRole"),
        }
    ),
    frozenset(
        {
            ("rbac.authorization.k8s.io", "RoleBinding"),
            ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
        }
    ),
    frozenset(
        {
            ("", "Service"),
            ("", "Pod"),
            ("", "ReplicationController"),
            ("apps", "DaemonSet"),
            ("apps", "Deployment"),
            ("apps", "ReplicaSet"),
            ("apps", "StatefulSet"),
            ("autoscaling", "HorizontalPodAutoscaler"),
            ("batch", "CronJob"),
            ("batch", "Job"),
            ("networking.k8s.io", "Ingress"),
        }
    ),
    frozenset(
        {
            ("apiregistration.k8s.io", "APIService"),
            ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
            ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
        }
    ),
)
LAST_WAVE: Final = 999

_WAVE_OF: Final = {kind: number for number, wave in enumerate(WAVES) for kind in wave}


def wave_of(group: str, kind: str) -> int:
    """Return the number of the wave in which a kind is applied."""
    return _WAVE_OF.get((group, kind), LAST_WAVE)


def apply_order(
    manifests: Iterable[T], group_kind: Callable[[T], tuple[str, str]], *, one_wave: bool = False
) -> tuple[tuple[T, ...], ...]:
    """Sort manifests into waves; inside a wave they keep their order.

    `one_wave` puts all manifests into one wave: comparisons (ReportDiff) do not depend on an order.
    """
    waves: dict[int, list[T]] = {}
    for manifest in manifests:
        number = 0 if one_wave else wave_of(*group_kind(manifest))
        waves.setdefault(number, []).append(manifest)
    return tuple(tuple(waves[number]) for number in sorted(waves))


def delete_order(
    left_overs: Iterable[T], group_kind: Callable[[T], tuple[str, str]]
) -> tuple[tuple[T, ...], ...]:
    """Sort left-overs into the waves in which they are removed: those applied last come first."""
    return tuple(reversed(apply_order(left_overs, group_kind)))
