"""Whose an object of the worker is."""

from __future__ import annotations

import pytest

from kubeocean.api.group import DEFAULT as D
from kubeocean.api.ownership import (
    Ids,
    Ownership,
    bears_ids,
    copy_ownership,
    has_claimed,
    ownership_labels,
    pod_ownership,
    policy_claim,
    policy_ownership,
)
from kubeocean.runtime.objects import Key, Meta, Object

IDS = Ids("east", "c1", "1b2c")
POD = Key("team", "web")
UID = "u1"
GO = {D.managed_by: D.product}
OURS = ownership_labels(IDS, D)


def pod(labels: dict[str, str], uid: str = UID, virtual: Key = POD) -> Object:
    annotations = {
        D.virtual_pod_namespace: virtual.namespace,
        D.virtual_pod_name: virtual.name,
        D.virtual_pod_uid: uid,
    }
    return Object(metadata=Meta(name="p", labels=labels, annotations=annotations))


def copy(labels: dict[str, str], uid: str | None = UID, virtual: Key = POD) -> Object:
    annotations = {D.virtual_namespace: virtual.namespace, D.virtual_name: virtual.name}
    uids = {} if uid is None else {D.virtual_uid: uid}
    return Object(metadata=Meta(name="p", labels=labels, annotations=annotations | uids))


def of_pod(obj: Object, uid: str = UID) -> Ownership:
    return pod_ownership(obj, virtual=POD, uid=uid, ids=IDS, domain=D)


def of_copy(obj: Object, *, uid: str = UID, pointed: bool = False) -> Ownership:
    return copy_ownership(obj, virtual=POD, uid=uid, ids=IDS, domain=D, pointed=pointed)


def test_what_we_make_carries_the_binding_and_both_clusters() -> None:
    assert ownership_labels(IDS, D) == {
        D.managed_by: "kubeocean",
        D.cluster_binding: "east",
        D.physical_cluster_id: "c1",
        D.computing_cluster_id: "1b2c",
    }
    long = ownership_labels(Ids("b" * 200, "c1", "1b2c"), D)
    assert len(long[D.cluster_binding]) <= 63


@pytest.mark.parametrize(
    ("labels", "uid", "ownership"),
    [
        (OURS, UID, Ownership.OURS),
        (OURS | {"app": "web"}, UID, Ownership.OURS),
        (OURS, "u0", Ownership.STALE),
        (GO, UID, Ownership.TAKEABLE),
        (GO, "u0", Ownership.FOREIGN),  # perhaps of another computing cluster
        ({}, UID, Ownership.TAKEABLE),  # the labels were removed
        ({}, "u0", Ownership.FOREIGN),
        (OURS | {D.cluster_binding: "west"}, UID, Ownership.FOREIGN),
        (OURS | {D.computing_cluster_id: "other"}, UID, Ownership.FOREIGN),
        (OURS | {D.managed_by: "somebody"}, UID, Ownership.FOREIGN),
        (GO | {D.cluster_binding: "east"}, UID, Ownership.TAKEABLE),
        (GO | {D.cluster_binding: "west"}, UID, Ownership.FOREIGN),
    ],
)
def test_a_pod_is_ours_by_all_of_its_labels_and_its_uid(
    labels: dict[str, str], uid: str, ownership: Ownership
) -> None:
    assert of_pod(pod(labels, uid)) is ownership


def test_a_pod_of_another_name_is_foreign_whatever_its_labels() -> None:
    assert of_pod(pod(OURS, virtual=Key("team", "other"))) is Ownership.FOREIGN
    assert of_pod(pod(OURS, virtual=Key("other", "web"))) is Ownership.FOREIGN
    assert of_pod(Object(metadata=Meta(name="p", labels=OURS))) is Ownership.FOREIGN


def test_no_uid_proves_nothing() -> None:
    assert of_pod(pod(GO, ""), uid="") is Ownership.FOREIGN
    assert of_pod(pod(OURS, ""), uid="") is Ownership.STALE


@pytest.mark.parametrize(
    ("obj", "pointed", "ownership"),
    [
        (copy(OURS), False, Ownership.OURS),
        (copy(OURS, "u0"), False, Ownership.STALE),
        (copy(OURS, None), False, Ownership.STALE),
        (copy(GO, None), True, Ownership.TAKEABLE),
        (copy(GO, None), False, Ownership.FOREIGN),
        (copy({}, None), True, Ownership.FOREIGN),
        (copy({}), False, Ownership.TAKEABLE),
        (copy(OURS | {D.physical_cluster_id: "c2"}), True, Ownership.FOREIGN),
        (copy(OURS, virtual=Key("team", "other")), True, Ownership.FOREIGN),
    ],
)
def test_a_copy_is_ours_by_its_labels_and_its_uid(
    obj: Object, pointed: bool, ownership: Ownership
) -> None:
    assert of_copy(obj, pointed=pointed) is ownership


def test_the_copy_of_what_has_no_namespace_need_not_say_so() -> None:
    volume = Object(
        metadata=Meta(labels=OURS, annotations={D.virtual_name: "pv", D.virtual_uid: UID})
    )
    ownership = copy_ownership(volume, virtual=Key("", "pv"), uid=UID, ids=IDS, domain=D)
    assert ownership is Ownership.OURS


def test_the_binding_knows_what_it_made_for_whatever() -> None:
    assert bears_ids(pod(OURS, "u0", Key("x", "y")), ids=IDS, domain=D)
    assert not bears_ids(pod(GO), ids=IDS, domain=D)


def policy(annotations: dict[str, str]) -> Object:
    return Object(metadata=Meta(name="p", annotations=annotations))


def test_a_policy_is_of_who_claimed_it_first() -> None:
    claimed = policy(policy_claim(IDS, D))
    namesake, neighbour = Ids("east", "c1", "other"), Ids("west", "c1", "1b2c")
    assert policy_ownership(policy({}), ids=IDS, domain=D) is Ownership.TAKEABLE
    assert policy_ownership(claimed, ids=IDS, domain=D) is Ownership.OURS
    assert policy_ownership(claimed, ids=namesake, domain=D) is Ownership.FOREIGN
    assert (
        policy_ownership(claimed, ids=neighbour, domain=D) is Ownership.OURS
    )  # if it names that one
    assert has_claimed(claimed, ids=IDS, domain=D)
    assert not has_claimed(claimed, ids=namesake, domain=D)
    assert not has_claimed(claimed, ids=neighbour, domain=D)
    assert not has_claimed(policy({}), ids=IDS, domain=D)
