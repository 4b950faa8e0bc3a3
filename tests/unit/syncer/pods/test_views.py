"""Views of pods before their kubelet has reported a status, and of versions without news."""

from __future__ import annotations

import pytest

from kubeocean.runtime.objects import Json, decode_object, encode
from kubeocean.syncer.pods.views import PhysicalPod, has_no_news

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


FIRST: Json = {
    "metadata": {"uid": "p", "resourceVersion": "1", "labels": {"a": "1"}},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running", "containerStatuses": [{"name": "app", "restartCount": 0}]},
}
DELETED = {"resourceVersion": "2", "deletionTimestamp": "2026-01-01T00:00:00Z"}
RESTARTED = {"phase": "Running", "containerStatuses": [{"name": "app", "restartCount": 1}]}


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"metadata": FIRST["metadata"] | DELETED}, True),
        ({"metadata": FIRST["metadata"] | {"labels": {"a": "2"}}}, False),
        ({"metadata": FIRST["metadata"] | {"annotations": {"a": "1"}}}, False),
        ({"metadata": FIRST["metadata"] | {"uid": "q"}}, False),
        ({"spec": {"nodeName": "n2"}}, False),
        ({"status": FIRST["status"] | {"phase": "Failed"}}, False),
        ({"status": RESTARTED}, False),
        ({"status": {}}, False),
    ],
)
def test_a_version_has_no_news_if_status_labels_and_annotations_are_the_same(
    changed: Json, same: bool
) -> None:
    old, new = (
        decode_object(PhysicalPod, encode(each), keep_raw=True) for each in (FIRST, FIRST | changed)
    )
    assert has_no_news(old, new) is same
