"""Metadata of physical pods: the virtual pod's, and whose it is."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forging import OWNERSHIP, context_for, vpod
from kubeocean.api.group import DEFAULT, TAPESTRY
from kubeocean.runtime.labels import check_label_value
from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.metadata import Expected
from kubeocean.syncer.forge.podcontext import Refused, Workload
from kubeocean.syncer.forge.podmetadata import (
    digest,
    forge_metadata,
    metadata_changes,
    recorded,
    workload_of,
)

RECORD = {"images": "1", "resources": "2", "tolerations": "3"}
LIMIT = 256 * 1024
TEXTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"))


def forged(pod: Json, **context: Any) -> Json:
    return forge_metadata(pod, context_for(pod, **context), RECORD)


def changed(pod: Json, ppod: Json, record: dict[str, str] = RECORD) -> Json:
    return metadata_changes(pod, {"metadata": ppod}, context_for(pod), record)


def patched(now: dict[str, str], change: dict[str, str | None]) -> dict[str, str]:
    then = {**now, **change}
    return {key: value for key, value in then.items() if value is not None}


def apply(ppod: Json, change: Json) -> Json:
    return ppod | {
        key: patched(ppod.get(key) or {}, change.get(key) or {})
        for key in ("labels", "annotations")
    }


# --- a new pod


def test_labels_are_the_virtual_pods_and_ours() -> None:
    pod = vpod(labels={"app": "web", DEFAULT.managed_by: "somebody"})
    assert forged(pod)["labels"] == {
        "app": "web",
        **OWNERSHIP,
        "kubeocean.io/virtual-namespace": "team",
        "kubeocean.io/workload-type": "pod",
    }


def test_annotations_are_the_virtual_pods_and_whose_it_is() -> None:
    above = {
        "note": "x",
        "kubeocean.io/physical-pod-namespace": "a",
        "kubeocean.io/physical-pod-name": "b",
        "kubeocean.io/physical-pod-uid": "c",
        "kubeocean.io/last-sync-time": "d",
        "kubeocean.io/expected-metadata": "e",
        "kubeocean.io/virtual-pod-uid": "somebody",
    }
    pod = vpod(labels={"app": "web"}, annotations=above)
    annotations = forged(pod)["annotations"]
    remembered = json.loads(base64.b64decode(annotations.pop("kubeocean.io/expected-metadata")))
    assert json.loads(annotations.pop("kubeocean.io/expected-spec")) == RECORD
    assert annotations == {
        "note": "x",
        "kubeocean.io/virtual-pod-namespace": "team",
        "kubeocean.io/virtual-pod-name": "web",
        "kubeocean.io/virtual-pod-uid": pod["metadata"]["uid"],
        "kubeocean.io/virtual-node-name": "vnode-w1-n1",
        "kubeocean.io/service-account": "robot",
    }
    kept = {"note": "x", "kubeocean.io/virtual-pod-uid": "somebody"}
    assert remembered == {"labels": {"app": "web"}, "annotations": kept}


def test_a_pod_is_not_taken_for_a_file_of_the_workers_kubelet() -> None:
    pod = vpod(annotations={"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "x"})
    assert not [k for k in forged(pod)["annotations"] if k.startswith("kubernetes.io/config.")]


def test_keys_are_those_of_the_domain() -> None:
    meta = forged(vpod(), domain=TAPESTRY, ownership={})
    assert all(key.startswith("tapestry.io/") for key in (*meta["labels"], *meta["annotations"]))


def size(annotations: dict[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in annotations.items())


def test_annotations_that_do_not_fit_twice_are_remembered_by_their_keys() -> None:
    pod = vpod(annotations={"large": "x" * (LIMIT // 2)})
    annotations = forged(pod)["annotations"]
    assert size(annotations) <= LIMIT
    assert annotations["large"] == pod["metadata"]["annotations"]["large"]
    assert Expected.decode(annotations[DEFAULT.expected_metadata]).annotations == {"large": ""}
    ppod = forged(pod)
    assert changed(pod, ppod) == {}
    gone = changed(vpod(), ppod)["annotations"]
    assert gone["large"] is None


def test_annotations_that_leave_no_room_for_ours_are_refused() -> None:
    pod = vpod(annotations={"large": "x" * (LIMIT - 5)})
    with pytest.raises(Refused, match=r"metadata\.annotations: .*over 262144 bytes"):
        forged(pod)


# --- workloads


def owner(kind: str, name: str) -> list[Json]:
    return [{"kind": kind, "name": name}, {"kind": "Other", "name": "x"}]


WORKLOADS: list[tuple[Json, Workload]] = [
    (vpod(), Workload("pod")),
    (vpod(owners=[]), Workload("pod")),
    (vpod(owners=owner("StatefulSet", "db")), Workload("statefulset", "db")),
    (vpod(owners=owner("Job", "j")), Workload("job", "j")),
    (vpod(owners=owner("ReplicaSet", "web-7f")), Workload("replicaset", "web-7f")),
    (
        vpod(owners=owner("ReplicaSet", "my-web-7f"), labels={"pod-template-hash": "7f"}),
        Workload("deployment", "my-web"),
    ),
    (
        vpod(owners=owner("ReplicaSet", "web-7f"), labels={"pod-template-hash": "8a"}),
        Workload("replicaset", "web-7f"),
    ),
]


@pytest.mark.parametrize(("pod", "workload"), WORKLOADS)
def test_a_workload_is_told_by_its_pod(pod: Json, workload: Workload) -> None:
    assert workload_of(pod) == workload
    labels = forged(pod)["labels"]
    assert labels[DEFAULT.workload_type] == workload.type
    assert labels.get(DEFAULT.workload_name, "") == workload.name


def test_who_knows_the_workload_better_says_so() -> None:
    labels = forged(vpod(), workload=Workload("rollout", "r"))["labels"]
    assert labels[DEFAULT.workload_type] == "rollout"
    assert labels[DEFAULT.workload_name] == "r"


def test_a_long_name_of_an_owner_fits_into_a_label() -> None:
    name = "a." * 126 + "a"
    label = forged(vpod(owners=owner("Job", name)))["labels"][DEFAULT.workload_name]
    check_label_value(label)
    assert label.startswith("a.a.a")


# --- a pod that is there


def test_a_pod_that_is_as_forged_is_left_alone() -> None:
    pod = vpod(labels={"a": "1"}, annotations={"b": "2"})
    assert changed(pod, forged(pod)) == {}


@given(above=TEXTS, later=TEXTS, below=TEXTS)
def test_what_changes_above_changes_below_and_what_others_put_there_stays(
    above: dict[str, str], later: dict[str, str], below: dict[str, str]
) -> None:
    theirs = {f"their-{key}": value for key, value in below.items()}
    first = forged(vpod(labels=above, annotations=above))
    ppod = apply(first, {"labels": theirs, "annotations": theirs})
    pod = vpod(labels=later, annotations=later)
    then = apply(ppod, changed(pod, ppod))
    fresh = forged(pod)
    assert then["labels"] == fresh["labels"] | theirs
    assert then["annotations"] == fresh["annotations"] | theirs
    assert changed(pod, then) == {}


def test_a_pod_of_an_earlier_implementation_is_taken_over_with_one_patch() -> None:
    text = base64.b64encode(b'{"annotations":{"old":"1"},"labels":{"app":"web"}}').decode()
    ppod: Json = {
        "labels": {"app": "web", "kubeocean.io/managed-by": "kubeocean", "theirs": "x"},
        "annotations": {"old": "1", "kubeocean.io/expected-metadata": text, "cni": "x"},
    }
    pod = vpod(labels={"app": "web"}, annotations={"old": "1"})
    change = changed(pod, ppod)
    assert "kubeocean.io/expected-metadata" not in change["annotations"]
    then = apply(ppod, change)
    assert then["labels"] == forged(pod)["labels"] | {"theirs": "x"}
    assert then["annotations"]["cni"] == "x"
    assert changed(pod, then) == {}

    renamed = vpod(labels={"app": "api"})
    then = apply(then, changed(renamed, then))
    assert then["labels"]["app"] == "api"
    assert "old" not in then["annotations"]


def test_where_nothing_is_remembered_nothing_is_taken_away() -> None:
    pod = vpod(labels={"new": "1"})
    change = changed(pod, {"labels": {"old": "1"}, "annotations": {}})
    assert change["labels"]["new"] == "1"
    assert "old" not in change["labels"]
    assert None not in (*change["labels"].values(), *change["annotations"].values())


# --- what is remembered of the spec


def test_a_record_is_read_back() -> None:
    ppod = {"metadata": forged(vpod())}
    assert recorded(ppod, DEFAULT) == RECORD


@pytest.mark.parametrize("text", ["", "x", "[]", '{"images": 1}'])
def test_a_record_that_is_none_is_none(text: str) -> None:
    assert recorded({"metadata": {"annotations": {DEFAULT.expected_spec: text}}}, DEFAULT) is None
    assert recorded({"metadata": {}}, DEFAULT) is None


def test_another_record_is_written() -> None:
    pod = vpod()
    change = changed(pod, forged(pod), RECORD | {"images": "9"})
    assert change.keys() == {"annotations"}
    assert change["annotations"].keys() == {DEFAULT.expected_spec}


def test_equal_parts_have_equal_digests() -> None:
    assert digest({"a": 1, "b": [1]}) == digest({"b": [1], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
