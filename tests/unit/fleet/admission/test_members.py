"""Rules for MemberClusters, and AdmissionReviews as such."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.fleet.admission.go_names import (
    label_value_problems,
    print_label_selector,
    qualified_name_problems,
)
from kubeocean.fleet.admission.members import decide_member, needs_service_exports
from kubeocean.fleet.admission.reviews import BadReview, Decision, Review, aggregate, denied
from unit.fleet.admission.requests import request


def member(name: str = "m", *taints: Any, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"taints": list(taints), **spec}}


def taint(key: str = "k", value: str = "v") -> dict[str, str]:
    return {"key": key, "value": value, "effect": "NoSchedule"}


def verdict(new: Any, old: Any = None) -> str:
    operation = "CREATE" if old is None else "UPDATE"
    return decide_member(request("MemberCluster", operation, new=new, old=old)).message


def test_identical_taints_are_refused() -> None:
    assert verdict(member("m", taint(), taint())) == (
        "taint {Key:k Value:v Effect:NoSchedule} already exists, taints must be unique"
    )
    assert verdict(member("m", taint(), taint(value="w"), taint("l"))) == ""


def test_keys_and_values_of_taints_are_those_of_labels() -> None:
    assert verdict(member("m", taint("key-123-45678!"))) == (
        "invalid taint key {Key:key-123-45678! Value:v Effect:NoSchedule}: name part must consist"
        " of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
        " character"
    )
    assert "invalid taint value" in verdict(member("m", taint(value="v!")))


def test_a_name_without_room_for_a_namespace_is_refused_at_creation_only() -> None:
    assert verdict(member("x" * 50)) == ""
    assert "metadata.name max length is 50" in verdict(member("x" * 51))
    assert verdict(member("x" * 51), member("x" * 51)) == ""


def test_an_update_that_keeps_bad_taints_is_allowed() -> None:
    """Controllers write finalizers of MemberClusters that were stored without this check."""
    bad = member("m", taint(), taint())
    assert verdict(bad | {"metadata": {"name": "m", "labels": {"a": "b"}}}, bad) == ""
    assert verdict(bad, member("m", taint())) != ""


def test_a_member_with_exported_services_is_not_deleted() -> None:
    def deletion(**spec: Any) -> Any:
        return request("MemberCluster", "DELETE", old=member("m", **spec))

    assert needs_service_exports(deletion())
    assert needs_service_exports(deletion(deleteOptions={"validationMode": "Strict"}))
    assert not needs_service_exports(deletion(deleteOptions={"validationMode": "Skip"}))
    assert not needs_service_exports(request("MemberCluster", new=member()))
    assert decide_member(deletion()).allowed
    assert decide_member(deletion(), ["a/b", "c/d"]).message == (
        "Please delete serviceExport a/b in the member cluster before leaving, request is denied"
    )


# Names


@pytest.mark.parametrize("name", ["a", "a.b/c", "A-1_x.y", "example.com/A"])
def test_qualified_names(name: str) -> None:
    assert qualified_name_problems(name) == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "name part must be non-empty"),
        ("/a", "prefix part must be non-empty"),
        ("A/a", "prefix part a lowercase RFC 1123 subdomain"),
        ("a/", "name part must be non-empty"),
        ("a" * 64, "name part must be no more than 63 characters"),
        ("a/b/c", "a qualified name must consist of"),
        ("a\n", "name part must consist of"),
    ],
)
def test_names_that_are_not_qualified(name: str, problem: str) -> None:
    assert any(each.startswith(problem) for each in qualified_name_problems(name))


def test_values_of_labels() -> None:
    assert label_value_problems("") == label_value_problems("A.b") == []
    assert len(label_value_problems("!" * 64)) == 2


def test_selectors_are_printed_as_go_does() -> None:
    assert print_label_selector(None) == "nil"
    assert print_label_selector({"matchLabels": {"b": "2", "a": "1"}}) == (
        "&LabelSelector{MatchLabels:map[string]string{a: 1,b: 2,},"
        "MatchExpressions:[]LabelSelectorRequirement{},}"
    )
    expressions = [{"key": "k", "operator": "In", "values": ["x", "y"]}]
    assert "{Key:k,Operator:In,Values:[x y],},}" in print_label_selector(
        {"matchExpressions": expressions}
    )


# Reviews


def body(**fields: Any) -> bytes:
    body = {"uid": "7", "kind": {"group": "", "version": "v1", "kind": "Pod"}}
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": body | {"operation": "CREATE", "object": {"metadata": {"name": "p"}}} | fields,
    }
    return msgspec.json.encode(review)


def response(content: bytes, decision: Decision) -> Any:
    answer = msgspec.json.decode(Review.parse(content).answer(decision))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    return answer["response"]


def test_answers_carry_the_uid_and_the_message_or_the_patch() -> None:
    assert response(body(), Decision(True)) == {"uid": "7", "allowed": True}
    assert response(body(), denied("no")) == {
        "uid": "7",
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": "no"},
    }
    operations = ({"op": "add", "path": "/a", "value": 1},)
    answer = response(body(), Decision(True, patch=operations))
    assert answer["patchType"] == "JSONPatch"
    assert msgspec.json.decode(base64.b64decode(answer["patch"])) == list(operations)


def test_a_message_is_bounded() -> None:
    message = response(body(), denied("x" * 10**6))["status"]["message"]
    assert len(message) == 16 * 1024


@given(st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_garbage_is_a_bad_review(content: bytes) -> None:
    with pytest.raises(BadReview, match="not an AdmissionReview"):
        Review.parse(content)


@pytest.mark.parametrize(
    "fields",
    [{"uid": ""}, {"uid": 3}, {"operation": "SAIL"}, {"userInfo": []}, {"kind": None}],
)
def test_reviews_with_wrong_fields_are_bad(fields: Any) -> None:
    with pytest.raises(BadReview, match="not an AdmissionReview"):
        Review.parse(body(**fields))


def test_deep_nesting_is_a_bad_review() -> None:
    with pytest.raises(BadReview):
        Review.parse(b'{"request":' * 100_000)


def test_several_problems_are_joined_as_go_does() -> None:
    assert aggregate(["a"]) == "a"
    assert aggregate(["a", "b", "a"]) == "[a, b]"
