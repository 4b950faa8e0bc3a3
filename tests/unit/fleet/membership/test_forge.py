"""The hub's objects for a member: created complete, written only if they differ."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeocean.api.fleet.clusters import MemberCluster, RbacSubject
from kubeocean.fleet.membership.forge import (
    HubObjects,
    ObjectWrite,
    Role,
    RoleBinding,
    member_metadata,
    object_writes,
)
from kubeocean.runtime.kinds import Namespace
from kubeocean.runtime.objects import Json
from support.fleet_objects import internal, member, namespace, owner

KINDS = ["Namespace", "Role", "RoleBinding", "InternalMemberCluster"]


def stored(write: ObjectWrite) -> Any:
    """Return an object as the server would store it."""
    document: Json = write.body | {"metadata": write.body["metadata"] | {"uid": "stored"}}
    return msgspec.convert(document, write.resource.type)


def complete(of: MemberCluster) -> HubObjects:
    return HubObjects(*(stored(write) for write in object_writes(of, HubObjects())))


def test_a_new_member_gets_all_objects_in_order() -> None:
    writes = object_writes(member(), HubObjects())
    assert [write.resource.kind for write in writes] == KINDS
    assert all(write.create for write in writes)
    for write in writes:
        (reference,) = write.body["metadata"]["ownerReferences"]
        assert reference["controller"] is True
        assert reference["uid"] == member().uid
        assert write.body["metadata"].get("namespace", "fleet-member-a") == "fleet-member-a"


def test_a_member_with_all_objects_needs_no_write() -> None:
    assert object_writes(member(), complete(member())) == []


def test_role_allows_the_members_groups_and_events_only() -> None:
    role = object_writes(member(), HubObjects())[1].body
    assert msgspec.json.decode(msgspec.json.encode(role["rules"])) == [
        {
            "apiGroups": [
                "cluster.kubernetes-fleet.io",
                "placement.kubernetes-fleet.io",
                "networking.fleet.azure.com",
            ],
            "resources": ["*"],
            "verbs": ["*"],
        },
        {
            "apiGroups": [""],
            "resources": ["events"],
            "verbs": ["get", "list", "update", "patch", "watch", "create"],
        },
    ]


@pytest.mark.parametrize(
    ("identity", "subject"),
    [
        (
            RbacSubject("User", "u"),
            {"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"},
        ),
        (
            RbacSubject("ServiceAccount", "s", namespace="fleet-system"),
            {"kind": "ServiceAccount", "name": "s", "namespace": "fleet-system"},
        ),
    ],
)
def test_identity_becomes_the_subject(identity: RbacSubject, subject: Json) -> None:
    binding = object_writes(member(identity=identity), HubObjects())[2].body
    assert binding["subjects"] == [subject]


def test_changes_of_the_member_change_its_objects() -> None:
    before = complete(member())
    (period,) = object_writes(member(heartbeat_period_seconds=5), before)
    assert (period.resource.kind, period.create) == ("InternalMemberCluster", False)
    assert period.body["spec"] == {"state": "Join", "heartbeatPeriodSeconds": 5}
    assert period.body["metadata"]["uid"] == "stored"  # an apply must not create it again
    (subject,) = object_writes(member(identity=RbacSubject("User", "other")), before)
    assert (subject.resource.kind, subject.create) == ("RoleBinding", False)


def test_a_member_that_left_before_is_asked_to_join() -> None:
    before = msgspec.structs.replace(internal(), spec=internal(state="Leave").spec)
    objects = complete(member())
    objects = HubObjects(objects.namespace, objects.role, objects.role_binding, before)
    (write,) = object_writes(member(), objects)
    assert write.body["spec"]["state"] == "Join"


def test_tampered_objects_are_restored() -> None:
    good = complete(member())
    assert good.role is not None
    assert good.role_binding is not None
    tampered = HubObjects(
        namespace(labelled=False),
        Role(metadata=good.role.metadata, rules=()),
        RoleBinding(metadata=good.role_binding.metadata),
        good.internal,
    )
    writes = object_writes(member(), tampered)
    assert [write.resource.kind for write in writes] == KINDS[:3]
    assert [write.create for write in writes] == [False, False, True]
    assert writes[2].replaced is tampered.role_binding  # the reference to a role is immutable


def test_objects_without_an_owner_are_adopted() -> None:
    bare = namespace(owners=())
    assert isinstance(bare, Namespace)
    first = object_writes(member(), HubObjects(bare))[0]
    assert (first.resource.kind, first.create) == ("Namespace", False)
    assert first.body["metadata"]["ownerReferences"][0]["uid"] == owner().uid


def test_metadata_that_a_member_lacks() -> None:
    assert member_metadata(member()) == {}
    new = member(finalizers=("other",), labels={"x": "y"})
    assert member_metadata(new) == {
        "finalizers": ["other", "kubernetes-fleet.io/membercluster-finalizer"],
        "labels": {"kubernetes-fleet.io/member-name": "a"},
    }
