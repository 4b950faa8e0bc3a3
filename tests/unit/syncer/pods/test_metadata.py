"""Metadata of physical pods, and the part of it that virtual pods show."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.group import DEFAULT, TAPESTRY
from kubeocean.runtime.objects import Json
from kubeocean.runtime.selectors import check_label_value
from kubeocean.syncer.nodes.metadata import Expected
from kubeocean.syncer.pods.forge_context import OwnerWorkload, Refused
from kubeocean.syncer.pods.metadata import (
    digest,
    forge_metadata,
    is_copied,
    location,
    metadata_changes,
    recorded_spec,
    shown_metadata,
    users_own,
    workload_of,
)
from support.forge_inputs import OWNERSHIP, context_for, vpod

RECORD = {"images": "1", "resources": "2", "tolerations": "3"}
LIMIT = 256 * 1024
TEXTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"))


def forged(pod: Json, **context: Any) -> Json:
    return forge_metadata(pod, context_for(pod, **context), RECORD)


def changed(pod: Json, ppod: Json, record: dict[str, str] = RECORD) -> Json:
    return metadata_changes(pod, {"metadata": ppod}, context_for(pod), record)


def patched(now: dict[str, str], change: dict[str, str | None]) -> dict[str, str]:
    updated = {**now, **change}
    return {key: value for key, value in updated.items() if value is not None}


def apply(ppod: Json, change: Json) -> Json:
    return ppod | {
        key: patched(ppod.get(key) or {}, change.get(key) or {})
        for key in ("labels", "annotations")
    }


# --- a new pod


def test_labels_are_the_virtual_pods_and_ours() -> None:
    pod = vpod(labels={"app": "web", DEFAULT.managed_by: "other"})
    assert forged(pod)["labels"] == {
        "app": "web",
        **OWNERSHIP,
        "kubeocean.io/virtual-namespace": "team",
        "kubeocean.io/workload-type": "pod",
    }


def test_annotations_are_the_virtual_pods_and_its_identity() -> None:
    annotations = {
        "note": "x",
        "kubeocean.io/physical-pod-namespace": "a",
        "kubeocean.io/physical-pod-name": "b",
        "kubeocean.io/physical-pod-uid": "c",
        "kubeocean.io/last-sync-time": "d",
        "kubeocean.io/expected-metadata": "e",
        "kubeocean.io/virtual-pod-uid": "other",
    }
    pod = vpod(labels={"app": "web"}, annotations=annotations)
    annotations = forged(pod)["annotations"]
    recorded = json.loads(base64.b64decode(annotations.pop("kubeocean.io/expected-metadata")))
    assert json.loads(annotations.pop("kubeocean.io/expected-spec")) == RECORD
    assert annotations == {
        "note": "x",
        "kubeocean.io/virtual-pod-namespace": "team",
        "kubeocean.io/virtual-pod-name": "web",
        "kubeocean.io/virtual-pod-uid": pod["metadata"]["uid"],
        "kubeocean.io/virtual-node-name": "vnode-w1-n1",
        "kubeocean.io/service-account": "robot",
    }
    kept = {"note": "x", "kubeocean.io/virtual-pod-uid": "other"}
    assert recorded == {"labels": {"app": "web"}, "annotations": kept}


def test_a_pod_is_not_taken_for_a_file_of_the_workers_kubelet() -> None:
    pod = vpod(annotations={"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "x"})
    assert not [k for k in forged(pod)["annotations"] if k.startswith("kubernetes.io/config.")]


def test_keys_are_those_of_the_domain() -> None:
    meta = forged(vpod(), domain=TAPESTRY, ownership_labels={})
    assert all(key.startswith("tapestry.io/") for key in (*meta["labels"], *meta["annotations"]))


def size(annotations: dict[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in annotations.items())


def test_annotations_that_do_not_fit_twice_are_recorded_by_their_keys() -> None:
    pod = vpod(annotations={"large": "x" * (LIMIT // 2)})
    annotations = forged(pod)["annotations"]
    assert size(annotations) <= LIMIT
    assert annotations["large"] == pod["metadata"]["annotations"]["large"]
    assert Expected.decode(annotations[DEFAULT.expected_metadata]).annotations == {"large": ""}
    ppod = forged(pod)
    assert changed(pod, ppod) == {}
    gone = changed(vpod(), ppod)["annotations"]
    assert gone["large"] is None


def test_annotations_that_do_not_fit_beside_ours_are_refused() -> None:
    pod = vpod(annotations={"large": "x" * (LIMIT - 5)})
    with pytest.raises(Refused, match=r"metadata\.annotations: .*more than 262144 bytes"):
        forged(pod)


# --- workloads


def owner(kind: str, name: str) -> list[Json]:
    return [{"kind": kind, "name": name}, {"kind": "Other", "name": "x"}]


WORKLOADS: list[tuple[Json, OwnerWorkload]] = [
    (vpod(), OwnerWorkload("pod")),
    (vpod(owners=[]), OwnerWorkload("pod")),
    (vpod(owners=owner("StatefulSet", "db")), OwnerWorkload("statefulset", "db")),
    (vpod(owners=owner("Job", "j")), OwnerWorkload("job", "j")),
    (vpod(owners=owner("ReplicaSet", "web-7f")), OwnerWorkload("replicaset", "web-7f")),
    (
        vpod(owners=owner("ReplicaSet", "my-web-7f"), labels={"pod-template-hash": "7f"}),
        OwnerWorkload("deployment", "my-web"),
    ),
    (
        vpod(owners=owner("ReplicaSet", "web-7f"), labels={"pod-template-hash": "8a"}),
        OwnerWorkload("replicaset", "web-7f"),
    ),
]


@pytest.mark.parametrize(("pod", "workload"), WORKLOADS)
def test_the_workload_of_a_pod_follows_from_its_first_owner(
    pod: Json, workload: OwnerWorkload
) -> None:
    assert workload_of(pod) == workload
    labels = forged(pod)["labels"]
    assert labels[DEFAULT.workload_type] == workload.type
    assert labels.get(DEFAULT.workload_name, "") == workload.name


def test_a_workload_in_the_context_takes_precedence() -> None:
    labels = forged(vpod(), workload=OwnerWorkload("rollout", "r"))["labels"]
    assert labels[DEFAULT.workload_type] == "rollout"
    assert labels[DEFAULT.workload_name] == "r"


def test_a_long_name_of_an_owner_fits_into_a_label() -> None:
    name = "a." * 126 + "a"
    label = forged(vpod(owners=owner("Job", name)))["labels"][DEFAULT.workload_name]
    check_label_value(label)
    assert label.startswith("a.a.a")


# --- an existing pod


def test_metadata_that_is_as_forged_needs_no_patch() -> None:
    pod = vpod(labels={"a": "1"}, annotations={"b": "2"})
    assert changed(pod, forged(pod)) == {}


@given(earlier=TEXTS, later=TEXTS, foreign=TEXTS)
def test_changes_of_the_virtual_pod_are_applied_and_foreign_entries_stay(
    earlier: dict[str, str], later: dict[str, str], foreign: dict[str, str]
) -> None:
    theirs = {f"their-{key}": value for key, value in foreign.items()}
    first = forged(vpod(labels=earlier, annotations=earlier))
    ppod = apply(first, {"labels": theirs, "annotations": theirs})
    pod = vpod(labels=later, annotations=later)
    updated = apply(ppod, changed(pod, ppod))
    fresh = forged(pod)
    assert updated["labels"] == fresh["labels"] | theirs
    assert updated["annotations"] == fresh["annotations"] | theirs
    assert changed(pod, updated) == {}


def test_a_pod_of_an_earlier_implementation_is_taken_over_with_one_patch() -> None:
    text = base64.b64encode(b'{"annotations":{"old":"1"},"labels":{"app":"web"}}').decode()
    ppod: Json = {
        "labels": {"app": "web", "kubeocean.io/managed-by": "kubeocean", "theirs": "x"},
        "annotations": {"old": "1", "kubeocean.io/expected-metadata": text, "cni": "x"},
    }
    pod = vpod(labels={"app": "web"}, annotations={"old": "1"})
    change = changed(pod, ppod)
    assert "kubeocean.io/expected-metadata" not in change["annotations"]
    updated = apply(ppod, change)
    assert updated["labels"] == forged(pod)["labels"] | {"theirs": "x"}
    assert updated["annotations"]["cni"] == "x"
    assert changed(pod, updated) == {}

    renamed = vpod(labels={"app": "api"})
    updated = apply(updated, changed(renamed, updated))
    assert updated["labels"]["app"] == "api"
    assert "old" not in updated["annotations"]


def test_without_a_record_no_entry_is_removed() -> None:
    pod = vpod(labels={"new": "1"})
    change = changed(pod, {"labels": {"old": "1"}, "annotations": {}})
    assert change["labels"]["new"] == "1"
    assert "old" not in change["labels"]
    assert None not in (*change["labels"].values(), *change["annotations"].values())


# --- records of the spec


def test_a_record_is_read_back() -> None:
    ppod = {"metadata": forged(vpod())}
    assert recorded_spec(ppod, DEFAULT) == RECORD


@pytest.mark.parametrize("text", ["", "x", "[]", '{"images": 1}'])
def test_an_invalid_record_is_none(text: str) -> None:
    assert (
        recorded_spec({"metadata": {"annotations": {DEFAULT.expected_spec: text}}}, DEFAULT) is None
    )
    assert recorded_spec({"metadata": {}}, DEFAULT) is None


def test_a_changed_record_is_written() -> None:
    pod = vpod()
    change = changed(pod, forged(pod), RECORD | {"images": "9"})
    assert change.keys() == {"annotations"}
    assert change["annotations"].keys() == {DEFAULT.expected_spec}


def test_equal_parts_have_equal_digests() -> None:
    assert digest({"a": 1, "b": [1]}) == digest({"b": [1], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


# --- metadata of the physical pod on the virtual pod

MAPPING = {
    DEFAULT.physical_pod_namespace: "mount",
    DEFAULT.physical_pod_name: "web-1",
    DEFAULT.physical_pod_uid: "p1",
}
MARK = {DEFAULT.managed_by: DEFAULT.product}


def virtual(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
) -> Json:
    meta = {"name": "web", "namespace": "team", "labels": labels, "annotations": annotations}
    return {"metadata": meta}


def physical(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    *,
    applied: Expected | None = None,
) -> Json:
    ours = {
        DEFAULT.virtual_pod_uid: "u1",
        DEFAULT.expected_metadata: (applied or Expected()).encode(),
    }
    meta = {
        "name": "web-1",
        "namespace": "mount",
        "uid": "p1",
        "labels": (labels or {})
        | MARK
        | {DEFAULT.workload_type: "pod", DEFAULT.cluster_binding: "b"},
        "annotations": (annotations or {}) | ours,
    }
    return {"metadata": meta}


def with_patch(pod: Json, patch: Json) -> Json:
    meta: Json = dict(pod["metadata"])
    for name in ("labels", "annotations"):
        texts = (meta.get(name) or {}) | patch.get(name, {})
        meta[name] = {k: v for k, v in texts.items() if v is not None}
    return {"metadata": meta}


def test_the_first_patch_names_the_physical_pod() -> None:
    pod = virtual({"app": "web"}, {"note": "x"})
    patch = shown_metadata(pod, physical({"app": "web"}, applied=Expected({"app": "web"})), DEFAULT)
    assert patch == {"labels": MARK, "annotations": MAPPING}
    updated = with_patch(pod, patch)
    assert (
        shown_metadata(updated, physical({"app": "web"}, applied=Expected({"app": "web"})), DEFAULT)
        == {}
    )
    assert users_own(updated, DEFAULT)["metadata"]["labels"] == {"app": "web"}


def test_entries_that_a_trusted_worker_adds_are_shown_and_updated() -> None:
    pod = virtual({"app": "web"})
    one = physical({"mesh": "on"}, {"cni/ip": "1", "prometheus.io/scrape": "true"})
    shown = with_patch(pod, shown_metadata(pod, one, DEFAULT, trusts_fully=True))
    assert shown["metadata"]["labels"] == {"app": "web", "mesh": "on"} | MARK
    assert shown["metadata"]["annotations"]["cni/ip"] == "1"
    assert shown["metadata"]["annotations"]["prometheus.io/scrape"] == "true"
    assert shown_metadata(shown, one, DEFAULT, trusts_fully=True) == {}
    two = physical({}, {"cni/ip": "2"})
    changed = with_patch(shown, shown_metadata(shown, two, DEFAULT, trusts_fully=True))
    assert changed["metadata"]["labels"] == {"app": "web"} | MARK
    assert changed["metadata"]["annotations"]["cni/ip"] == "2"
    gone = with_patch(changed, shown_metadata(changed, physical(), DEFAULT, trusts_fully=True))
    assert gone["metadata"]["annotations"] == MAPPING


def test_labels_of_a_worker_never_reach_a_virtual_pod() -> None:
    pod = virtual({"app": "web"})
    ppod = physical({"app.kubernetes.io/name": "payments-db", "tier": "db"}, {"cni/ip": "1"})
    shown = with_patch(pod, shown_metadata(pod, ppod, DEFAULT))
    assert shown["metadata"]["labels"] == {"app": "web"} | MARK
    assert shown["metadata"]["annotations"]["cni/ip"] == "1"
    assert shown_metadata(shown, ppod, DEFAULT) == {}


@pytest.mark.parametrize(
    "key",
    [
        "prometheus.io/scrape",
        "sidecar.istio.io/inject",
        "linkerd.io/inject",
        "config.linkerd.io/proxy-cpu-request",
        "cluster-autoscaler.kubernetes.io/safe-to-evict",
        "controller.kubernetes.io/pod-deletion-cost",
        "kubectl.kubernetes.io/last-applied-configuration",
        "kubernetes.io/config.mirror",
        "descheduler.alpha.kubernetes.io/evict",
        "batch.k8s.io/x",
        "karpenter.sh/do-not-disrupt",
        "cni.projectcalico.org/podIP",
        "k8s.v1.cni.cncf.io/networks",
    ],
)
def test_annotations_on_which_controllers_act_stay_in_the_worker(key: str) -> None:
    pod, ppod = virtual({"app": "web"}), physical({}, {key: "true"})
    assert shown_metadata(pod, ppod, DEFAULT) == {"labels": MARK, "annotations": MAPPING}
    mine = virtual(annotations={key: "mine"})
    assert (
        with_patch(mine, shown_metadata(mine, ppod, DEFAULT))["metadata"]["annotations"][key]
        == "mine"
    )


def test_entries_are_removed_when_their_worker_is_trusted_less() -> None:
    pod = virtual({"app": "web"}, {"note": "x"})
    ppod = physical({"mesh": "on"}, {"cni/ip": "1", "prometheus.io/scrape": "true"})
    shown = with_patch(pod, shown_metadata(pod, ppod, DEFAULT, trusts_fully=True))
    updated = with_patch(shown, shown_metadata(shown, ppod, DEFAULT))
    assert updated["metadata"]["labels"] == {"app": "web"} | MARK
    assert updated["metadata"]["annotations"].keys() == {
        "note",
        "cni/ip",
        DEFAULT.expected_metadata,
        *MAPPING,
    }


def test_shown_entries_are_not_taken_for_the_users() -> None:
    pod = virtual({"app": "web"}, {"note": "x"})
    ppod = physical({"mesh": "on"}, {"cni/ip": "1"})
    shown = with_patch(pod, shown_metadata(pod, ppod, DEFAULT, trusts_fully=True))
    own = users_own(shown, DEFAULT)["metadata"]
    assert own["labels"] == {"app": "web"}
    assert own["annotations"] == {"note": "x"} | MAPPING
    assert users_own(virtual(), DEFAULT)["metadata"]["labels"] == {}


def test_entries_of_the_user_are_never_lost() -> None:
    pod = virtual({"app": "web"})
    ppod = physical({"mesh": "on"})
    shown = with_patch(pod, shown_metadata(pod, ppod, DEFAULT, trusts_fully=True))
    shown["metadata"]["labels"] |= {"new": "1", "mesh": "mine"}
    updated = with_patch(shown, shown_metadata(shown, ppod, DEFAULT, trusts_fully=True))
    assert updated["metadata"]["labels"] == {"app": "web", "new": "1", "mesh": "mine"} | MARK
    assert users_own(updated, DEFAULT)["metadata"]["labels"] == {
        "app": "web",
        "new": "1",
        "mesh": "mine",
    }


def test_applied_entries_are_not_shown_even_if_the_worker_changed_them() -> None:
    pod = virtual({"app": "web"})
    ppod = physical({"app": "changed"}, applied=Expected({"app": "web", "old": "1"}))
    ppod["metadata"]["labels"]["old"] = "1"
    assert shown_metadata(pod, ppod, DEFAULT) == {"labels": MARK, "annotations": MAPPING}


def managed(*entries: Json) -> Json:
    return {"metadata": {"name": "web", "managedFields": list(entries)}}


def test_the_name_of_a_physical_pod_that_came_with_a_manifest_is_recognized() -> None:
    fields: Json = {"f:metadata": {"f:annotations": {f"f:{DEFAULT.physical_pod_uid}": {}}}}
    users = {"manager": "kubectl", "fieldsV1": fields}
    ours = {"manager": "kubeocean", "subresource": "status", "fieldsV1": fields}
    scheduler = {"manager": "kube-scheduler", "subresource": "status", "fieldsV1": {"f:status": {}}}
    assert is_copied(managed(users), DEFAULT)
    assert is_copied(managed(users, scheduler), DEFAULT)
    assert not is_copied(managed(users, ours), DEFAULT)
    assert not is_copied({"metadata": {}}, DEFAULT)  # without managed fields nothing is known


def test_of_a_patch_that_is_too_large_the_name_of_the_physical_pod_is_kept() -> None:
    patch = shown_metadata(virtual(), physical({}, {"cni/ip": "1"}), DEFAULT)
    assert location(patch, DEFAULT) == {"annotations": MAPPING}
    assert location({}, DEFAULT) == {"annotations": {}}


def test_annotations_of_the_worker_that_are_too_large_are_not_shown() -> None:
    pod = vpod()
    annotations = {"huge": "x" * (3 << 20), "b": "y" * 40_000, "c": "z" * 40_000, "small": "1"}
    worker = physical({}, annotations=annotations)
    shown = shown_metadata(pod, worker, DEFAULT)["annotations"]
    assert {"small", "b"} == shown.keys() & annotations.keys()
    assert sum(map(len, shown.values())) < LIMIT
