"""The guard rail: which users may change which objects of a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.fleet.admission.guard_rail import GuardRail
from kubeocean.fleet.admission.reviews import BadReview, Operation
from unit.fleet.admission.requests import request

CLUSTER = "cluster.kubernetes-fleet.io"
PLACEMENT = "placement.kubernetes-fleet.io"
EXTENSIONS = "apiextensions.k8s.io"
NETWORKING = "networking.fleet.azure.com"
FLEET = {"annotations": {"fleet.azure.com/id": "1"}}
RAIL = GuardRail(frozenset({"listed"}))

PLAIN = ("u", ())
ADMINS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("u", ("system:masters",)),
    ("u", ("kubeadm:cluster-admins",)),
    ("listed", ()),
)
ALLOWED: Sequence[tuple[str, tuple[str, ...]]] = (
    *ADMINS,
    ("system:serviceaccount:default:x", ("system:serviceaccounts",)),
    ("system:kube-scheduler", ()),
    ("system:kube-controller-manager", ()),
    ("system:node:n", ("system:nodes",)),
    ("aks-support", ()),
)


def identities(member: str) -> str | None:
    return {"m": "agent-m"}.get(member)


def allows(kind: str, operation: str, who: tuple[str, Sequence[str]], **options: Any) -> bool:
    user, groups = who
    submitted = request(kind, operation, user=user, groups=groups, **options)
    return RAIL.decide(submitted, identities).allowed


def who_may(kind: str, operation: str, **options: Any) -> set[tuple[str, Sequence[str]]]:
    users = (PLAIN, *ALLOWED)
    return {who for who in users if allows(kind, operation, who, **options)}


EVERYBODY = {PLAIN, *ALLOWED}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
@pytest.mark.parametrize(
    ("crd", "expected"),
    [
        ("works.placement.kubernetes-fleet.io", set(ADMINS)),
        ("memberclusters.cluster.kubernetes-fleet.io", set(ADMINS)),
        ("internalserviceexports.networking.fleet.azure.com", set(ADMINS)),
        ("clusterprofiles.multicluster.x-k8s.io", set(ADMINS)),
        ("sails.example.com", EVERYBODY),
        ("works.placement.kubernetes-fleet.io.example.com", EVERYBODY),
    ],
)
def test_crds_of_the_fleet_are_for_admins(operation: str, crd: str, expected: set[Any]) -> None:
    kind = "CustomResourceDefinition"
    assert who_may(kind, operation, group=EXTENSIONS, name=crd) == expected


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fleet-member-m", set(ALLOWED)),
        ("kube-system", set(ALLOWED)),
        ("default", EVERYBODY),
        ("my-fleet-x", EVERYBODY),
    ],
)
def test_reserved_namespaces_are_for_allowed_users(
    operation: str, name: str, expected: set[Any]
) -> None:
    assert who_may("Namespace", operation, name=name, namespace=name) == expected


def member(status: Any = None, spec: Any = None, **metadata: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"metadata": {"name": "m", **metadata}, "spec": spec or {}}
    return content | ({"status": status} if status else {})


def test_a_fleet_member_cluster_is_created_and_deleted_by_allowed_users() -> None:
    kind = "MemberCluster"
    assert who_may(kind, "CREATE", group=CLUSTER, new=member(**FLEET)) == set(ALLOWED)
    assert who_may(kind, "DELETE", group=CLUSTER, old=member(**FLEET)) == set(ALLOWED)
    assert who_may(kind, "CREATE", group=CLUSTER, new=member()) == EVERYBODY
    assert who_may(kind, "DELETE", group=CLUSTER, old=member()) == EVERYBODY


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"spec": {"heartbeatPeriodSeconds": 2}}, set(ALLOWED)),
        ({"status": {"conditions": []}}, set(ALLOWED)),
        ({"finalizers": ["f"]}, set(ALLOWED)),
        ({"ownerReferences": [{"uid": "1"}]}, set(ALLOWED)),
        ({"annotations": {"fleet.azure.com/id": "2"}}, set(ALLOWED)),
        ({"annotations": {"fleet.azure.com/id": "1", "x": "y"}}, EVERYBODY),
        ({"annotations": {"x": "y"}}, set()),
        ({"labels": {"a": "b"}}, EVERYBODY),
        ({"spec": {"taints": [{"key": "k"}]}}, EVERYBODY),
        ({"resourceVersion": "2", "generation": 3, "managedFields": [{}]}, EVERYBODY),
    ],
)
def test_changes_of_a_fleet_member_cluster(change: dict[str, Any], expected: set[Any]) -> None:
    old, new = member(**FLEET), member(**{**FLEET, **change})
    assert who_may("MemberCluster", "UPDATE", group=CLUSTER, old=old, new=new) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"spec": {"heartbeatPeriodSeconds": 2}}, EVERYBODY),
        ({"finalizers": ["f"]}, EVERYBODY),
        ({"labels": {"a": "b"}}, EVERYBODY),
        ({"annotations": {"x": "y"}}, EVERYBODY),
        ({"status": {"conditions": [{}]}}, set(ALLOWED)),
        (FLEET, set()),
    ],
)
def test_changes_of_an_upstream_member_cluster(change: dict[str, Any], expected: set[Any]) -> None:
    old, new = member(), member(**change)
    assert who_may("MemberCluster", "UPDATE", group=CLUSTER, old=old, new=new) == expected


def test_labels_of_fleet_member_clusters_can_be_denied() -> None:
    rail = GuardRail(deny_labels=True)

    def text(label: str, *groups: str, old: Any = FLEET) -> str:
        new = member(**old, labels={label: "b"})
        submitted = request(
            "MemberCluster", "UPDATE", group=CLUSTER, old=member(**old), new=new, groups=groups
        )
        return rail.decide(submitted, identities).message

    denial = "users are not allowed to modify labels through hub cluster directly"
    assert text("a") == denial
    assert text("a", "system:serviceaccounts") == denial
    assert text("a", "system:masters") == ""
    assert text("kubernetes-fleet.io/x") == ""
    assert text("kubefleet.dev/x") == denial
    assert text("kubefleet.dev/x", "system:serviceaccounts") == ""
    assert text("a", old={}) == ""  # all users may change MemberClusters of upstream


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        (CLUSTER, "InternalMemberCluster"),
        (PLACEMENT, "Work"),
        (NETWORKING, "EndpointSliceExport"),
        (NETWORKING, "EndpointSliceImport"),
        (NETWORKING, "InternalServiceExport"),
        (NETWORKING, "InternalServiceImport"),
    ],
)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
@pytest.mark.parametrize("sub", ["", "status"])
def test_objects_of_a_member_are_for_its_identity_too(
    group: str, kind: str, operation: str, sub: str
) -> None:
    def may(user: str, namespace: str) -> bool:
        who: tuple[str, tuple[str, ...]] = (user, ())
        return allows(kind, operation, who, group=group, namespace=namespace, sub=sub)

    assert may("agent-m", "fleet-member-m")
    assert may("system:serviceaccount:fleet-system:agent-m", "fleet-member-m")
    assert not may("system:serviceaccount:default:agent-m", "fleet-member-m")
    assert not may("agent-x", "fleet-member-m")
    assert may("agent-x", "fleet-member-gone")  # its MemberCluster cannot be read
    assert not may("agent-m", "fleet-system")
    assert may("agent-x", "default")
    namespace = "fleet-member-m"
    assert who_may(kind, operation, group=group, namespace=namespace) == set(ALLOWED)


def test_other_objects_in_reserved_namespaces_are_for_allowed_users() -> None:
    for namespace in ("fleet-system", "kube-system", "fleet-member-m"):
        assert who_may("ConfigMap", "CREATE", namespace=namespace) == set(ALLOWED)
    assert who_may("Event", "CREATE", namespace="fleet-system") == EVERYBODY
    assert who_may("Event", "DELETE", group="events.k8s.io", namespace="kube-system") == EVERYBODY
    assert who_may("ClusterRole", "DELETE") == EVERYBODY  # the rules do not name it
    assert not allows("ConfigMap", "UPDATE", ("agent-m", ()), namespace="fleet-member-m")


@pytest.mark.parametrize(
    ("groups", "shown"),
    [
        ((), "groups: []"),
        (("a", "b"), "groups: [a b]"),
        (tuple("abcdefghij"), "groups: [a b c d e f g h i j]"),
        (tuple("abcdefghijk"), "groups: [a, b, c,......]"),
    ],
)
def test_the_text_of_a_refusal_is_kubefleets(groups: tuple[str, ...], shown: str) -> None:
    submitted = request("Pod", "DELETE", namespace="fleet-system", name="x", groups=groups)
    assert RAIL.decide(submitted, identities).message == (
        f"user: 'u' in '{shown}' is not allowed to DELETE resource /v1, Kind=Pod/: fleet-system/x"
    )


def test_the_text_names_groups_subresources_and_cluster_scoped_objects() -> None:
    old, new = member(**FLEET), member(**FLEET, status={"conditions": []})
    submitted = request(
        "MemberCluster", "UPDATE", group=CLUSTER, version="v1beta1", name="m", sub="status",
        old=old, new=new,
    )  # fmt: skip
    assert RAIL.decide(submitted, identities).message == (
        "user: 'u' in 'groups: []' is not allowed to UPDATE resource"
        " cluster.kubernetes-fleet.io/v1beta1, Kind=MemberCluster/status: /m"
    )
    submitted = request("Namespace", "CREATE", name="fleet-x", namespace="fleet-x")
    assert RAIL.decide(submitted, identities).message == (
        "user: 'u' in 'groups: []' is not allowed to CREATE resource /v1, Kind=Namespace/: /fleet-x"
    )


def test_a_member_cluster_that_cannot_be_read_is_a_bad_review() -> None:
    with pytest.raises(BadReview, match=r"request\.object cannot be read"):
        allows("MemberCluster", "CREATE", PLAIN, group=CLUSTER)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "annotations", "labels", "spec", "status", "taints"])
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8), _json, max_size=4), _json, _json)
def test_whatever_a_member_cluster_contains_is_decided(
    content: dict[str, Any], metadata: Any, annotations: Any
) -> None:
    """Strangers write everything: each document is decided without another exception."""
    new = content | {"metadata": metadata}
    old = {"metadata": {"annotations": annotations}, "spec": content}
    for operation in Operation:
        submitted = request("MemberCluster", operation, group=CLUSTER, new=new, old=old)
        RAIL.decide(submitted, identities)
