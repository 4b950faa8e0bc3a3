"""Rollouts, seen: whose an object is, and how far a side has come."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.api import group
from kubeocean.api.group import API_VERSION, DEFAULT
from kubeocean.manager.rolloutclaims import binding_of as owner_of
from kubeocean.manager.rolloutclaims import claim
from kubeocean.manager.rolloutviews import Deployment, Rolled, Side, Standing, side_of
from kubeocean.runtime.objects import Json, Untyped
from rollouts import binding_of


def owner(name: str, uid: str, **more: object) -> Json:
    return {"apiVersion": API_VERSION, "kind": "ClusterBinding", "name": name, "uid": uid} | more


def there(owners: list[Json], **labels: str) -> Untyped:
    written = {
        {"instance": group.APP_INSTANCE, "binding": DEFAULT.cluster_binding}[key]: value
        for key, value in labels.items()
    }
    body = {"metadata": {"name": "x", "ownerReferences": owners, "labels": written}}
    return msgspec.convert(body, Untyped)


REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r1"}


@pytest.mark.parametrize(
    ("owners", "labels", "whose"),
    [
        ([owner("b1", "u1")], {}, None),
        ([owner("b1", "u1"), owner("b2", "u2")], {}, None),
        ([], {"instance": "b1"}, None),
        ([], {"binding": "b1"}, None),
        ([REPLICA_SET], {"instance": "b1"}, None),  # an owner that does not control it
        ([], {"instance": "b1", "binding": "b2"}, "nothing says"),
        ([], {"instance": "b2"}, "nothing says"),
        ([], {}, "nothing says"),
        ([owner("b2", "u2")], {"instance": "b1"}, "belongs to ClusterBinding b2"),
        ([owner("b1", "u0")], {"instance": "b1"}, "belongs to an earlier ClusterBinding"),
        ([REPLICA_SET | {"controller": True}], {"instance": "b1"}, "belongs to ReplicaSet r"),
    ],
)
def test_whose_an_object_is(owners: list[Json], labels: dict[str, str], whose: str | None) -> None:
    claimed = claim(there(owners, **labels), binding_of(), DEFAULT)
    assert claimed.ours is (whose is None)
    assert (whose or "") in claimed.whose


def test_the_binding_of_an_object_is_its_owner() -> None:
    found = owner_of(there([REPLICA_SET, owner("b1", "u1")]))
    assert found is not None
    assert found.name == "b1"
    other = owner("b1", "u1") | {"apiVersion": "example.org/v1"}
    assert owner_of(there([other])) is None


def deployment(generation: int = 2, wanted: int | None = 2, **status: object) -> Deployment:
    body: Json = {
        "metadata": {"name": "d", "namespace": "n", "generation": generation},
        "spec": {} if wanted is None else {"replicas": wanted},
        "status": {
            "observedGeneration": 2,
            "replicas": 2,
            "updatedReplicas": 2,
            "availableReplicas": 2,
        }
        | status,
    }
    return msgspec.convert(body, Deployment)


def test_a_side_is_ready_when_all_replicas_are_new_and_available() -> None:
    side = side_of(deployment())
    assert side == Side(standing=Standing.READY, wanted=2, updated=2, ready=2)
    assert side.is_ready
    assert not side.failed
    none = {"replicas": 0, "updatedReplicas": 0, "availableReplicas": 0}
    assert side_of(deployment(wanted=0, **none)).is_ready


def condition(type_: str, status: str) -> list[Json]:
    return [{"type": type_, "status": status, "reason": "Why", "message": "because"}]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (deployment(3), "its controller has not looked yet"),
        (deployment(updatedReplicas=1), "1 of 2 replicas are new"),
        (deployment(wanted=None, updatedReplicas=0), "0 of 1 replicas are new"),
        (deployment(availableReplicas=1), "1 of 2 replicas are available"),
        (deployment(replicas=2, updatedReplicas=0), "0 of 2 replicas are new"),
        (deployment(conditions=condition("Progressing", "False")), "Why: because"),
        (deployment(conditions=condition("ReplicaFailure", "True")), "Why: because"),
    ],
)
def test_a_side_that_is_not_ready_says_why(seen: Deployment, said: str) -> None:
    side = side_of(seen)
    assert side.standing is Standing.ROLLING
    assert said in side.reason


def test_a_deployment_that_is_going_is_not_ready() -> None:
    body = msgspec.to_builtins(deployment())
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert "is being deleted" in side_of(msgspec.convert(body, Deployment)).reason


def test_a_failure_comes_first_and_shows_what_runs() -> None:
    side = side_of(deployment(), standing=Standing.TEMPLATE, reason="no")
    assert side == Side(standing=Standing.TEMPLATE, wanted=2, updated=2, ready=2, reason="no")
    assert side.failed
    assert side_of(None, standing=Standing.FOREIGN, reason="no").failed
    assert side_of(None).reason == "no Deployment yet"
    assert Rolled(syncer=side, proxier=side_of(deployment())).failed
    assert not Rolled(syncer=side_of(None), proxier=side_of(deployment())).failed
