"""The waves in which kinds are applied and removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.fleet.applier.ordering import (
    LAST_WAVE,
    WAVES,
    apply_order,
    delete_order,
    wave_of,
)

RBAC = "rbac.authorization.k8s.io"


@pytest.mark.parametrize(
    ("wave", "kinds"),
    [
        (0, [("", "Namespace"), ("scheduling.k8s.io", "PriorityClass")]),
        (
            1,
            [
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
            ],
        ),
        (2, [(RBAC, "Role"), (RBAC, "ClusterRole")]),
        (3, [(RBAC, "RoleBinding"), (RBAC, "ClusterRoleBinding")]),
        (
            4,
            [
                ("", "Service"),
                ("apps", "Deployment"),
                ("apps", "StatefulSet"),
                ("apps", "DaemonSet"),
                ("apps", "ReplicaSet"),
                ("", "ReplicationController"),
                ("", "Pod"),
                ("autoscaling", "HorizontalPodAutoscaler"),
                ("batch", "Job"),
                ("batch", "CronJob"),
                ("networking.k8s.io", "Ingress"),
            ],
        ),
        (
            5,
            [
                ("apiregistration.k8s.io", "APIService"),
                ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
                ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
            ],
        ),
        (LAST_WAVE, [("example.com", "Widget"), ("serving.knative.dev", "Service")]),
    ],
)
def test_the_wave_of_a_kind(wave: int, kinds: list[tuple[str, str]]) -> None:
    assert [wave_of(*kind) for kind in kinds] == [wave] * len(kinds)
    if wave < LAST_WAVE:
        assert WAVES[wave] == set(kinds)


KINDS = st.sampled_from(sorted({kind for wave in WAVES for kind in wave} | {("x.io", "Y")}))
MANIFESTS = st.lists(st.tuples(KINDS, st.integers()))


def kind_of(manifest: tuple[tuple[str, str], int]) -> tuple[str, str]:
    return manifest[0]


@given(MANIFESTS)
def test_every_manifest_is_in_one_wave_in_its_order(
    manifests: list[tuple[tuple[str, str], int]],
) -> None:
    waves = apply_order(manifests, kind_of)
    flat = [manifest for wave in waves for manifest in wave]
    assert flat == sorted(manifests, key=lambda each: wave_of(*kind_of(each)))
    assert all(len({wave_of(*kind_of(each)) for each in wave}) == 1 for wave in waves)
    assert delete_order(manifests, kind_of) == waves[::-1]


@given(MANIFESTS)
def test_comparisons_are_one_wave(manifests: list[tuple[tuple[str, str], int]]) -> None:
    waves = apply_order(manifests, kind_of, one_wave=True)
    assert waves == ((tuple(manifests),) if manifests else ())
