"""Virtual CSINodes: drivers and metadata of a copy, and the patches that change it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.group import DEFAULT, TAPESTRY, Domain
from kubeocean.runtime.objects import Json
from kubeocean.syncer.nodes.csinodes import (
    CsiNode,
    CsiNodeContext,
    changes,
    forge,
    is_ours,
    unregister,
)

MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
SYNCED = "kubeocean.io/last-sync-time"
EBS: Json = {
    "name": "ebs.csi.aws.com",
    "nodeID": "i-1",
    "topologyKeys": ["topology.ebs.csi.aws.com/zone"],
    "allocatable": {"count": 25},
}
NFS: Json = {"name": "nfs.csi.k8s.io", "nodeID": "n1", "topologyKeys": None}


def source_of(
    *drivers: Json,
    name: str = "n1",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> CsiNode:
    metadata = {
        "name": name,
        "uid": "source-uid",
        "labels": labels or {},
        "annotations": annotations or {},
    }
    return msgspec.convert({"metadata": metadata, "spec": {"drivers": list(drivers)}}, CsiNode)


def context_of(
    source: CsiNode, *, vnode_uid: str = "vnode-uid", domain: Domain = DEFAULT
) -> CsiNodeContext:
    return CsiNodeContext(
        source=source,
        vnode=f"vnode-c1-{source.name}",
        vnode_uid=vnode_uid,
        binding="b1",
        cluster_id="c1",
        domain=domain,
    )


def copy_of(context: CsiNodeContext, *, now: str = "then") -> CsiNode:
    return msgspec.convert(forge(context, now=now), CsiNode)


def applied(copy: CsiNode, patch: Json) -> CsiNode:
    """Return the object as a server stores it after the merge patch."""
    document = msgspec.to_builtins(copy)
    return msgspec.convert(_merged(document, patch), CsiNode)


def _merged(target: Json, patch: Json) -> Json:
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merged(result.get(key) or {}, value)
        else:
            result[key] = value
    return result


def test_a_virtual_csinode_has_the_drivers_of_its_source_and_the_labels_of_its_owner() -> None:
    annotations = {MIGRATED: "kubernetes.io/aws-ebs", APPLIED: "{}", "kubeocean.io/x": "y"}
    source = source_of(EBS, NFS, labels={"team": "a"}, annotations=annotations)
    made = forge(context_of(source), now="2026-01-01T00:00:00Z")
    assert made["spec"] == {"drivers": [EBS, NFS]}
    metadata = made["metadata"]
    assert metadata["name"] == "vnode-c1-n1"
    assert metadata["labels"] == {
        "team": "a",
        "kubeocean.io/managed-by": "kubeocean",
        "kubeocean.io/cluster-binding": "b1",
        "kubeocean.io/physical-cluster-id": "c1",
        "kubeocean.io/physical-node-name": "n1",
    }
    remembered = metadata["annotations"].pop("kubeocean.io/expected-metadata")
    assert remembered
    assert metadata["annotations"] == {
        MIGRATED: "kubernetes.io/aws-ebs",
        "kubeocean.io/physical-node-name": "n1",
        "kubeocean.io/physical-csinode-uid": "source-uid",
        SYNCED: "2026-01-01T00:00:00Z",
    }
    owner = {"apiVersion": "v1", "kind": "Node", "name": "vnode-c1-n1", "uid": "vnode-uid"}
    assert metadata["ownerReferences"] == [owner]


def test_a_node_name_too_long_for_a_label_is_complete_in_the_annotation() -> None:
    name = "n" * 80
    made = copy_of(context_of(source_of(EBS, name=name)))
    assert len(made.labels["kubeocean.io/physical-node-name"]) <= 63
    assert made.annotations["kubeocean.io/physical-node-name"] == name
    assert is_ours(made, pnode=name, binding="b1", cluster_id="c1", domain=DEFAULT)


def test_labels_of_another_domain_are_not_ours() -> None:
    made = copy_of(context_of(source_of(EBS), domain=TAPESTRY))
    assert made.labels["tapestry.io/managed-by"] == "tapestry"
    assert is_ours(made, pnode="n1", binding="b1", cluster_id="c1", domain=TAPESTRY)
    assert not is_ours(made, pnode="n1", binding="b1", cluster_id="c1", domain=DEFAULT)


def test_a_virtual_csinode_that_was_created_needs_no_change() -> None:
    context = context_of(source_of(EBS, NFS))
    assert changes(copy_of(context, now="then"), context, now="now") == {}


def test_the_order_of_drivers_and_empty_fields_are_no_difference() -> None:
    copy = copy_of(context_of(source_of(EBS, NFS)))
    bare = {key: value for key, value in NFS.items() if value is not None}
    assert changes(copy, context_of(source_of(bare, EBS)), now="now") == {}
    none = msgspec.structs.replace(copy, spec={"drivers": None})
    assert changes(none, context_of(source_of()), now="now") == {}


def test_a_new_driver_is_written_with_the_time() -> None:
    copy = copy_of(context_of(source_of(EBS)))
    change = changes(copy, context_of(source_of(EBS, NFS)), now="now")
    assert change == {
        "metadata": {"labels": {}, "annotations": {SYNCED: "now"}},
        "spec": {"drivers": [EBS, NFS]},
    }


def test_a_source_without_drivers_makes_an_empty_list() -> None:
    context = context_of(msgspec.structs.replace(source_of(), spec={"drivers": None}))
    assert changes(copy_of(context_of(source_of(EBS))), context, now="now")["spec"] == {
        "drivers": []
    }


def test_metadata_of_users_stays_and_metadata_that_the_source_lost_is_removed() -> None:
    first = context_of(source_of(EBS, labels={"a": "1", "b": "1"}, annotations={"c": "1"}))
    users = {"metadata": {"labels": {"mine": "yes"}, "annotations": {"note": "mine"}}}
    copy = applied(copy_of(first), users)
    assert changes(copy, first, now="now") == {}
    then = context_of(source_of(EBS, labels={"b": "2"}))
    patched = applied(copy, changes(copy, then, now="now"))
    assert patched.labels.keys() >= {"mine", "b"}
    assert "a" not in patched.labels
    assert patched.labels["b"] == "2"
    assert patched.annotations["note"] == "mine"
    assert "c" not in patched.annotations
    assert changes(patched, then, now="later") == {}


def test_a_copy_of_an_earlier_implementation_is_given_its_virtual_node_as_owner() -> None:
    context = context_of(source_of(EBS))
    made = forge(context, now="then")
    del made["metadata"]["ownerReferences"]
    del made["metadata"]["annotations"]["kubeocean.io/expected-metadata"]
    copy = msgspec.convert(made, CsiNode)
    assert is_ours(copy, pnode="n1", binding="b1", cluster_id="c1", domain=DEFAULT)
    change = changes(copy, context, now="now")
    assert "spec" not in change
    assert change["metadata"]["ownerReferences"][0]["uid"] == "vnode-uid"
    assert changes(applied(copy, change), context, now="later") == {}


def test_a_copy_of_an_earlier_virtual_node_is_given_the_new_one_as_owner() -> None:
    source = source_of(EBS)
    copy = copy_of(context_of(source, vnode_uid="old"))
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}
    document = msgspec.to_builtins(copy)
    owners = document["metadata"]["ownerReferences"]
    document["metadata"]["ownerReferences"] = [other, *owners]
    copy = msgspec.convert(document, CsiNode)
    then = context_of(source, vnode_uid="new")
    owners = changes(copy, then, now="now")["metadata"]["ownerReferences"]
    assert owners[0] == other
    assert [(owner["kind"], owner["uid"]) for owner in owners] == [
        ("ConfigMap", "u"),
        ("Node", "new"),
    ]


def test_a_driver_that_changed_is_unregistered_first() -> None:
    copy = copy_of(context_of(source_of(EBS, NFS)))
    moved = EBS | {"nodeID": "i-2"}
    assert unregister(copy, context_of(source_of(moved, NFS))) == {"spec": {"drivers": [NFS]}}


def test_new_and_removed_drivers_need_no_unregistering() -> None:
    copy = copy_of(context_of(source_of(EBS)))
    assert unregister(copy, context_of(source_of(NFS))) == {}


@pytest.mark.parametrize(
    "labels",
    [
        {"kubeocean.io/managed-by": None},
        {"kubeocean.io/cluster-binding": "b2"},
        {"kubeocean.io/physical-cluster-id": "c2"},
        {"kubeocean.io/physical-node-name": "n2"},
    ],
    ids=str,
)
def test_a_csinode_with_one_wrong_label_is_foreign(labels: Json) -> None:
    copy = applied(copy_of(context_of(source_of(EBS))), {"metadata": {"labels": labels}})
    assert not is_ours(copy, pnode="n1", binding="b1", cluster_id="c1", domain=DEFAULT)


def test_a_csinode_with_a_wrong_annotation_is_foreign_and_without_it_is_not() -> None:
    copy = copy_of(context_of(source_of(EBS)))
    name = "kubeocean.io/physical-node-name"
    missing = {"metadata": {"labels": {name: None}, "annotations": {name: None}}}
    stripped = applied(copy, missing)
    assert is_ours(stripped, pnode="n1", binding="b1", cluster_id="c1", domain=DEFAULT)
    wrong = applied(copy, {"metadata": {"annotations": {name: "n2"}}})
    assert not is_ours(wrong, pnode="n1", binding="b1", cluster_id="c1", domain=DEFAULT)


keys = st.sampled_from(["a", "b", "example.com/c", MIGRATED])
words = st.dictionaries(keys, st.sampled_from(["", "1", "2"]))
drivers = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["d1", "d2", "d3"]), "nodeID": st.sampled_from(["x", "y"])},
        optional={
            "topologyKeys": st.none() | st.lists(st.sampled_from(["k1", "k2"]), max_size=2),
            "allocatable": st.none() | st.just({"count": 3}),
        },
    ),
    unique_by=lambda driver: driver["name"],
)
sources = st.builds(
    lambda listed, labels, annotations: source_of(*listed, labels=labels, annotations=annotations),
    drivers,
    words,
    words,
)


@given(sources, sources, words, words)
def test_one_patch_turns_any_copy_into_any_other(
    first: CsiNode, second: CsiNode, labels: dict[str, str], annotations: dict[str, str]
) -> None:
    theirs = {
        "labels": {f"user-{key.rpartition('/')[2]}": value for key, value in labels.items()},
        "annotations": {f"user-{key.rpartition('/')[2]}": v for key, v in annotations.items()},
    }
    copy = applied(copy_of(context_of(first)), {"metadata": theirs})
    then = context_of(second)
    patched = applied(copy, changes(copy, then, now="now"))
    assert changes(patched, then, now="later") == {}
    fresh = copy_of(then)
    assert patched.labels == {**fresh.labels, **theirs["labels"]}
    assert patched.annotations.keys() == {**fresh.annotations, **theirs["annotations"]}.keys()


@given(sources, sources)
def test_after_unregistering_no_driver_changes_in_place(first: CsiNode, second: CsiNode) -> None:
    copy, then = copy_of(context_of(first)), context_of(second)
    step = unregister(copy, then)
    dropped = applied(copy, step)
    assert unregister(dropped, then) == {}
    assert {d["name"] for d in dropped.spec["drivers"]} <= {d["name"] for d in copy.spec["drivers"]}
