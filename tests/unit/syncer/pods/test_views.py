"""Views of pods before their kubelet has reported a status."""

from __future__ import annotations

import pytest

from kubeocean.runtime.objects import Json, decode_object, encode
from kubeocean.syncer.pods.views import PhysicalPod

SCHEDULED = {"type": "PodScheduled", "status": "True"}


def pod(*conditions: Json, phase: str = "Pending", **metadata: str) -> PhysicalPod:
    status = {"phase": phase, "conditions": list(conditions)}
    return decode_object(
        PhysicalPod, encode({"metadata": metadata, "status": status}), keep_raw=False
    )


@pytest.mark.parametrize(
    ("ppod", "only_scheduled"),
    [
        (pod(), True),
        (pod(SCHEDULED), True),
        (pod(SCHEDULED | {"status": "False"}), False),
        (pod(SCHEDULED, {"type": "Ready", "status": "False"}), False),
        (pod(phase="Running"), False),
        (pod(SCHEDULED, deletionTimestamp="2026-01-01T00:00:00Z"), False),
    ],
)
def test_a_pod_with_only_a_node_has_only_the_scheduled_condition(
    ppod: PhysicalPod, only_scheduled: bool
) -> None:
    assert ppod.has_only_scheduled is only_scheduled
