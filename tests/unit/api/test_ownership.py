"""Whose an object of the worker is."""

from __future__ import annotations

import pytest

from kubeocean.api.group import DEFAULT as D
from kubeocean.api.ownership import (
    Claim,
    Ids,
    bears_ids,
    claim_copy,
    claim_pod,
    claim_policy,
    is_holder,
    ownership,
    policy_claim,
)
from kubeocean.runtime.objects import Key, Meta, Object

IDS = Ids("east", "c1", "1b2c")
POD = Key("team", "web")
UID = "u1"
GO = {D.managed_by: D.product}
OURS = ownership(IDS, D)


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


def of_pod(obj: Object, uid: str = UID) -> Claim:
    return claim_pod(obj, virtual=POD, uid=uid, ids=IDS, domain=D)


def of_copy(obj: Object, *, uid: str = UID, pointed: bool = False) -> Claim:
    return claim_copy(obj, virtual=POD, uid=uid, ids=IDS, domain=D, pointed=pointed)


def test_what_we_make_carries_the_binding_and_both_clusters() -> None:
    assert ownership(IDS, D) == {
        D.managed_by: "kubeocean",
        D.cluster_binding: "east",
        D.physical_cluster_id: "c1",
        D.computing_cluster_id: "1b2c",
    }
    long = ownership(Ids("b" * 200, "c1", "1b2c"), D)
    assert len(long[D.cluster_binding]) <= 63


@pytest.mark.parametrize(
    ("labels", "uid", "claim"),
    [
        (OURS, UID, Claim.OURS),
        (OURS | {"app": "web"}, UID, Claim.OURS),
        (OURS, "u0", Claim.STALE),
        (GO, UID, Claim.TAKEABLE),
        (GO, "u0", Claim.FOREIGN),  # of an earlier pod, or of another computing cluster: who knows
        ({}, UID, Claim.TAKEABLE),  # somebody took them away
        ({}, "u0", Claim.FOREIGN),
        (OURS | {D.cluster_binding: "west"}, UID, Claim.FOREIGN),
        (OURS | {D.computing_cluster_id: "other"}, UID, Claim.FOREIGN),
        (OURS | {D.managed_by: "somebody"}, UID, Claim.FOREIGN),
        (GO | {D.cluster_binding: "east"}, UID, Claim.TAKEABLE),
        (GO | {D.cluster_binding: "west"}, UID, Claim.FOREIGN),
    ],
)
def test_a_pod_is_ours_by_all_of_its_labels_and_its_uid(
    labels: dict[str, str], uid: str, claim: Claim
) -> None:
    assert of_pod(pod(labels, uid)) is claim


def test_a_pod_of_another_name_is_foreign_whatever_its_labels() -> None:
    assert of_pod(pod(OURS, virtual=Key("team", "other"))) is Claim.FOREIGN
    assert of_pod(pod(OURS, virtual=Key("other", "web"))) is Claim.FOREIGN
    assert of_pod(Object(metadata=Meta(name="p", labels=OURS))) is Claim.FOREIGN


def test_no_uid_proves_nothing() -> None:
    assert of_pod(pod(GO, ""), uid="") is Claim.FOREIGN
    assert of_pod(pod(OURS, ""), uid="") is Claim.STALE


@pytest.mark.parametrize(
    ("obj", "pointed", "claim"),
    [
        (copy(OURS), False, Claim.OURS),
        (copy(OURS, "u0"), False, Claim.STALE),
        (copy(OURS, None), False, Claim.STALE),
        (copy(GO, None), True, Claim.TAKEABLE),
        (copy(GO, None), False, Claim.FOREIGN),
        (copy({}, None), True, Claim.FOREIGN),
        (copy({}), False, Claim.TAKEABLE),
        (copy(OURS | {D.physical_cluster_id: "c2"}), True, Claim.FOREIGN),
        (copy(OURS, virtual=Key("team", "other")), True, Claim.FOREIGN),
    ],
)
def test_a_copy_is_ours_by_its_labels_and_its_uid(obj: Object, pointed: bool, claim: Claim) -> None:
    assert of_copy(obj, pointed=pointed) is claim


def test_the_copy_of_what_has_no_namespace_need_not_say_so() -> None:
    volume = Object(
        metadata=Meta(labels=OURS, annotations={D.virtual_name: "pv", D.virtual_uid: UID})
    )
    claim = claim_copy(volume, virtual=Key("", "pv"), uid=UID, ids=IDS, domain=D)
    assert claim is Claim.OURS


def test_the_binding_knows_what_it_made_for_whatever() -> None:
    assert bears_ids(pod(OURS, "u0", Key("x", "y")), ids=IDS, domain=D)
    assert not bears_ids(pod(GO), ids=IDS, domain=D)


def policy(annotations: dict[str, str]) -> Object:
    return Object(metadata=Meta(name="p", annotations=annotations))


def test_a_policy_is_of_who_claimed_it_first() -> None:
    claimed = policy(policy_claim(IDS, D))
    namesake, neighbour = Ids("east", "c1", "other"), Ids("west", "c1", "1b2c")
    assert claim_policy(policy({}), ids=IDS, domain=D) is Claim.TAKEABLE
    assert claim_policy(claimed, ids=IDS, domain=D) is Claim.OURS
    assert claim_policy(claimed, ids=namesake, domain=D) is Claim.FOREIGN
    assert claim_policy(claimed, ids=neighbour, domain=D) is Claim.OURS  # if it names that one
    assert is_holder(claimed, ids=IDS, domain=D)
    assert not is_holder(claimed, ids=namesake, domain=D)
    assert not is_holder(claimed, ids=neighbour, domain=D)
    assert not is_holder(policy({}), ids=IDS, domain=D)
