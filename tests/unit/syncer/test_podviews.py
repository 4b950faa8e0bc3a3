"""What is known of a pod before its kubelet says something."""

from __future__ import annotations

import pytest

from kubeocean.runtime.codec import decode_object, encode
from kubeocean.runtime.objects import Json
from kubeocean.syncer.podviews import PhysicalPod

SCHEDULED = {"type": "PodScheduled", "status": "True"}


def pod(*conditions: Json, phase: str = "Pending", **metadata: str) -> PhysicalPod:
    status = {"phase": phase, "conditions": list(conditions)}
    return decode_object(
        PhysicalPod, encode({"metadata": metadata, "status": status}), keep_raw=False
    )


@pytest.mark.parametrize(
    ("ppod", "untold"),
    [
        (pod(), True),
        (pod(SCHEDULED), True),
        (pod(SCHEDULED | {"status": "False"}), False),
        (pod(SCHEDULED, {"type": "Ready", "status": "False"}), False),
        (pod(phase="Running"), False),
        (pod(SCHEDULED, deletionTimestamp="2026-01-01T00:00:00Z"), False),
    ],
)
def test_a_node_is_no_news_but_all_else_is(ppod: PhysicalPod, untold: bool) -> None:
    assert ppod.is_untold is untold
