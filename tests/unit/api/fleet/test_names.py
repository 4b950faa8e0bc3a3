"""Names of a fleet's objects: KubeFleet's, character by character."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet import names
from kubeocean.runtime.objects import Key

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
object_names = st.from_regex(SUBDOMAIN, fullmatch=True).filter(lambda name: len(name) <= 63)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (names.member_namespace("m-1"), "fleet-member-m-1"),
        (names.member_role("m-1"), "fleet-role-m-1"),
        (names.member_role_binding("m-1"), "fleet-rolebinding-m-1"),
        (names.policy_snapshot("crp-a", 0), "crp-a-0"),
        (names.resource_snapshot("crp-a", 3), "crp-a-3-snapshot"),
        (names.resource_sub_snapshot("crp-a", 3, 0), "crp-a-3-0"),
        (names.override_snapshot("cro-a", 2), "cro-a-2"),
        (names.binding("crp-a", "m-1", "0123abcd"), "crp-a-m-1-0123abcd"),
        (names.work(Key("", "crp-a")), "crp-a-work"),
        (names.work(Key("web", "rp-a")), "web.rp-a-work"),
        (names.sub_work(Key("", "crp-a"), 0), "crp-a-0"),
        (names.sub_work(Key("web", "rp-a"), 11), "web.rp-a-11"),
        (names.approval_request("run-1", "canary", names.BEFORE_STAGE), "run-1-before-canary"),
        (names.approval_request("run-1", "canary", names.AFTER_STAGE), "run-1-after-canary"),
        (names.drain_eviction("crp-a", "m-1", "0123abcd"), "drain-eviction-crp-a-m-1-0123abcd"),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert name == expected


@pytest.mark.parametrize(
    ("type_", "envelope", "hashed"),
    [
        ("ResourceEnvelope", Key("web", "env-1"), "ResourceEnvelope/web/env-1"),
        ("ClusterResourceEnvelope", Key("", "env-1"), "ClusterResourceEnvelope//env-1"),
    ],
)
def test_an_envelope_work_is_named_after_the_work_and_a_hash(
    type_: str, envelope: Key, hashed: str
) -> None:
    digest = hashlib.sha256(hashed.encode()).hexdigest()[:16]
    assert names.envelope_work("crp-a-work", type_, envelope) == f"crp-a-work-envelope-{digest}"


def test_envelope_work_names_are_fixed() -> None:
    assert names.envelope_work("crp-a-work", "ResourceEnvelope", Key("web", "env-1")) == (
        "crp-a-work-envelope-5cc4da91e721a54f"
    )


@pytest.mark.parametrize(
    ("namespace", "member"),
    [
        ("fleet-member-m-1", "m-1"),
        ("fleet-member-", None),
        ("fleet-system", None),
        ("m-1", None),
        ("fleet-member-fleet-member-m", "fleet-member-m"),
    ],
)
def test_the_member_of_a_namespace(namespace: str, member: str | None) -> None:
    assert names.member_of_namespace(namespace) == member


def test_a_binding_keeps_26_and_27_characters() -> None:
    assert names.binding("p" * 30, "c" * 30, "0123abcd") == f"{'p' * 26}-{'c' * 27}-0123abcd"


@given(placement=object_names, cluster=object_names, uid=st.uuids().map(str))
def test_a_binding_has_a_name_that_a_label_can_hold(placement: str, cluster: str, uid: str) -> None:
    name = names.binding(placement, cluster, names.binding_suffix(uid, cluster))
    assert len(name) <= 63
    assert SUBDOMAIN.fullmatch(name)


def test_a_binding_suffix_depends_on_the_bindings_that_are_being_deleted() -> None:
    first = names.binding_suffix("uid-1", "m-1")
    assert first == names.binding_suffix("uid-1", "m-1")
    assert re.fullmatch("[0-9a-f]{8}", first)
    others = {
        names.binding_suffix("uid-2", "m-1"),
        names.binding_suffix("uid-1", "m-2"),
        names.binding_suffix("uid-1", "m-1", ["b-1"]),
        names.binding_suffix("uid-1", "m-1", ["b-1", "b-2"]),
    }
    assert len(others | {first}) == 5
    assert names.binding_suffix("uid-1", "m-1", ["b-2", "b-1"]) in others


@pytest.mark.parametrize(
    ("value", "index"),
    [
        ("0", 0),
        ("12", 12),
        ("", None),
        ("-1", None),
        ("1a", None),
        ("٣", None),
        (" 1", None),
        ("9" * 5000, None),
    ],
)
def test_an_index_is_a_whole_number(value: str, index: int | None) -> None:
    label = names.LABEL_RESOURCE_INDEX
    assert names.parse_index({label: value}, label) == index


def test_a_missing_label_has_no_index() -> None:
    assert names.parse_index({}, names.LABEL_RESOURCE_INDEX) is None
